"""``hypic-rag``: the list of commands. Imports no torch until a command runs."""

from hypic_apps.cli import (
    ask,
    audit,
    backup,
    cache,
    calibrate,
    chat,
    collections,
    demo,
    info,
    ingest,
    keys,
    restore,
    serve,
)
from hypic_rag import command_line

START = """Start here:
  hypic-rag demo                      bundled documents, three questions, nothing else needed
  hypic-rag ingest docs/              prefill your own documents, once
  hypic-rag ask "Who signed it?"      answer from them
"""

app = command_line.make_app(
    (ingest, ask, chat, serve, calibrate, audit, info, backup, restore, demo),
    START,
    about="Ask your documents. Every chunk is prefilled once; answers are assembled from cached segments.",
    epilog="Settings: HYPIC_HOME/config.toml, then HYPIC_NAME in the environment, then --name. "
    "Everything is kept under HYPIC_HOME (~/.hypic-rag).",
)
command_line.add_group(
    app, "keys", (keys.add, keys.list_, keys.usage, keys.revoke), about="Who may use the server: API keys."
)
command_line.add_group(
    app, "collections", (collections.ls, collections.add_store), about="Documents that the server has, too."
)
command_line.add_group(
    app,
    "cache",
    (
        *(cache.ls, cache.stat, cache.why, cache.pin, cache.unpin),
        *(cache.evict, cache.verify, cache.gc, cache.export, cache.import_),
    ),
    about="The segments on disk, of a store or of the server: list, explain, pin, evict, check, move.",
)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    command_line.run(app, "hypic-rag")


if __name__ == "__main__":
    main()
