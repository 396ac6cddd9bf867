"""What is said where the documents hold no answer, and how such an answer is known. Imports nothing of this package."""

import re

NOTHING_RELEVANT = "The documents do not say: nothing relevant to this question was found in them."
SAYS_NOTHING = re.compile(
    r"\W*the (documents? (do|does) not|documents? (do|does)n['’]t) say\b((?!\bbut\b)[^.!?])*[.!?]?\W*", re.IGNORECASE
)
"""A whole answer that is this one sentence: "The documents do not say.", "The document doesn't say who signed."."""


def is_answer(text: str) -> bool:
    """Tell whether a text over documents answers its question, and does not just say that the documents do not."""
    return SAYS_NOTHING.fullmatch(text) is None


def no_documents(place: str, name: object, to_do: str = "") -> str:
    """Say that a store or a collection (``place``) has none. to_do: for who cannot use the commands."""
    return f"the {place} {name} has no documents yet: {to_do or f'hypic-rag ingest PATH... --{place} {name}'}"
