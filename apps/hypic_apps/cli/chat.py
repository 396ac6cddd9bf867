"""``hypic-rag chat``: a conversation, each turn resuming from the last."""

import contextlib
import signal
import sys
from collections.abc import Iterable, Iterator

from typer import Exit

from hypic_apps.cli import options
from hypic_rag.config import Settings
from hypic_rag.errors import HypicError


@options.with_settings(*options.POLICY, *options.RETRIEVAL, *options.SAMPLING, "log_questions", *options.PLACE)
def run(settings: Settings) -> None:
    """Talk with the documents, a line a turn. /new starts anew, /quit (or end of input) ends, Ctrl-C stops one."""
    from hypic_apps import session

    failed = False
    with session.open_conversation(settings) as conversation:
        from hypic_apps import report
        from hypic_rag.rag import OutOfContext

        while (line := _next_line()) is not None:
            if line == "/new":
                conversation.start_anew()
                continue
            try:
                with _only_this_turn():
                    try:
                        _print_answer(conversation.ask(line))
                    except OutOfContext as full:
                        session.say(f"The conversation has outgrown the model's context ({full}): starting anew.")
                        conversation.start_anew()
                        _print_answer(conversation.ask(line))
                    session.say(report.answer_text(report.answer_fields(conversation.last), with_answer=False))
            except KeyboardInterrupt:
                session.say("\nstopped: this turn is forgotten; /quit ends")
            except HypicError as error:  # of this turn only: the next may do
                session.say(f"error: {error}")
                failed = True
    if failed:
        raise Exit(1)


def _next_line() -> str | None:
    """Return the next line that is not empty; None at the end. The sign to type is shown to people only."""
    while True:
        if sys.stdin.isatty():
            print("\n> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line or line.strip() == "/quit":
            return None
        if line.strip():
            return line.strip()


@contextlib.contextmanager
def _only_this_turn() -> Iterator[None]:
    """Let Ctrl-C be no end of the command, unless whoever started it has it ignored."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _print_answer(texts: Iterable[str]) -> None:
    for text in texts:
        print(text, end="", flush=True)
    print(flush=True)
