"""Multi-News: one summary of several news articles."""

import re

from hypic_eval.metrics import rouge_l
from hypic_eval.task import Question, Row, Task

LINE_BREAK = re.compile(r" ?NEWLINE_CHAR ?")
"""How the data set writes a line break."""


def read(row: Row) -> Question:
    documents = tuple((document["title"], LINE_BREAK.sub("\n", document["text"])) for document in row["docs"])
    answers = tuple(LINE_BREAK.sub("\n", answer) for answer in row["answers"])
    return Question(str(row["id"]), "Summarize the documents.", documents, answers)


TASK = Task(
    name="multinews",
    version=1,
    datasets=("multinews",),
    max_new_tokens=128,
    read=read,
    clean=str.strip,
    scores={"rouge_l": rouge_l},
)
