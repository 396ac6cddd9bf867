"""Keys and values alone: what recurrent layers see then, held against models told so in another way."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypic_eval import kv_only
from hypic_eval.measure import MeasuredQuestion, forget, measure, right_answer
from hypic_eval.modes import FULL, parse_mode
from hypic_eval.task import Question, find_task

from hypic_rag.engine import Policy
from hypic_rag.prompt import Prompt

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # tiny

SEAM_0 = Policy(seam_tokens=0)


def prompt_of(n_documents: int = 2) -> Prompt:
    import tiny

    return Prompt.build(tiny.ids(7, 1), [tiny.ids(20, 10 + i) for i in range(n_documents)], tiny.ids(5, 2))


def test_attention_alone_is_seam_0() -> None:
    import tiny

    engine, prompt = tiny.engine("qwen3_5_text", {"layer_types": ["full_attention"] * 4}), prompt_of()
    wanted = engine.score(prompt, (5, 6), policy=SEAM_0)
    found = kv_only.view(engine, prompt.documents).score(prompt, (5, 6), policy=parse_mode("kv_only").policy)
    assert torch.equal(found.logprobs, wanted.logprobs)


def test_recurrent_layers_pass_documents_by() -> None:
    import tiny

    engine, prompt = tiny.engine("qwen3_5_text"), prompt_of()
    policy = parse_mode("kv_only").policy
    found = kv_only.view(engine, prompt.documents).score(prompt, (5, 6), policy=policy)
    for other in (Policy(seam_tokens=0), policy, Policy(seam_tokens=0, compose="last_state"), FULL.policy):
        assert (engine.score(prompt, (5, 6), policy=other).logprobs - found.logprobs).abs().max() > 1e-3, other


def test_a_model_without_attention_sees_no_document() -> None:
    import tiny

    engine, policy = (
        tiny.engine("qwen3_5_text", {"layer_types": ["linear_attention"] * 4}),
        parse_mode("kv_only").policy,
    )
    found = [
        kv_only.view(engine, prompt.documents).score(prompt, (5, 6), policy=policy).logprobs
        for prompt in (prompt_of(1), prompt_of(2))
    ]
    assert torch.equal(*found)
    assert not torch.equal(found[0], engine.score(prompt_of(1), (5, 6), policy=policy).logprobs)


def test_entries_keep_keys_and_values_and_lose_the_rest() -> None:
    import tiny

    engine, prompt = tiny.engine("qwen3_5_text"), prompt_of(1)
    reading = kv_only.view(engine, prompt.documents)
    whole, bare = (
        one.cache.lookup(one.segment_key(prompt.documents[0], policy=SEAM_0)).entry for one in (engine, reading)
    )
    for layer, other in zip(whole.layers, bare.layers, strict=True):
        for name, tensor in layer.tensors.items():
            assert tensor.any()
            assert torch.equal(other.tensors[name], tensor) if name in ("K", "V") else not other.tensors[name].any()


def test_a_measured_question_leaves_nothing_behind() -> None:
    import tiny

    engine, mode = tiny.engine("qwen3_5_text"), parse_mode("kv_only")
    task = replace(find_task("qa"), max_new_tokens=3)
    question = Question("1", "Where?", (), ("Here",))
    asked = MeasuredQuestion(task, question, prompt_of(), 0, right_answer(engine, question))
    row, _ = measure(engine, asked, mode, None)
    assert row["mode"] == "kv_only" and row["computed_tokens"] == 5
    assert engine.cache.stats().tiers["host"].n_entries == 5  # the leading segment; two documents, each both ways
    forget(engine, asked, [mode])
    assert engine.cache.stats().tiers["host"].n_entries == 1


@pytest.mark.parametrize("name", ["none", "full", "prefix", "hypic:w=8"])
def test_every_mode_runs(name: str) -> None:
    import tiny

    engine, mode = tiny.engine("qwen3_5_text"), parse_mode(name)
    task = replace(find_task("qa"), max_new_tokens=3)
    question = Question("1", "Where?", (), ("Here",))
    asked = MeasuredQuestion(task, question, prompt_of(), 0, right_answer(engine, question))
    row, first = measure(engine, asked, mode, None)
    computed = {"none": 12, "full": 52, "prefix": 45, "hypic:w=8": 21}[name]
    assert (row["computed_tokens"], row["prompt_tokens"]) == (computed, 12 if name == "none" else 52)
    if name == "prefix":
        _, whole = measure(engine, asked, FULL, None)
        assert abs(first - whole).max() < 1e-4
