"""One question asked in one mode: the answer, its scores, its NLL, the first token's KL to full recompute."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hypic_eval import kv_only
from hypic_eval.machine import commit, device_name, versions
from hypic_eval.metrics import first_token_kl
from hypic_eval.modes import FULL, NONE, SELECTIVE, Mode
from hypic_eval.rows import RowFile, row_key
from hypic_eval.task import Question, Task
from hypic_rag.errors import ContextTooLong
from hypic_rag.prompt import Prompt
from hypic_rag.rag.prompting import prompt_over

if TYPE_CHECKING:
    from hypic_rag.engine import Score, SegmentEngine

VERSION = 2
"""Raised whenever a change to this file alters any figure; rows of other versions are measured again."""

TEXTS = ("task", "id", "mode", "answer", "model", "commit", "machine", "date")
NUMBERS = (
    "nll", "kl", "first_token", "top2_gap", "ttft_ms", "prompt_tokens", "computed_tokens", "n_documents", "n_dropped",
)  # fmt: skip
"""Fields of every row, beside the task's scores."""


@dataclass(frozen=True)
class MeasuredQuestion:
    """A question as the model sees it, after documents beyond the context were dropped from the end.

    answer_ids: the first right answer and the token that closes it; the NLL is the mean over all of them.
    about: what else its rows tell: what was retrieved, where a sweep has it.
    refusal: what the product answers without asking the model, as nothing was found; "" where it asks.
    """

    task: Task
    question: Question
    prompt: Prompt
    n_dropped: int
    answer_ids: tuple[int, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    refusal: str = ""


def ask(engine: "SegmentEngine", task: Task, question: Question) -> MeasuredQuestion:
    """Build the question's prompt, with room left in the context for the answer generated and for the right one.

    Raises ContextTooLong if the question and its first document do not fit.
    """
    answer_ids = right_answer(engine, question)
    n_answer = max(task.max_new_tokens, len(answer_ids))
    try:
        prompt, n_dropped = prompt_over(engine, question.text, question.documents, n_answer)
    except ContextTooLong as error:
        raise ContextTooLong(f"question {question.id}: {error}. Take the row out, or name another --model") from error
    return MeasuredQuestion(task, question, prompt, n_dropped, answer_ids)


def right_answer(engine: "SegmentEngine", question: Question) -> tuple[int, ...]:
    """Encode the first right answer, with the token that closes it."""
    form = engine.format
    return (*form.encode(question.answers[0]), *form.answer_end)


def measured_key(engine: "SegmentEngine", asked: MeasuredQuestion, mode: Mode) -> str:
    """Make the key of a row: the exact prompt, task, mode, model, and all that shapes a cached entry."""
    entry = engine.segment_key(asked.prompt.token_ids[:1], kind="leading").fields()
    return row_key(
        {
            "measure": VERSION,
            "task": [asked.task.name, asked.task.version, asked.task.max_new_tokens],
            "mode": str(mode),
            "place": [asked.about.get("axis"), asked.about.get("x")],
            "prompt": sha256(repr([(part.kind, tuple(part.ids)) for part in asked.prompt.parts]).encode()).hexdigest(),
            "answers": asked.question.answers,
            "answer_ids": asked.answer_ids,
            "id": asked.question.id,
            "model": engine.fingerprint,
            "entry": entry,
            **({"refusal": asked.refusal} if asked.refusal else {}),
        }
    )


def measure_all(
    engine: "SegmentEngine",
    questions: Sequence[MeasuredQuestion],
    modes: Sequence[Mode],
    rows: RowFile,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Mode, list[dict[str, Any]]]:
    """Measure rows of every question in every mode, in the questions' order; what ``rows`` holds is not run again.

    on_progress: called with rows done and rows in all.
    A question's segments leave the engine's cache when it is done.
    """
    total, done = len(questions) * len(modes), 0
    measured: dict[Mode, list[dict[str, Any]]] = {mode: [] for mode in modes}
    for asked in questions:
        for mode, row in measure_question(engine, asked, modes, rows):
            measured[mode].append(row)
            done += 1
            on_progress(done, total)
    return measured


def measure_question(
    engine: "SegmentEngine", asked: MeasuredQuestion, modes: Sequence[Mode], rows: RowFile
) -> Iterator[tuple[Mode, dict[str, Any]]]:
    """Yield the rows of one question, from ``rows`` where they are there, else measured and appended."""
    full_logprobs: NDArray[np.float64] | None = None
    try:
        # Full first: the others are compared with its distribution.
        for mode in sorted(modes, key=lambda mode: mode != FULL):
            key = measured_key(engine, asked, mode)
            row = rows.get(key)
            if row is None or not _is_whole(row, asked.task):
                if full_logprobs is None and mode != FULL:
                    full_logprobs = logprobs(engine.score(asked.prompt, asked.answer_ids, policy=FULL.policy))
                row, own_logprobs = measure(engine, asked, mode, full_logprobs)
                full_logprobs = own_logprobs if full_logprobs is None else full_logprobs
                rows.append(key, row)
            yield mode, row
    finally:
        forget(engine, asked, modes)


def measure(
    engine: "SegmentEngine", asked: MeasuredQuestion, mode: Mode, full_logprobs: NDArray[np.float64] | None
) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """Measure one row, with its first-token log-probabilities. ``full_logprobs`` None: this is full recompute.

    What the mode caches is made before, so that ``ttft_ms`` and ``computed_tokens`` are those of a warm cache.
    """
    from hypic_rag.engine import Sampling

    prompt, policy = mode.prompt(asked.prompt), mode.policy
    reading = warmed(engine, prompt, mode)
    sampling = Sampling(max_new_tokens=asked.task.max_new_tokens)
    generation = reading.generate(prompt, sampling, policy=policy)
    score = reading.score(prompt, asked.answer_ids, policy=policy)
    first = logprobs(score)
    second_best, best = np.partition(first, -2)[-2:]
    answer = asked.task.clean(generation.text if mode == NONE else asked.refusal or generation.text)
    row = {
        "task": asked.task.name,
        "id": asked.question.id,
        "mode": str(mode),
        "answer": answer,
        **{name: function(answer, asked.question.answers) for name, function in asked.task.scores.items()},
        "nll": score.nll,
        "kl": 0.0 if full_logprobs is None else first_token_kl(full_logprobs, first),
        "first_token": int(first.argmax()),
        "top2_gap": float(best - second_best),
        "ttft_ms": generation.report.ttft_ms,
        "prompt_tokens": prompt.n_tokens,
        "computed_tokens": generation.report.computed_tokens,
        "n_documents": 0 if mode == NONE else len(asked.prompt.documents),
        "n_dropped": asked.n_dropped,
        "policy": {**asdict(policy), "isolation_prefix": list(policy.isolation_prefix)},
        "model": engine.fingerprint,
        "commit": commit(),
        "versions": versions(),
        "machine": device_name(engine.device),
        **asked.about,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return row, first


def warmed(engine: "SegmentEngine", prompt: Prompt, mode: Mode) -> "SegmentEngine":
    """Make what the mode caches of a prompt, and return the engine that answers from it."""
    if mode.policy.mode == "full":
        return engine
    if mode.name == "kv_only":
        engine = kv_only.view(engine, prompt.documents)
    else:
        engine.prefill([ids for ids in prompt.documents if len(ids) > mode.seam_tokens], policy=mode.policy)
    leading = [part.ids for part in prompt.parts if part.kind == "leading"]
    engine.prefill(leading, kind="leading", policy=mode.policy)
    if mode.name == SELECTIVE:
        from hypic_eval import selective

        return selective.view(engine, mode.percent)
    return engine


def _is_whole(row: dict[str, Any], task: Task) -> bool:
    """Return whether a row has what ``measure`` gives: a line of a file that was damaged may not."""
    numbers = [row.get(name) for name in (*NUMBERS, *task.scores)]
    return all(isinstance(value, int | float) for value in numbers) and all(
        isinstance(row.get(name), str) for name in TEXTS
    )


def logprobs(score: "Score") -> NDArray[np.float64]:
    return np.asarray(score.first_logprobs.cpu(), dtype=np.float64)


def forget(engine: "SegmentEngine", asked: MeasuredQuestion, modes: Sequence[Mode]) -> None:
    """Drop the question's document segments, of every mode, from all tiers of the cache."""
    documents = asked.prompt.documents
    keys = [
        engine.segment_key(ids, kind="document", policy=mode.policy)
        for mode in modes
        if mode.caches_documents
        for ids in documents
        if len(ids) > mode.seam_tokens
    ]
    if any(mode.name == "kv_only" for mode in modes):
        keys += kv_only.keys(engine, documents)
    engine.cache.discard({key.digest for key in keys})
