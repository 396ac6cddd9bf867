"""Raise an error at the n-th line that some files execute, as Ctrl-C does at any instant."""

import dis
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parent.parent


class Interrupter:
    """At the ``n``-th line (0 is the first) that ``files`` (ends of paths) execute inside ``at``, which only this
    thread's frames entered there see. ``where``: the line, once it was raised."""

    def __init__(self, error: type[BaseException], files: Sequence[str], n: int):
        nowhere = [end for end in files if not any(path.endswith(end) for path in _sources())]
        assert not nowhere, f"no file ends in {nowhere}: nothing would be interrupted there"
        self.error, self.files, self.left = error, tuple(files), n
        self.where = ""

    @contextmanager
    def inside(self) -> Iterator[None]:
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.endswith(self.files) or self.where:
            return None
        if event == "line" and frame.f_lasti not in _leaving(frame.f_code):
            if not self.left:
                self.where = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise self.error
            self.left -= 1
        return self._trace


@cache
def _sources() -> tuple[str, ...]:
    """List what may be interrupted; ``<string>`` is what dataclasses generate."""
    folders = (ROOT / "hypic_rag", ROOT / "tests")
    return (*(str(path) for folder in folders for path in folder.rglob("*.py")), "<string>")


@cache
def _leaving(code: CodeType) -> frozenset[int]:
    """Where a ``with`` block is left: from there to its ``__exit__`` the interpreter looks at no signal."""
    found, steps = set(), list(dis.get_instructions(code))
    for i, step in enumerate(steps):
        if step.opname == "PUSH_EXC_INFO" and steps[i + 1].opname == "WITH_EXCEPT_START":
            found.add(step.offset)
        rest = [(s.opname, s.argval) for s in steps[i : i + 5] if s.opname not in ("SWAP", "NOP")][:3]
        if rest == [("LOAD_CONST", None)] * 3:
            found.add(step.offset)
    return frozenset(found)
