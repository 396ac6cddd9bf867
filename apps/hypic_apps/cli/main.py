"""``hypic-rag``: the list of commands, and how errors end. Imports no torch until a command runs."""

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from hypic_apps.cli import ask, chat, demo, info, ingest
from hypic_rag.errors import HypicError

START = """Start here:
  hypic-rag demo                      bundled documents, three questions, nothing else needed
  hypic-rag ingest docs/              prefill your own documents, once
  hypic-rag ask "Who signed it?"      answer from them
"""


class Commands(TyperGroup):
    """The group of commands; its help opens with commands that run."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(START + "\n")
        super().format_help(ctx, formatter)


app = typer.Typer(
    cls=Commands,
    help="Ask your documents. Every chunk is prefilled once; answers are assembled from cached segments.",
    epilog="Settings: HYPIC_HOME/config.toml, then HYPIC_NAME in the environment, then --name. "
    "Everything is kept under HYPIC_HOME (~/.hypic-rag).",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (ingest, ask, chat, info, demo):
    app.command(command.__name__.rsplit(".", 1)[-1])(command.run)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    try:
        app(prog_name="hypic-rag")
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
