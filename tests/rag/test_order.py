"""Passages in the order that is asked for; chunks that adjoin stay together as they are read."""

import pytest

from hypic_rag.rag.order import arrange

CASES = {  # nearest first, each with its place, and how they stand in each order
    "documents of one chunk": (
        {"a": ("z", 0), "b": ("x", 0), "c": ("y", 0), "d": ("w", 0), "e": ("v", 0)},
        {"nearest-first": "abcde", "nearest-last": "edcba", "document": "edbca", "ends": "acedb"},
    ),
    "two chunks that adjoin": (
        {"a": ("x", 4), "b": ("y", 0), "c": ("x", 3)},
        {"nearest-first": "cab", "nearest-last": "bca", "document": "cab", "ends": "cab"},
    ),
    "a hit between its neighbours": (
        {"a": ("x", 4), "b": ("x", 3), "c": ("x", 5), "d": ("x", 7)},
        {"nearest-first": "bacd", "nearest-last": "dbac", "document": "bacd", "ends": "bacd"},
    ),
    "without places": (
        {"a": None, "b": ("x", 1), "c": None, "d": ("x", 2)},
        {"nearest-first": "abdc", "nearest-last": "cbda", "document": "acbd", "ends": "acbd"},
    ),
    "one": ({"a": None}, dict.fromkeys(("nearest-first", "nearest-last", "document", "ends"), "a")),
    "none": ({}, dict.fromkeys(("nearest-first", "nearest-last", "document", "ends"), "")),
}


@pytest.mark.parametrize(
    "places, order, expected",
    [(places, order, text) for places, orders in CASES.values() for order, text in orders.items()],
    ids=[f"{name}: {order}" for name, (_, orders) in CASES.items() for order in orders],
)
def test_arrange(places, order, expected):
    assert "".join(arrange(list(places), order, places.__getitem__)) == expected
