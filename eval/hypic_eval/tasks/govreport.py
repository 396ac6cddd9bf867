"""GovReport: one summary of a long report, which is cut at sentences into segments."""

import re

from hypic_eval.metrics import rouge_l
from hypic_eval.task import Document, Question, Row, Task

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
MAX_CHARACTERS = 2000
"""Of a segment: about 450 tokens."""


def read(row: Row) -> Question:
    documents = tuple(piece for document in row["docs"] for piece in pieces(document["title"], document["text"]))
    return Question(str(row["id"]), "Summarize the report.", documents, tuple(row["answers"]))


def pieces(title: str, text: str) -> list[Document]:
    """Gather whole sentences up to 2,000 characters a piece; a longer sentence is a piece of its own."""
    found = [""]
    for sentence in SENTENCE_END.split(text.strip()):
        if found[-1] and len(found[-1]) + 1 + len(sentence) > MAX_CHARACTERS:
            found.append("")
        found[-1] = f"{found[-1]} {sentence}".lstrip()
    return [(f"{title}, part {i}", piece) for i, piece in enumerate(found, start=1) if piece]


TASK = Task(
    name="govreport",
    version=1,
    datasets=("govreport",),
    max_new_tokens=128,
    read=read,
    clean=str.strip,
    scores={"rouge_l": rouge_l},
)
