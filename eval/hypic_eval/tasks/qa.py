"""Short answers from several documents: HotpotQA, 2WikiMultihopQA, MuSiQue, TriviaQA."""

from hypic_eval.metrics import exact_match, f1, rouge_l
from hypic_eval.task import Question, Row, Task


def read(row: Row) -> Question:
    documents = tuple((document["title"], document["text"]) for document in row["docs"])
    gold = tuple((document["title"], document["text"]) for document in row["docs"] if document.get("gold"))
    return Question(str(row["id"]), row["question"], documents, tuple(row["answers"]), gold)


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0].strip()


TASK = Task(
    name="qa",
    version=1,
    datasets=("hotpotqa", "2wikimqa", "musique", "triviaqa"),
    max_new_tokens=12,
    read=read,
    clean=first_line,
    scores={"f1": f1, "em": exact_match, "rouge_l": rouge_l},
)
