"""``hypic-qualify``: the list of commands. Imports no torch until a command runs."""

from hypic_qualify.commands import crash, flips, load, overhead, tenants
from hypic_rag import command_line

START = """Start here:
  hypic-qualify load --seconds 60       a server under 200 connections
  hypic-qualify overhead --n 50         what a server adds to the time to the first token
  hypic-qualify crash --n 20            a server that is killed at random moments
  hypic-qualify flips --n 1000          bits of a cache that are not what they were
  hypic-qualify tenants                 what one tenant can tell of another
"""

app = command_line.make_app(
    (load, overhead, crash, flips, tenants),
    START,
    about="Qualify a server of hypic-rag: hold it to its goals under load, kills, damage and strangers.",
    epilog="Results are saved as JSON; hypic-eval table prints them as tables. Exit code 1 where a goal is missed. "
    "The model is a setting of hypic-rag: HYPIC_HOME/config.toml, HYPIC_MODEL, then --model.",
)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 failed or a goal missed, 2 bad usage, 130 interrupted."""
    command_line.run(app, "hypic-qualify")


if __name__ == "__main__":
    main()
