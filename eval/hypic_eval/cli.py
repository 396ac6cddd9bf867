"""``hypic-eval``: the list of commands, and how errors end. Imports no torch until a command runs."""

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from hypic_eval.commands import quality, reference, table, ttft
from hypic_rag.errors import HypicError

START = """Start here:
  hypic-eval quality tests/data/hotpotqa_few.jsonl --limit 2     answers of every mode, scored
  hypic-eval ttft --data tests/data/hotpotqa_few.jsonl --n 1     how soon the first token comes
  hypic-eval table results.json                                  a table of saved results
"""


class Commands(TyperGroup):
    """The group of commands; its help opens with commands that run."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(START + "\n")
        super().format_help(ctx, formatter)


app = typer.Typer(
    cls=Commands,
    help="Measure hypic-rag: what answers are worth, and how soon they come.",
    epilog="Results are saved as JSON; every table is made from such a file. "
    "The model is a setting of hypic-rag: HYPIC_HOME/config.toml, HYPIC_MODEL, then --model.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (quality, ttft, reference, table):
    app.command(command.__name__.rsplit(".", 1)[-1])(command.run)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed or a goal missed, 2 bad usage, 130 interrupted."""
    try:
        app(prog_name="hypic-eval")
    except HypicError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        _flush_stdout()


def _flush_stdout() -> None:
    """Where the reader has gone (``| head``), what is still buffered must not raise again as Python exits."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    main()
