"""``hypic-rag``: the list of commands. Imports no torch until a command runs."""

from hypic_apps.cli import ask, audit, calibrate, chat, demo, info, ingest
from hypic_rag import command_line

START = """Start here:
  hypic-rag demo                      bundled documents, three questions, nothing else needed
  hypic-rag ingest docs/              prefill your own documents, once
  hypic-rag ask "Who signed it?"      answer from them
"""

app = command_line.make_app(
    (ingest, ask, chat, calibrate, audit, info, demo),
    START,
    about="Ask your documents. Every chunk is prefilled once; answers are assembled from cached segments.",
    epilog="Settings: HYPIC_HOME/config.toml, then HYPIC_NAME in the environment, then --name. "
    "Everything is kept under HYPIC_HOME (~/.hypic-rag).",
)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    command_line.run(app, "hypic-rag")


if __name__ == "__main__":
    main()
