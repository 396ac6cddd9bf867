"""Plain use: a folder of everyday files ingested, everyday questions asked, answers checked by containment."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

from hypic_eval.intervals import N_RESAMPLES, SEED, mean, paired_difference
from hypic_eval.machine import commit, describe_machine
from hypic_eval.modes import FULL, Mode
from hypic_eval.results import ResultRow, Results
from hypic_eval.retrieved import searching
from hypic_eval.task import read_rows
from hypic_rag.errors import BadInput

if TYPE_CHECKING:
    from hypic_rag.config import Settings
    from hypic_rag.engine import SegmentEngine
    from hypic_rag.rag import Passage
    from hypic_rag.retrieval import Store

VERSION = 1
"""Raised whenever a change to this file or to the bundled set alters any figure."""
DOCUMENTS, QUESTIONS = "documents", "questions.jsonl"
REFUSALS = (
    "do not say",
    "does not say",
    "do not mention",
    "does not mention",
    "not mentioned",
    "not stated",
    "not specified",
    "not provided",
    "not given",
    "no information",
    "cannot find",
    "could not find",
    "do not know",
    "cannot be answered",
)
"""What an answer says where the documents hold none. Anywhere else it makes the answer wrong."""


@dataclass(frozen=True)
class PlainQuestion:
    """document: the file that has the answer, evidence: texts one of which stands beside it there; "" and none where
    no document has it, and the right answer is to say so."""

    id: str
    text: str
    answers: tuple[str, ...]
    document: str = ""
    evidence: tuple[str, ...] = ()

    def is_right(self, answer: str) -> bool:
        """Return whether one of the answers stands in it, word by word; for a question without any, whether it says
        so."""
        says_nothing = contains(answer, REFUSALS)
        return says_nothing if not self.document else contains(answer, self.answers) and not says_nothing

    def rank(self, passages: Sequence["Passage"]) -> int | None:
        """Find the first passage of the right document that has the evidence: its place, from 0, or None."""
        for place, passage in enumerate(passages):
            if Path(passage.metadata["path"]).name == self.document and contains(passage.text, self.evidence):
                return place
        return None


@dataclass(frozen=True)
class PlainAnswer:
    """One question answered. rank: the evidence's place among the passages in the prompt's order, from 0."""

    question: PlainQuestion
    mode: Mode
    text: str
    n_tokens: int
    finish_reason: str
    rank: int | None
    n_passages: int

    @property
    def is_right(self) -> bool:
        return self.question.is_right(self.text)


def read_set(folder: Path) -> list[PlainQuestion]:
    """Read the questions of a set: a folder with ``documents/`` and ``questions.jsonl``, rows ``{id, question, answers,
    document, evidence}``, the last two left out where no document has the answer.

    Raises BadInput.
    """
    if not (folder / DOCUMENTS).is_dir():
        raise BadInput(f"{folder} is no set of plain questions: it has no folder {DOCUMENTS}/")
    questions = []
    for number, row in enumerate(read_rows(folder / QUESTIONS), start=1):
        try:
            one = PlainQuestion(
                str(row["id"]),
                str(row["question"]),
                tuple(row["answers"]),
                str(row.get("document", "")),
                tuple(row.get("evidence", row["answers"])),
            )
        except (KeyError, TypeError) as error:
            raise BadInput(f"{folder / QUESTIONS}, line {number}: no question of a set: {error!r}") from error
        if one.document and not (folder / DOCUMENTS / one.document).is_file():
            raise BadInput(f"{folder / QUESTIONS}, line {number}: there is no document {one.document!r}")
        if bool(one.document) != bool(one.answers):
            raise BadInput(f"{folder / QUESTIONS}, line {number}: give a document and its answers, or neither")
        questions.append(one)
    return questions


def ingest(engine: "SegmentEngine", documents: Path, store_folder: Path, settings: "Settings") -> "Store":
    """Make a store of the set's documents, as ``hypic-rag ingest`` does; files that are not read are left out."""
    from hypic_rag.retrieval import Store, plan_ingest, run_ingest

    store = Store.create_or_open(store_folder, engine, chunk_tokens=settings.chunk_tokens)
    run_ingest(plan_ingest(store, engine, [documents]))
    return store


def answer_all(
    engine: "SegmentEngine", store: "Store", questions: Sequence[PlainQuestion], mode: Mode, settings: "Settings"
) -> Iterator[PlainAnswer]:
    """Ask each question on its own, as ``hypic-rag ask`` does."""
    from hypic_rag.engine import Sampling
    from hypic_rag.rag import DEFAULT_ORDER, Order, SearchOptions, Session, StoreSearch

    sampling = Sampling(temperature=settings.temperature, top_p=settings.top_p, seed=settings.seed)
    search, order = StoreSearch(store, SearchOptions.of(settings)), cast(Order, settings.order or DEFAULT_ORDER)
    for question in questions:
        session = Session(
            engine, search, mode.policy, sampling, settings.top_k, order=order, max_tokens=settings.max_new_tokens
        )
        for _ in session.ask(question.text):
            pass
        last, done = session.last, session.last.generation
        yield PlainAnswer(
            question=question,
            mode=mode,
            text=last.text,
            n_tokens=len(done.token_ids) if done else 0,
            finish_reason=done.finish_reason if done else "nothing found",
            rank=question.rank(last.sources),
            n_passages=len(last.sources),
        )


