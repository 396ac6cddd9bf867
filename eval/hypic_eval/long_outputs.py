"""Long answers from segments stored by a codec: where they leave those from the entries as computed, how likely full
recompute's text is, and whether they go round in circles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hypic_eval.codecs import NONE, ByCodec, same_entries, with_codec
from hypic_eval.intervals import HOW, mean, median, paired_difference
from hypic_eval.machine import commit, describe_machine, device_name, versions
from hypic_eval.measure import MeasuredQuestion, ask, measured_key
from hypic_eval.modes import FULL, Mode
from hypic_eval.results import ResultRow, Results, commits
from hypic_eval.rows import RowFile, row_key
from hypic_eval.summary import dates, dropped_documents, machines, result_row
from hypic_eval.task import read_questions

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine

VERSION = 1
"""Raised whenever a change to this file or to a codec alters any figure."""
LOOP = "repetition"  # the finish reason of an answer that goes round in circles, which ends it


def run_long_outputs(
    engine: "SegmentEngine",
    data: Path,
    codecs: Sequence[str],
    mode: Mode,
    n_tokens: int,
    rows: RowFile,
    limit: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    ignore_end: bool = False,
) -> Results:
    """Answer the questions of a file (the first ``limit``) from the same entries stored by every codec, greedily and
    with at most ``n_tokens``.

    engine: of codec "none", which is measured too. ignore_end: go on behind an end token, as a model that answers
    shortly would show nothing of long answers else. Raises BadInput for an unknown codec.
    """
    engine = endless(engine) if ignore_end else engine
    engines = {NONE: engine} | {name: with_codec(engine, name) for name in codecs}
    task, questions = read_questions(data, limit=limit)
    longer = replace(task, max_new_tokens=n_tokens)
    asked = [ask(engine, longer, question) for question in questions]
    measured: ByCodec = {name: [] for name in engines}
    for done, one in enumerate(asked, start=1):
        for name, row in measure_long(engines, one, mode, rows, ignore_end).items():
            measured[name].append(row)
        on_progress(done, len(asked))
    notes = [
        f"Documents are assembled as {mode}; answers are greedy, of at most {n_tokens} tokens. First divergence: the "
        "first token that is not the one from the entries as computed (codec none); of an answer that has none, its "
        "length. Full's text: the answer of full recompute. An answer that goes round in circles is ended."
        + (" End tokens are gone past." if ignore_end else ""),
        dropped_documents(data.stem, asked, engine.context_length),
    ]
    return Results("codecs", describe_machine(), summarise(engine, data.stem, longer.name, mode, measured), notes)


def measure_long(
    engines: Mapping[str, "SegmentEngine"],
    asked: MeasuredQuestion,
    mode: Mode,
    rows: RowFile,
    ignore_end: bool = False,
) -> dict[str, dict[str, Any]]:
    """Answer by every codec, or take it from ``rows`` where all are there. ignore_end: of the engines."""
    from hypic_rag.engine import Sampling

    keys = {
        name: row_key({"long outputs": VERSION, "end": ignore_end, "measured": measured_key(engine, asked, mode)})
        for name, engine in engines.items()
    }
    found = {name: row for name, key in keys.items() if (row := rows.get(key)) is not None}
    if len(found) == len(engines):
        return found
    sampling = Sampling(max_new_tokens=asked.task.max_new_tokens)
    full = engines[NONE].generate(asked.prompt, sampling, policy=FULL.policy)
    text = full.token_ids + (engines[NONE].format.answer_end if full.finish_reason == "stop" else ())
    measured: dict[str, dict[str, Any]] = {}
    with same_entries(engines, asked, mode):
        for name, engine in engines.items():
            answer = engine.generate(asked.prompt, sampling, policy=mode.policy)
            measured[name] = {
                "task": asked.task.name,
                "id": asked.question.id,
                "mode": str(mode),
                "codec": name,
                "answer": answer.text,
                "token_ids": list(answer.token_ids),
                "finish_reason": answer.finish_reason,
                "ignore_end": ignore_end,
                "nll_of_full": engine.score(asked.prompt, text, policy=mode.policy).nll,
                "tokens_of_full": len(text),
                "model": engine.fingerprint,
                "commit": commit(),
                "versions": versions(),
                "machine": device_name(engine.device),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            if name not in found:
                rows.append(keys[name], measured[name])
    return measured


def endless(engine: "SegmentEngine") -> "SegmentEngine":
    """Return the same engine, to which no token ends an answer."""
    other = engine.within(engine.namespace)
    other.__dict__["_ends"] = frozenset()
    return other


def first_divergence(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Return the place of the first token that differs, or is there in one alone; None where they are equal."""
    for i, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return i
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def summarise(engine: "SegmentEngine", data: str, task: str, mode: Mode, measured: ByCodec) -> list[ResultRow]:
    """Make the rows of each codec."""
    result: list[ResultRow] = []
    as_computed = measured[NONE]
    for codec, rows in measured.items():
        known: dict[str, Any] = {
            "task": f"{task}, long, by codec",
            "version": VERSION,
            "data": data,
            "n": len(rows),
            "mode": codec,
            "model": engine.model_name,
            "commit": commits(rows),
            "settings": {
                "fingerprint": engine.fingerprint,
                "mode": str(mode),
                "dates": dates(rows),
                "machines": machines(rows),
                "interval": f"{HOW}; quartiles of medians",
            },
        }
        nll = [row["nll_of_full"] for row in rows]
        own, length = mean(nll), median([float(len(row["token_ids"])) for row in rows])
        circles = 100 * fmean(row["finish_reason"] == LOOP for row in rows)
        likely = result_row(("NLL of full's text", "↓", "nats"), own.value, own.interval, known)
        if codec != NONE:
            delta = paired_difference(nll, [row["nll_of_full"] for row in as_computed])
            likely = replace(likely, to_full={"value": delta.value, "interval": delta.interval})
        result.append(likely)
        if codec != NONE:
            pairs = [(row["token_ids"], other["token_ids"]) for row, other in zip(rows, as_computed, strict=True)]
            places = [first_divergence(*pair) for pair in pairs]
            until = median([float(len(pair[0]) if i is None else i) for i, pair in zip(places, pairs, strict=True)])
            same = 100 * fmean(place is None for place in places)
            result.append(result_row(("first divergence", "↑", "tokens"), until.value, until.interval, known))
            result.append(result_row(("no divergence", "↑", "%"), same, None, known))
        result.append(result_row(("ends in circles", "↓", "%"), circles, None, known))
        result.append(result_row(("length", "", "tokens"), length.value, length.interval, known))
    return result
