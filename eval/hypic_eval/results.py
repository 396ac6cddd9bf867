"""Results on disk: rows of figures with what they were measured on; every table is made from such a file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hypic_rag.atomic_write import replacing
from hypic_rag.errors import BadInput
from hypic_rag.stored_json import made, parse_object

FORMAT = "hypic-eval results"
VERSION = 1


@dataclass(frozen=True)
class ResultRow:
    """One figure.

        mode: what was measured (a mode, a mode at a place of a sweep, or a way to reach the first token).
        arrow: "↑" if more is better, "↓" if less is.
        unit: "%", "nats", "mnats" (thousandths), "ms", "tokens", "tokens/s", "x" (times), "ratio", "relative error", or
        what is counted.
        interval: 95% of a mean, quartiles of a median, or what is held and what is not (``settings`` say which); None
        where n is too small.
    to_full: paired difference to full recompute (of codecs to codec none, of retrieval to dense, of runs to the first)
    with its interval, or None.
        goal: what the value should reach, in the arrow's direction, or None.
    """

    task: str
    version: int
    data: str
    n: int
    mode: str
    metric: str
    arrow: str
    unit: str
    value: float
    interval: tuple[float, float] | None
    model: str
    commit: str
    settings: dict[str, Any] = field(default_factory=dict)
    to_full: dict[str, Any] | None = None
    goal: float | None = None

    @property
    def misses_goal(self) -> bool:
        if self.goal is None:
            return False
        return not (self.value >= self.goal if self.arrow == "↑" else self.value <= self.goal)


@dataclass(frozen=True)
class Results:
    """Everything one command measured. ``details``: further rows, shown as a table of their own."""

    kind: str
    machine: dict[str, Any]
    rows: list[ResultRow]
    notes: list[str] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)

    @property
    def missed_goals(self) -> list[ResultRow]:
        return [row for row in self.rows if row.misses_goal]

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        text = json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1, ensure_ascii=False)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                file.write(f"{text}\n".encode())
        except OSError as error:
            raise BadInput(f"{path} cannot be written: {error}. Name another file with --out.") from error

    @classmethod
    def load(cls, path: Path) -> "Results":
        """Load a file. Raises BadInput if ``path`` was not written by ``save`` of this version."""
        try:
            content = parse_object(path.read_bytes())
            if content["format"] != FORMAT or content["version"] != VERSION:
                raise BadInput(
                    f"{path} is {content['format']} version {content['version']}, and this program reads "
                    f"{FORMAT} version {VERSION}; measure again with it"
                )
            rows = [
                made(ResultRow, {**row, "interval": row["interval"] and tuple(row["interval"])})
                for row in content["rows"]
            ]
            return cls(rows=rows, **{name.name: content[name.name] for name in fields(cls) if name.name != "rows"})
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(
                f"{path} holds no results of hypic-eval: {error!r}. Give it a file written with --out."
            ) from error


def commits(rows: Sequence[dict[str, Any]]) -> str:
    """Name the commits that measured these rows: one, or all of them where a run went on with other code."""
    return ", ".join(sorted({row["commit"] for row in rows}))
