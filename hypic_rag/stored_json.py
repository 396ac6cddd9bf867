"""JSON out of files that may be damaged: whatever is wrong with it is one ValueError."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, get_type_hints

Made = TypeVar("Made")


def parse(text: str | bytes | bytearray) -> Any:
    """What it says. Raises ValueError, also where it is no UTF-8, is nested too deeply, or names a field twice."""
    if not isinstance(text, str):
        text = text.decode()  # json would pass half characters
    try:
        return json.loads(text, object_pairs_hook=_without_twins)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_object(text: str | bytes | bytearray) -> dict[str, Any]:
    """As ``parse``, where an object is wanted."""
    found = parse(text)
    if not isinstance(found, dict):
        raise ValueError(f"it is a JSON {type(found).__name__}, not an object")
    return found


def made(kind: type[Made], values: Mapping[str, Any]) -> Made:
    """A dataclass of these fields, each of its declared type; what is declared as something else than a plain type
    (a tuple, another dataclass) the caller has checked. Raises ValueError."""
    names = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, Mapping) or values.keys() != names.keys():
        raise ValueError(f"it has not the fields {', '.join(names)}")
    hints = get_type_hints(kind)
    for name, value in values.items():
        if not _is_a(value, hints[name]):
            raise ValueError(f"its {name} is {str(value)[:80]!r}")
    return kind(**values)


def _is_a(value: object, kind: Any) -> bool:
    """A bool is no number, and a whole number is a float, too."""
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind in (int, str, bool):
        return type(value) is kind
    return True


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("it has a field twice")
    return values
