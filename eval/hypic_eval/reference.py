"""Our answers held against those of an independent implementation, question by question."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypic_eval.machine import describe_machine
from hypic_eval.measure import MeasuredQuestion, ask, measure_all
from hypic_eval.modes import Mode, parse_mode
from hypic_eval.results import ResultRow, Results, commits
from hypic_eval.rows import RowFile
from hypic_eval.task import read_questions, read_rows
from hypic_rag.errors import BadInput

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine

EQUAL_ANSWERS_GOAL = 90.0
"""Percent of the answers, in every mode."""
KL_GOAL = 0.02
"""Nats between our mean first-token KL and the reference's, in every mode."""
GAP_BOUNDS = {"float32": 0.01, "bfloat16": 0.5, "float16": 0.1}
"""Nats between the two likeliest first tokens, ours or the reference's, below which rounding may exchange them; by what
we compute in. In float32 gaps move by 1e-4. In bfloat16 logits of 16 and more come in steps of 1/8, and gaps moved by
up to 0.19 (n=4); float16 has eight times finer steps.
"""
FIELDS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "mode": (str,),
    "seam_tokens": (int, type(None)),
    "prompt_tokens": (int,),
    "answer": (str,),
    "answer_nll": (int, float),
    "first_token": (int,),
    "top2_gap": (int, float),
    "first_token_kl": (int, float),
}

ByMode = dict[Mode, dict[str, dict[str, Any]]]
Pair = tuple[dict[str, Any], dict[str, Any]]
"""A row of ours and the reference's of the same question and mode."""


