"""What the two command lines share: help that opens with commands that run, and how errors end."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperGroup

from hypic_rag.errors import HypicError


def make_app(commands: Iterable[ModuleType], start: str, about: str, epilog: str) -> typer.Typer:
    """One command a module, named after it, its function ``run``. ``start``: lines before everything else."""

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
        app.command(command.__name__.rsplit(".", 1)[-1])(command.run)
    return app


def add_group(app: typer.Typer, name: str, functions: Iterable[Callable[..., None]], about: str) -> None:
    """Commands of two words: ``keys add`` is the function ``add``, or ``add_`` where that is a name of Python's."""
    group = typer.Typer(
        help=about,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for function in functions:
        group.command(function.__name__.rstrip("_"))(function)
    app.add_typer(group, name=name)


def run(app: typer.Typer, name: str) -> None:
    """Exit codes: 0 done, 1 failed, 2 bad usage, 130 interrupted."""
    try:
        with _no_interrupt_lost():
            app(prog_name=name)
    except HypicError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        _flush_stdout()


@contextlib.contextmanager
def _no_interrupt_lost() -> Iterator[None]:
    """A library that catches everything may catch an interrupt, too: then the exit code still tells of it."""
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


def _flush_stdout() -> None:
    """Where the reader has gone (``| head``), what is still buffered must not raise again as Python exits."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
