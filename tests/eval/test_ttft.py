"""The timing run over an engine without a model: each way takes the path that it claims."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypic_eval.modes import documents_live
from hypic_eval.task import Question, read_questions
from hypic_eval.ttft import WAYS, WrongPath, one_round, run_ttft
from hypic_eval.workloads import long_segments, ten_documents

from hypic_rag.errors import BadInput
from hypic_rag.prompt import Prompt, PromptFormat

Make = Callable[..., Any]


def plain(token_ids: Any) -> int:
    return 0


def prompt(form: PromptFormat, few: Path) -> Prompt:
    return ten_documents(form, read_questions(few)[1], 1).prompts[0]


def test_each_way_computes_what_it_says(make_engine: Make, form: PromptFormat, few: Path, tmp_path: Path) -> None:
    asked = prompt(form, few)
    n_documents, n_live = sum(map(len, asked.documents)), len(asked.parts[-1].ids)
    sample = one_round(make_engine(tmp_path), plain, asked)
    assert tuple(sample) == WAYS
    assert {way: sample[way]["tokens"] for way in WAYS} == {
        "ingest": n_documents,
        "warm": n_live,
        "full": asked.n_tokens,
        "plain": asked.n_tokens,
        "prefix_only": n_documents + n_live,
        "warm_disk": n_live,
        "cold": n_documents + n_live,
    }


def test_a_cache_too_small_is_no_measurement(make_engine: Make, form: PromptFormat, few: Path) -> None:
    engine = make_engine()  # no disk: warm_disk cannot be warm
    with pytest.raises(WrongPath, match="should have come from disk"):
        one_round(engine, plain, prompt(form, few))


def test_ratios_and_goals(make_engine: Make, form: PromptFormat, few: Path, tmp_path: Path) -> None:
    workload = ten_documents(form, read_questions(few)[1], 3)
    results = run_ttft(make_engine(tmp_path), plain, [workload], n=3)
    rows = {(row.mode, row.metric): row for row in results.rows}
    warm = rows["warm", "times faster than full"]
    assert (warm.value, warm.interval, warm.goal, warm.n) == (25.0, (25.0, 25.0), 8, 3)
    assert not warm.misses_goal
    assert rows["full", "time relative to plain"].goal == 1.2
    assert rows["ingest", "rate relative to full"].goal == 0.8
    assert rows["full", "rate"].unit == "tokens/s"
    assert len(results.samples["10 documents"]) == 3


def test_segments_have_exactly_512_tokens(form: PromptFormat, few: Path) -> None:
    [asked] = long_segments(form, read_questions(few)[1]).prompts
    assert [len(ids) for ids in asked.documents] == [512] * 8
    assert len(set(asked.documents)) == 8
    assert asked.parts[0].ids == form.leading()


def test_the_same_tokens_with_documents_live(form: PromptFormat, few: Path) -> None:
    asked = prompt(form, few)
    live = documents_live(asked)
    assert [part.kind for part in live.parts] == ["leading", "live"]
    assert live.token_ids == asked.token_ids


def test_too_few_documents_are_told(form: PromptFormat) -> None:
    short = Question("1", "Where?", (("T", " a" * 507),), ("Here",))
    assert len(form.document(" a" * 507, "T")) == 512
    with pytest.raises(BadInput, match="--data"):
        ten_documents(form, [short], 1)
    with pytest.raises(BadInput, match="--data"):
        long_segments(form, [short])
    with pytest.raises(BadInput, match="--data"):
        long_segments(form, [Question("1", "Where?", (), ("Here",))])
