"""Short answers from several documents: HotpotQA and data sets of its shape."""

from hypic_eval.metrics import exact_match, f1, rouge_l
from hypic_eval.task import Question, Row, Task


def read(row: Row) -> Question:
    documents = tuple((document["title"], document["text"]) for document in row["docs"])
    return Question(str(row["id"]), row["question"], documents, tuple(row["answers"]))


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


TASK = Task(
    name="qa",
    version=1,
    datasets=("hotpotqa", "2wikimqa", "musique", "nq_open", "triviaqa"),
    max_new_tokens=12,
    read=read,
    clean=first_line,
    scores={"f1": f1, "em": exact_match, "rouge_l": rouge_l},
)
