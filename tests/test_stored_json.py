"""Whatever is wrong with JSON is one ValueError."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from hypic_rag.stored_json import made, parse, parse_object


@dataclass(frozen=True)
class Thing:
    name: str
    n: int
    share: float
    rest: tuple[int, ...] = ()
    pair: tuple[float, float] | None = None
    names: list[str] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)


GOOD: dict[str, Any] = {
    "name": "a", "n": 1, "share": 0.5, "rest": (1, 2), "pair": (0.5, 1), "names": ["b"], "more": {"c": 1},
}  # fmt: skip


@pytest.mark.parametrize("text", [
    "", "{", b"\xff", "[" * 100_000, '{"a":' * 100_000, "1" * 5000, '{"a": 1, "a": 2}', "nul", b'"\xed\xa0\x80"',
], ids=range(9))  # fmt: skip
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse(text)


@pytest.mark.parametrize("text", ["[]", "1", "null", '"a"'])
def test_an_object_is_wanted(text: str) -> None:
    with pytest.raises(ValueError, match="not an object"):
        parse_object(text)


def test_it_is_made_of_its_fields() -> None:
    assert made(Thing, GOOD) == Thing(**GOOD)
    assert made(Thing, GOOD | {"share": 1}).share == 1 and made(Thing, GOOD | {"pair": None}).pair is None


@pytest.mark.parametrize("changes", [
    {"name": 1}, {"name": None}, {"n": True}, {"n": 1.0}, {"n": "1"}, {"share": "x"}, {"share": float("nan")},
    {"share": float("inf")}, {"share": False}, {"another": 1}, {"rest": [1]}, {"rest": ("a",)}, {"pair": (1,)},
    {"pair": ("a", 1)}, {"names": "b"}, {"share": 10**400},
    {"names": [1]}, {"more": []}, {"more": {"c": "1"}},
])  # fmt: skip
def test_a_field_of_another_type_is_a_value_error(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        made(Thing, GOOD | changes)
    with pytest.raises(ValueError):
        made(Thing, {"name": "a"})
