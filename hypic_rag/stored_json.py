"""JSON out of files that may be damaged: whatever is wrong with it is one ValueError."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

Made = TypeVar("Made")


def parse(text: object) -> Any:
    """Parse a JSON text. Raises ValueError, also where it is no UTF-8, is nested too deeply, or names a field twice."""
    if isinstance(text, bytes | bytearray):
        text = text.decode()  # json would pass half characters
    if not isinstance(text, str):
        raise ValueError(f"it is a JSON {type(text).__name__}, not a text")  # of JSON within JSON
    try:
        return json.loads(text, object_pairs_hook=_without_twins)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_object(text: object) -> dict[str, Any]:
    """Parse as ``parse`` does, where an object is wanted."""
    found = parse(text)
    if not isinstance(found, dict):
        raise ValueError(f"it is a JSON {type(found).__name__}, not an object")
    return found


def made(kind: type[Made], values: Mapping[str, Any]) -> Made:
    """Make a dataclass of these fields, each of its declared type. Raises ValueError."""
    names = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    if not isinstance(values, Mapping) or values.keys() != names.keys():
        raise ValueError(f"it has not the fields {', '.join(names)}")
    hints = get_type_hints(kind)
    for name, value in values.items():
        if not _is_a(value, hints[name]):
            raise ValueError(f"its {name} is {str(value)[:80]!r}")
    return kind(**values)


def _is_a(value: object, kind: Any) -> bool:
    """Check a value's type: a bool is no number, and a whole number is a float, too. Of a Literal
    the dataclass itself sees to it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return any(_is_a(value, one) for one in inner)
    if origin is tuple:
        kinds = inner[:1] * len(value) if isinstance(value, tuple) and inner[1:] == (...,) else inner
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_is_a, value, kinds))
    if origin is list:
        return isinstance(value, list) and all(_is_a(one, inner[0]) for one in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(_is_a(one, inner[1]) for one in value.values())
    if kind is float:
        return (type(value) is int and abs(value) < 2**63) or (type(value) is float and math.isfinite(value))
    if kind in (int, str, bool, NoneType):
        return type(value) is kind
    return origin is Literal or kind is Any or isinstance(value, kind)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("it has a field twice")
    return values