def run_reference(
    engine: "SegmentEngine",
    data: Path,
    reference: Path,
    rows: RowFile,
    limit: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Results:
    """Run the reference's questions (the first ``limit``) in its modes; ``missed_goals`` tells what failed.

    data: jsonl of questions that holds every id of the reference.
    reference: jsonl of ``{id, mode, seam_tokens, prompt_tokens, answer, answer_nll, first_token, top2_gap,
    first_token_kl}``.
    """
    theirs = read_reference(reference)
    ids = list(dict.fromkeys(id for by_id in theirs.values() for id in by_id))[:limit]
    task, questions = read_questions(data)
    known = {question.id: question for question in questions}
    if missing := [id for id in ids if id not in known]:
        raise BadInput(
            f"{data} has no question {missing[0]}, which {reference} answers. Give the data that it was made from."
        )
    asked = [ask(engine, task, known[id]) for id in ids]
    ours = measure_all(engine, asked, list(theirs), rows, on_progress)
    return Results("reference", describe_machine(), *compare(engine, reference.stem, asked, ours, theirs))


def read_reference(path: Path) -> ByMode:
    """Read reference rows by mode and question. Raises BadInput where a field or a row is missing."""
    theirs: ByMode = {}
    for number, row in enumerate(read_rows(path), start=1):
        if missing := [name for name in FIELDS if name not in row]:
            raise BadInput(f"{path}, line {number}: a reference row needs {', '.join(missing)}")
        for name, kinds in FIELDS.items():
            if not isinstance(row[name], kinds) or isinstance(row[name], bool):
                raise BadInput(f"{path}, line {number}: its {name} is {str(row[name])[:80]!r}. Take the row out")
        spelling = row["mode"] if row["mode"] == "full" else f"{row['mode']}:w={row['seam_tokens']}"
        theirs.setdefault(parse_mode(spelling), {})[row["id"]] = row
    ids = next(iter(theirs.values())).keys()
    for mode, by_id in theirs.items():
        if by_id.keys() != ids:
            raise BadInput(f"{path}: mode {mode} answers {len(by_id)} questions, and the first mode {len(ids)} others")
    return theirs


def compare(
    engine: "SegmentEngine",
    data: str,
    asked: Sequence[MeasuredQuestion],
    ours: Mapping[Mode, list[dict[str, Any]]],
    theirs: ByMode,
) -> tuple[list[ResultRow], list[str], list[dict[str, Any]]]:
    """Return result rows, notes, and one detail for every answer that differs."""
    task = asked[0].task
    dtype = engine.segment_key(asked[0].prompt.token_ids[:1], kind="leading").compute_dtype
    result: list[ResultRow] = []
    details: list[dict[str, Any]] = []
    n_close = n_far = 0
    for mode, rows in ours.items():
        pairs = [(row, theirs[mode][row["id"]]) for row in rows]
        close, far = exchanged(pairs, GAP_BOUNDS[dtype])
        n_close, n_far = n_close + close, n_far + far
        result += [
            ResultRow(
                task=f"{task.name} against reference",
                version=task.version,
                data=data,
                n=len(pairs),
                mode=str(mode),
                metric=metric,
                arrow=arrow,
                unit=unit,
                value=value,
                interval=None,
                model=engine.model_name,
                commit=commits(rows),
                settings={"fingerprint": engine.fingerprint, "max_new_tokens": task.max_new_tokens},
                goal=goal,
            )
            for metric, arrow, unit, value, goal in agreement(pairs, far)
        ]
        details += [differing(mode, row, other) for row, other in pairs if row["answer"] != other["answer"]]
    n_answers = len(asked) * len(ours)
    notes = [
        f"{n_answers - len(details)} of {n_answers} answers are equal to the reference's.",
        f"First tokens that differ where the two likeliest are within {GAP_BOUNDS[dtype]:g} nats (rounding in {dtype} "
        f"may exchange them): {n_close} of {n_answers}; where they are further apart: {n_far}.",
    ]
    return result, notes, details


def exchanged(pairs: Sequence[Pair], bound: float) -> tuple[int, int]:
    """Count the first tokens that differ with a gap between the two likeliest below
    ``bound``, ours or theirs; and above."""
    differ = [min(row["top2_gap"], other["top2_gap"]) for row, other in pairs
              if row["first_token"] != other["first_token"]]  # fmt: skip
    n_close = sum(gap < bound for gap in differ)
    return n_close, len(differ) - n_close


def agreement(pairs: Sequence[Pair], n_far: int) -> list[tuple[str, str, str, float, float | None]]:
    """List (metric, arrow, unit, value, goal) of one mode. n_far: first tokens that differ beyond the bound."""

    def same(name: str) -> float:
        return 100 * sum(bool(row[name] == other[name]) for row, other in pairs) / len(pairs)

    def apart(ours: str, theirs: str) -> float:
        return max(abs(float(row[ours] - other[theirs])) for row, other in pairs)

    our_kl = sum(row["kl"] for row, _ in pairs) / len(pairs)
    their_kl = sum(other["first_token_kl"] for _, other in pairs) / len(pairs)
    return [
        ("same answer", "↑", "%", same("answer"), EQUAL_ANSWERS_GOAL),
        ("same first token", "↑", "%", same("first_token"), None),
        ("first tokens that differ beyond the bound", "↓", "tokens", n_far, 0.0),
        ("first-token KL to full", "", "nats", our_kl, None),
        ("reference KL", "", "nats", their_kl, None),
        ("mean KL apart", "↓", "nats", abs(our_kl - their_kl), KL_GOAL),
        ("largest KL apart", "↓", "nats", apart("kl", "first_token_kl"), None),
        ("largest NLL apart", "↓", "nats", apart("nll", "answer_nll"), None),
        ("same prompt tokens", "↑", "%", same("prompt_tokens"), 100.0),
    ]


def differing(mode: Mode, row: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "question": row["id"],
        "mode": str(mode),
        "answer": row["answer"],
        "reference": other["answer"],
        "reference's first top-2 gap": other["top2_gap"],
        "our first top-2 gap": round(row["top2_gap"], 4),
        "first tokens": f"{row['first_token']}, {other['first_token']}",
    }
