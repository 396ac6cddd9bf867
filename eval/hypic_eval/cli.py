"""``hypic-eval``: the list of commands. Imports no torch until a command runs."""

from hypic_eval.commands import (
    codecs,
    compare,
    exactness,
    gpu,
    models,
    plain_use,
    quality,
    reference,
    replay,
    report,
    retrieval,
    sweep,
    table,
    ttft,
)
from hypic_rag import command_line

START = """Start here:
  hypic-eval quality tests/data/hotpotqa_few.jsonl --limit 2     answers of every mode, scored
  hypic-eval sweep tests/data/hotpotqa_few.jsonl --axis seam     the same along one axis
  hypic-eval plain-use --limit 5                                 everyday files, everyday questions, how many are right
  hypic-eval compare before.json results.json                    what changed beyond noise
  hypic-eval report results.json --out report                    a page with tables and plots
  hypic-eval ttft --data tests/data/hotpotqa_few.jsonl --n 1     how soon the first token comes
  hypic-eval replay tests/data/hotpotqa_few.jsonl --seconds 10   which rate a server holds, by mode
  hypic-eval gpu --shape tiny --device cpu                       what is measured on a GPU, in miniature
  hypic-eval exactness --segments 1,4                            composition against a float64 recurrence
  hypic-eval codecs tests/data/hotpotqa_few.jsonl --limit 2      what storing segments in 8 bits costs
  hypic-eval retrieval tests/data/hotpotqa_few.jsonl             whether supporting paragraphs are found
  hypic-eval table results.json                                  a table of saved results
"""

app = command_line.make_app(
    (
        quality,
        plain_use,
        sweep,
        compare,
        report,
        ttft,
        replay,
        gpu,
        codecs,
        exactness,
        reference,
        retrieval,
        table,
        models,
    ),
    START,
    about="Measure hypic-rag: what answers are worth, and how soon they come.",
    epilog="Results are saved as JSON; every table is made from such a file. "
    "The model is a setting of hypic-rag: HYPIC_HOME/config.toml, HYPIC_MODEL, then --model. "
    "A server is qualified with hypic-qualify.",
)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed or a goal missed, 2 bad usage, 130 interrupted."""
    command_line.run(app, "hypic-eval")


if __name__ == "__main__":
    main()
