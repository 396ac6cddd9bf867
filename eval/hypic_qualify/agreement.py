"""Whether answers under load are those that the same question gets alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypic_qualify.clients import Answered

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine

GAP = 0.01
"""Nats between the two likeliest tokens, below which the size of a pass may decide. Logits of the default model in
float32 differ by up to 0.001 between passes of different sizes."""

Pair = tuple[Answered, Answered]


@dataclass(frozen=True)
class Difference:
    """gap: nats between the two likeliest tokens where the answers part; None where they are not of one prompt."""

    question: str
    alone: str
    loaded: str
    n_times: int
    gap: float | None

    @property
    def is_rounding(self) -> bool:
        return self.gap is not None and self.gap < GAP


def differing(alone: Sequence[Answered], loaded: Sequence[Answered]) -> list[tuple[Pair, int]]:
    """Pair answers (alone, under load) of one question whose texts or documents differ,
    each pair once, with how often."""
    by_question = {answer.question: answer for answer in alone}
    found: dict[tuple[object, ...], tuple[Pair, int]] = {}
    for answer in loaded:
        other = by_question[answer.question]
        if (answer.text, answer.documents) != (other.text, other.documents):
            key = (answer.question, answer.text, answer.documents)
            found[key] = ((other, answer), found[key][1] + 1 if key in found else 1)
    return list(found.values())


def explained(engine: "SegmentEngine", pairs: Sequence[tuple[Pair, int]]) -> list[Difference]:
    """engine: of the server's model."""
    return [Difference(a.question, a.text, b.text, n, _gap(engine, a, b)) for (a, b), n in pairs]


def _gap(engine: "SegmentEngine", alone: Answered, loaded: Answered) -> float | None:
    from hypic_rag.engine import Policy

    if alone.documents != loaded.documents:
        return None
    form = engine.format
    texts = [(*form.encode(answer.text), *form.answer_end) for answer in (alone, loaded)]
    same = 0
    while same < min(map(len, texts)) and texts[0][same] == texts[1][same]:
        same += 1
    told = alone.told
    policy = Policy(mode=told["mode"], seam_tokens=told["seam_tokens"], compose=told["compose"])
    documents = [form.document(text, " ".join(title.split())) for title, text in alone.documents]  # as the server does
    score = engine.score(form.prompt(alone.question, documents), texts[0], policy)
    if same >= len(score.logprobs):
        return None
    likeliest = score.logprobs[same].topk(2).values
    return float(likeliest[0] - likeliest[1])
