"""Of passages that say the same only the first is kept."""

import pytest

from hypic_rag.retrieval.duplicates import first_of_each

LONG = "Vardal was founded in 1871 by Ole Bakken, who had come from the north with two ships and nine men, all poor."
CASES = {  # passages, kept
    "none": ([], []),
    "the same twice": ([("T", LONG), ("T", LONG)], [0]),
    "under another title": ([("T", LONG), ("Another", LONG)], [0]),
    "other case, spaces, punctuation": ([("T", LONG), ("T", LONG.upper().replace(",", " ;"))], [0]),
    "a part of an earlier one": ([("T", LONG), ("T", LONG[7:-5])], [0]),
    "more than an earlier one": ([("T", LONG[:-5]), ("T", LONG)], [0, 1]),
    "another year": ([("T", LONG), ("T", LONG.replace("1871", "1872"))], [0, 1]),
    "another name": ([("T", LONG), ("T", LONG.replace("Ole", "Per"))], [0, 1]),
    "short, of another title": ([("Oslo", "It has 5,000 people."), ("Bergen", "It has 5,000 people.")], [0, 1]),
    "short, of the same title": ([("Oslo", "It has 5,000 people."), ("Oslo", "it has 5,000 people")], [0]),
    "short, the beginning of another": ([("", "three mills"), ("", "three")], [0, 1]),
    "a part of a word": ([("T", LONG + " Nobody"), ("T", LONG[:-1] + " Nobo")], [0, 1]),
}


@pytest.mark.parametrize("passages, kept", CASES.values(), ids=CASES)
def test_first_of_each(passages, kept):
    assert first_of_each(passages) == kept
