"""Scores against values worked out by hand, and against those of the independent implementation."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypic_eval.metrics import exact_match, f1, first_token_kl, rouge_l

F1_EM = {  # answer, references, F1, EM
    "equal but for case, article, punctuation": ("The Eiffel Tower!", ["eiffel tower"], 1.0, 1.0),
    "two of three words, two of two": (
        "eiffel tower paris",
        ["Eiffel Tower"],
        2 * (2 / 3) * 1 / (2 / 3 + 1),
        0.0,
    ),
    "one word common": ("red house", ["red car"], 0.5, 0.0),
    "a word counts as often as both have it": ("no no no", ["no no yes"], 2 / 3, 0.0),
    "nothing common": ("Rome", ["Paris"], 0.0, 0.0),
    "the best of the references": ("Rome", ["Paris", "Rome"], 1.0, 1.0),
    "yes counts alone only": ("yes it is", ["yes"], 0.0, 0.0),
    "yes and yes": ("Yes.", ["yes"], 1.0, 1.0),
    "yes against no": ("yes", ["no"], 0.0, 0.0),
    "empty answer": ("", ["Paris"], 0.0, 0.0),
    "only an article": ("the", ["Paris"], 0.0, 0.0),
    "hyphens join words": ("U-20", ["u20"], 1.0, 1.0),
}


@pytest.mark.parametrize("answer, references, wanted, match", F1_EM.values(), ids=F1_EM)
def test_f1_and_exact_match(answer: str, references: list[str], wanted: float, match: float) -> None:
    assert f1(answer, references) == pytest.approx(wanted, abs=1e-12)
    assert exact_match(answer, references) == match


ROUGE_L = {  # answer, reference, F-measure
    "equal": ("police killed the gunman", "Police killed the gunman.", 1.0),
    # Lin 2004, section 3: LCS "police the gunman" of 4 and 4 tokens, then "the gunman" only.
    "in order": ("police kill the gunman", "police killed the gunman", 3 / 4),
    "out of order": ("the gunman kill police", "police killed the gunman", 2 / 4),
    "precision and recall differ": ("a b c d e f", "b d", 2 * (2 / 6) * 1 / (2 / 6 + 1)),
    "a token used once": ("a a a", "a b", 2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2)),
    "line breaks and punctuation only separate": ("a-b,\nc", "a b c", 1.0),
    "nothing common": ("a", "b", 0.0),
    "empty answer": ("", "a", 0.0),
    "nothing to compare": ("...", "!", 0.0),
}


@pytest.mark.parametrize("answer, reference, wanted", ROUGE_L.values(), ids=ROUGE_L)
def test_rouge_l(answer: str, reference: str, wanted: float) -> None:
    assert rouge_l(answer, [reference]) == pytest.approx(wanted, abs=1e-12)
    assert rouge_l(reference, [answer]) == pytest.approx(wanted, abs=1e-12)


def test_f1_is_that_of_the_reference(few: Path, reference_few: Path) -> None:
    rows = [json.loads(line) for line in few.read_text().splitlines()]
    answers = {row["id"]: row["answers"] for row in rows}
    for row in map(json.loads, reference_few.read_text().splitlines()):
        assert f1(row["answer"], answers[row["id"]]) == pytest.approx(row["f1"], abs=1e-4)


HALF, QUARTER = math.log(1 / 2), math.log(1 / 4)
KL = {  # full, mode, KL(full || mode)
    "equal": ([HALF, HALF], [HALF, HALF], 0.0),
    "by hand": ([HALF, QUARTER, QUARTER], [QUARTER, HALF, QUARTER], 0.25 * math.log(2)),
    "the other way round is another number": ([0.0, -50.0], [HALF, HALF], math.log(2)),
    "ruled out by full": ([0.0, -math.inf], [HALF, HALF], math.log(2)),
    "logits are normalised": ([3 + HALF, 3 + HALF], [HALF - 7, HALF - 7], 0.0),
    "ruled out by the mode": ([HALF, HALF], [0.0, -math.inf], math.inf),
}


@pytest.mark.parametrize("full, mode, wanted", KL.values(), ids=KL)
def test_first_token_kl(full: list[float], mode: list[float], wanted: float) -> None:
    assert first_token_kl(full, mode) == pytest.approx(wanted, abs=1e-12)


def test_kl_is_computed_in_float64() -> None:
    random = np.random.default_rng(0)
    full = random.normal(size=50_000).astype(np.float32)
    assert 0 <= first_token_kl(full, full + np.float32(1e-3) * random.normal(size=50_000).astype(np.float32)) < 1e-5


def test_kl_refuses_different_vocabularies() -> None:
    with pytest.raises(ValueError, match="2 and 3 tokens"):
        first_token_kl([HALF, HALF], [HALF, QUARTER, QUARTER])