def run_plain_use(
    engine: "SegmentEngine",
    folder: Path,
    modes: Sequence[Mode],
    settings: "Settings",
    store_folder: Path,
    limit: int | None = None,
    on_answer: Callable[[PlainAnswer], None] = lambda answer: None,
) -> Results:
    """Ingest the set in ``folder`` into a new store and answer its questions (the first ``limit``) in every mode."""
    questions = read_set(folder)[:limit]
    answers: dict[Mode, list[PlainAnswer]] = {mode: [] for mode in modes}
    with ingest(engine, folder / DOCUMENTS, store_folder, settings) as store:
        n_documents, n_chunks = store.counts()
        for mode in modes:
            for answer in answer_all(engine, store, questions, mode, settings):
                answers[mode].append(answer)
                on_answer(answer)
    told = {
        "fingerprint": engine.fingerprint,
        "n_documents": n_documents,
        "n_chunks": n_chunks,
        **searching(settings),
        "chunk_tokens": store.manifest.chunk_tokens,
        "max_new_tokens": settings.max_new_tokens,
        "interval": f"95% bootstrap over questions, {N_RESAMPLES} resamples, seed {SEED}",
    }
    rows = summarise(answers, folder.name, engine.model_name, told)
    notes = [f"{folder.name}: {n_documents} documents in {n_chunks} chunks of at most {told['chunk_tokens']} tokens."]
    return Results("plain-use", describe_machine(), rows, notes, details=[*details(answers)])


def summarise(
    answers: Mapping[Mode, Sequence[PlainAnswer]], data: str, model: str, settings: dict[str, Any]
) -> list[ResultRow]:
    """Make rows of each mode's shares, in percent: right, evidence found (of the questions that have some),
    right where found, and the answers that said rightly that there is none."""
    rows = []
    full = answers.get(FULL)
    for mode, given in answers.items():
        answerable = [one for one in given if one.question.document]
        found = [one for one in answerable if one.rank is not None]
        shares: dict[str, list[float]] = {
            "right": [float(one.is_right) for one in given],
            "evidence found": [float(one.rank is not None) for one in answerable],
            "right where found": [float(one.is_right) for one in found],
            "right where none is": [float(one.is_right) for one in given if not one.question.document],
        }
        for metric, values in shares.items():
            if not values:
                continue
            estimate, difference = mean(values), None
            if metric == "right" and full is not None and mode != FULL:
                difference = _percent(paired_difference(values, [float(one.is_right) for one in full]))
            n, percent = len(values), _percent(estimate)
            rows.append(
                ResultRow(
                    "plain use", VERSION, data, n, str(mode), metric, "↑", "%", percent["value"], percent["interval"],
                    model, commit(), settings, difference,
                )
            )  # fmt: skip
        words = fmean(len(words_of(one.text)) for one in given)
        rows.append(
            ResultRow("plain use", VERSION, data, len(given), str(mode), "words an answer", "", "x", words, None,
                      model, commit(), settings)
        )  # fmt: skip
    return rows


def details(answers: Mapping[Mode, Sequence[PlainAnswer]]) -> Iterator[dict[str, Any]]:
    """Yield a row an answer, for people and for later counts."""
    for mode, given in answers.items():
        for one in given:
            yield {
                "mode": str(mode),
                "id": one.question.id,
                "right": one.is_right,
                "evidence": "–" if not one.question.document else "none" if one.rank is None else one.rank + 1,
                "passages": one.n_passages,
                "end": one.finish_reason,
                "question": one.question.text,
                "answer": one.text,
                "accepted": " / ".join(one.question.answers) or "says that there is none",
            }


def contains(text: str, phrases: Sequence[str]) -> bool:
    """Return whether the words of a phrase stand in a row in the text."""
    words = f" {' '.join(words_of(text))} "
    return any(f" {' '.join(words_of(phrase))} " in words for phrase in phrases)


def words_of(text: str) -> list[str]:
    """Return words and numbers in lower case: ``$1,650.00`` is ``1650``, ``34C`` is ``34 c``."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"(?<=\d)\.0+(?![\d.])", "", text)
    return re.findall(r"\d+(?:\.\d+)*|[^\W\d_]+", text)


def _percent(estimate: Any) -> dict[str, Any]:
    """Turn an Estimate of shares into percent."""
    bounds = estimate.interval
    return {"value": 100 * estimate.value, "interval": bounds and (100 * bounds[0], 100 * bounds[1])}
