"""What the two command lines share: help that opens with commands that run, and how errors end."""

import codecs
import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from hypic_rag.errors import HypicError
from hypic_rag.paths import REMEDY, path_text, reason

OUTPUT = "standard output"


def make_app(commands: Iterable[ModuleType], start: str, about: str, epilog: str) -> typer.Typer:
    """Make a command of each module, named after it, its function ``run``. ``start``: lines before everything else."""

    class Commands(TyperGroup):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            formatter.write(start + "\n")
            super().format_help(ctx, formatter)

    app = typer.Typer(
        cls=Commands,
        help=about,
        epilog=epilog,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in commands:
        app.command(command.__name__.rsplit(".", 1)[-1].replace("_", "-"))(command.run)
    return app


def add_group(app: typer.Typer, name: str, functions: Iterable[Callable[..., None]], about: str) -> None:
    """Add commands of two words: ``keys add`` is the function ``add``, or ``add_`` where that is a name of Python's."""
    group = typer.Typer(
        help=about,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for function in functions:
        group.command(function.__name__.rstrip("_").replace("_", "-"))(function)
    app.add_typer(group, name=name)


def run(app: typer.Typer, name: str) -> None:
    """Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    _open_what_is_closed()
    _take_any_text()
    code: object = 0
    failed: Exception | None = None
    try:
        with _no_interrupt_lost():
            app(prog_name=name)
    except (HypicError, OSError) as error:
        code, failed = 1, error
    except KeyboardInterrupt:
        code = 130
        with contextlib.suppress(OSError):
            print("interrupted: what was finished is kept", file=sys.stderr)
    except SystemExit as ended:
        code = ended.code
    if (lost := _unwritten(sys.stdout, 1)) is not None and failed is None:
        code, failed = code or 1, lost
    if failed is not None and not isinstance(failed, BrokenPipeError):  # a reader that has gone (``| head``)
        with contextlib.suppress(OSError):  # nobody can be told then
            print(f"error: {failed if isinstance(failed, HypicError) else _told(failed)}", file=sys.stderr)
    _unwritten(sys.stderr, 2)
    sys.exit(code)  # type: ignore[arg-type]  # what another sys.exit was given


def _open_what_is_closed() -> None:
    """Open the streams that the caller has closed (``>&-``): Python has None for them, and the next file that is opened
    gets their number, so that what a library prints would go into it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # until the process ends


class _Output(io.TextIOWrapper):
    """Standard output whose errors say that they are its own: Python's have no name."""

    def write(self, text: str) -> int:
        with _named():
            return super().write(text)

    def flush(self) -> None:
        with _named():
            super().flush()


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = OUTPUT
        raise


def _take_any_text() -> None:
    """Take bytes that are no text as U+FFFD, and escape what the terminal's encoding lacks."""
    codecs.register_error("hypic-escape", _escaped)
    for stream, errors in ((sys.stdin, "replace"), (sys.stderr, "hypic-escape")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    if isinstance(out := sys.stdout, io.TextIOWrapper) and out is sys.__stdout__:  # not what a caller put there
        encoding, by_line, at_once = out.encoding, out.line_buffering, out.write_through
        sys.stdout = _Output(out.detach(), encoding, "hypic-escape", None, by_line, at_once)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Escape a character as JSON does, so that JSON stays JSON: two ``\\uNNNN`` for one beyond U+FFFF."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)), error.end


def _told(error: Exception) -> str:
    """Describe an error of the system that nobody has put into words nearer to where it came from."""
    where = getattr(error, "filename", None)
    if where is OUTPUT:
        return f"the output cannot be written: {reason(error)}. Send it to where there is room"
    return f"{reason(error)}{f': {path_text(where)}' if isinstance(where, str) else ''}. {REMEDY}"


@contextlib.contextmanager
def _no_interrupt_lost() -> Iterator[None]:
    """Exit as interrupted even where a library that catches everything has caught the interrupt, too."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came = False

    def interrupt(*_: object) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except SystemExit as ended:
        if came and not ended.code:
            raise SystemExit(130) from ended
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _unwritten(stream: TextIO, number: int) -> OSError | None:
    """Say why what is still buffered cannot be written; then it must not raise again as Python exits."""
    try:
        stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        return error
    return None
