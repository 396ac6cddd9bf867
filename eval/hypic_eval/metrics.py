"""Scores of one answer: SQuAD F1 and EM, ROUGE-L, and the KL divergence of two next-token distributions."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hypic_eval.intervals import Estimate
from hypic_rag.errors import BadInput

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Metric:
    """How a metric is named and read: ``arrow`` is the good way; ``scale * value`` is shown, in ``unit``."""

    name: str
    title: str
    arrow: str
    unit: str
    scale: float = 1.0

    def shown(self, estimate: Estimate) -> dict[str, Any]:
        """Return value and interval in the metric's unit."""
        bounds = estimate.interval and tuple(self.scale * bound for bound in estimate.interval)
        return {"value": self.scale * estimate.value, "interval": bounds}


METRICS = {
    metric.name: metric
    for metric in (
        Metric("f1", "F1", "↑", "%", 100),
        Metric("em", "EM", "↑", "%", 100),
        Metric("rouge_l", "ROUGE-L", "↑", "%", 100),
        Metric("nll", "answer NLL", "↓", "nats"),
        Metric("kl", "first-token KL to full", "↓", "nats"),
    )
}


def normalise(text: str) -> list[str]:
    """Split ``text`` into words as SQuAD compares them: lower case, no punctuation, no articles."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def exact_match(answer: str, references: Iterable[str]) -> float:
    """Score 1.0 if the normalised answer equals one of the references, else 0.0. Source: SQuAD evaluate-v1.1."""
    return best(lambda reference: float(normalise(answer) == normalise(reference)), references)


def f1(answer: str, references: Iterable[str]) -> float:
    """Score the word overlap with the nearest reference, 0 to 1. Source: HotpotQA hotpot_evaluate_v1.py.

    As there, an answer or reference of "yes", "no" or "noanswer" counts only when both are equal.
    """
    return best(lambda reference: word_f1(normalise(answer), normalise(reference)), references)


def rouge_l(answer: str, references: Iterable[str]) -> float:
    """Return the ROUGE-L F-measure with the nearest reference, 0 to 1. Source: Lin 2004; rouge-score, no stemming.

    Tokens are runs of a-z and 0-9 of the lower-cased text. Cost: product of the two lengths.
    """
    scorer = _rouge_scorer()
    return best(lambda reference: float(scorer.score(reference, answer)["rougeL"].fmeasure), references)


@cache
def _rouge_scorer() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise BadInput(f"ROUGE-L needs {error.name}: pip install 'hypic-rag[eval]'") from error
    return RougeScorer(["rougeL"], use_stemmer=False)


def first_token_kl(full: ArrayLike, mode: ArrayLike) -> float:
    """Compute KL(full || mode) in nats between two next-token distributions, in float64.

    full, mode: (vocab,) log-probabilities; both are normalised again in float64, so logits do as well.
    A token that ``full`` rules out (-inf) adds nothing; one that only ``mode`` rules out gives inf.
    """
    log_p, log_q = log_softmax(full), log_softmax(mode)
    if log_p.shape != log_q.shape:
        raise ValueError(f"distributions over {log_p.size} and {log_q.size} tokens cannot be compared")
    p = np.exp(log_p)
    possible = p > 0
    return float(np.sum(p[possible] * (log_p[possible] - log_q[possible])))


def log_softmax(logits: ArrayLike) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = np.asarray(logits, dtype=np.float64)
    shifted = shifted - shifted.max()
    return shifted - float(np.log(np.exp(shifted).sum()))


def best(score: Callable[[str], float], references: Iterable[str]) -> float:
    return max(score(reference) for reference in references)


def word_f1(ours: Sequence[str], theirs: Sequence[str]) -> float:
    verdicts = (["yes"], ["no"], ["noanswer"])
    if ours != theirs and (ours in verdicts or theirs in verdicts):
        return 0.0
    return harmonic_mean(sum((Counter(ours) & Counter(theirs)).values()), len(ours), len(theirs))


def harmonic_mean(n_common: int, n_ours: int, n_theirs: int) -> float:
    """Compute the F-measure of precision ``n_common / n_ours`` and recall ``n_common / n_theirs``."""
    return 2 * n_common / (n_ours + n_theirs) if n_common else 0.0
