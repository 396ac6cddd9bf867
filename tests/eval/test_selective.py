"""Selective recompute: all tokens are full recompute, none is what the layers that were run leave, and the tokens
chosen are those that deviate most."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypic_eval.measure import MeasuredQuestion, forget, measure, right_answer
from hypic_eval.metrics import first_token_kl
from hypic_eval.modes import FULL, parse_mode
from hypic_eval.selective import SelectiveBackend, n_selected, view
from hypic_eval.task import Question, find_task

from hypic_rag.engine import Policy, Sampling
from hypic_rag.errors import BadInput
from hypic_rag.prompt import Prompt

sys.path.append(str(Path(__file__).parents[1] / "engine"))  # tiny

SEAM_0 = Policy(seam_tokens=0)
ATTENTION = {"layer_types": ["full_attention"] * 4}


def prompt_of(n_leading: int = 7) -> Prompt:
    import tiny

    return Prompt.build(tiny.ids(n_leading, 1), [tiny.ids(n, 10 + n) for n in (20, 33, 1)], tiny.ids(5, 2))


def engine_of(**changes: Any) -> Any:
    import tiny

    return tiny.engine("qwen3_5_text", {**ATTENTION, **changes})


@pytest.mark.parametrize("n_leading", [7, 0], ids=["behind a system text", "alone"])
def test_all_tokens_are_full_recompute(n_leading: int) -> None:
    engine, prompt = engine_of(), prompt_of(n_leading)
    all_again = view(engine, 100)
    wanted = engine.score(prompt, (5, 6, 7), policy=FULL.policy)
    found = all_again.score(prompt, (5, 6, 7), policy=SEAM_0)
    assert (found.logprobs - wanted.logprobs).abs().max() < 1e-4
    seam_0 = engine.score(prompt, (5, 6, 7), policy=SEAM_0)
    assert (seam_0.logprobs - wanted.logprobs).abs().max() > 1e-2  # what is reused alone is not
    sampling = Sampling(max_new_tokens=8)
    answers = [one.generate(prompt, sampling, policy=policy) for one, policy in
               ((engine, FULL.policy), (all_again, SEAM_0))]  # fmt: skip
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[1].report.computed_tokens == 54 + 5 and answers[1].report.ttft_ms > 0
    assert answers[1].report.leading is None or answers[1].report.leading.tier == "host"


def run_in_whole(engine: Any, prompt: Prompt, selected: set[int]) -> torch.Tensor:
    """Run every row through every layer, and put the cache's keys and values in the place of those that are not
    selected, in all layers but the first two: another way to the same mixture. Return the last row's logits."""
    from hypic_eval.selective import BlendedPass, cached_table

    from hypic_rag.engine.backends.base import SequenceRequest
    from hypic_rag.engine.passes.dense_attention import causal

    [started] = engine.backend.start([SequenceRequest(prompt, SEAM_0, 1, engine.segments, resumes=False)])
    table = cached_table(engine.cache_spec, started.scheduled.state)
    n = prompt.n_tokens
    fresh = torch.tensor([row in selected or row < 7 or row >= n - 5 for row in range(n)])[None, :, None]

    class Mixed(BlendedPass):
        def attend(self, slot: int, layer: Any, q: Any, k: Any, v: Any, params: Any) -> Any:
            if slot > 1:
                k, v = (torch.where(fresh, own, cached) for own, cached in zip((k, v), table[slot], strict=True))
            return causal(q, k, v, params, layer.window)

    ids = torch.tensor([prompt.token_ids])
    running: Any = Mixed(torch.arange(n), {})
    with torch.inference_mode(), engine.cache_spec.current.during(running):
        return engine.model(input_ids=ids, position_ids=torch.arange(n)[None], use_cache=False).logits[0, -1]


@pytest.mark.parametrize("percent", [0, 15, 50])
def test_the_mixture_is_that_of_running_everything(percent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt, chosen = engine_of(), prompt_of(), []
    select = SelectiveBackend._selected

    def noted(*given: Any) -> list[int]:
        chosen.append(select(*given))
        return chosen[-1]

    monkeypatch.setattr(SelectiveBackend, "_selected", noted)
    found = view(engine, percent).score(prompt, (5,), policy=SEAM_0).first_logprobs
    [selected] = chosen
    assert len(set(selected)) == n_selected(54, percent) and all(7 <= row < 61 for row in selected)
    wanted = run_in_whole(engine, prompt, set(selected)).log_softmax(-1)
    assert (found - wanted).abs().max() < 1e-4
    if percent == 15:  # others than those give something else
        other = run_in_whole(engine, prompt, set(range(7, 61)) - set(selected)).log_softmax(-1)
        assert (found - other).abs().max() > 1e-2


def test_the_tokens_that_deviate_most_are_chosen() -> None:
    """Held against the second layer's keys and values of a plain run of the prompt, and of each document alone."""
    engine, prompt = engine_of(), prompt_of()
    backend: Any = view(engine, 15).backend
    from hypic_eval.selective import BlendedPass, ProbeEnds, cached_table

    from hypic_rag.engine.backends.base import SequenceRequest

    def second_layer(ids: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a plain run."""
        empty = {slot: (torch.zeros(2, len(ids), 16), torch.zeros(2, len(ids), 16)) for slot in range(4)}
        running: Any = BlendedPass(torch.arange(len(ids)), empty, last=1)
        with pytest.raises(ProbeEnds), torch.inference_mode(), engine.cache_spec.current.during(running):
            engine.model(input_ids=torch.tensor([ids]), position_ids=torch.arange(len(ids))[None], use_cache=False)
        return empty[1]

    keys, values = second_layer(prompt.token_ids)
    deviations, at = [], 7
    for ids in prompt.documents:
        [started] = engine.backend.start(
            [SequenceRequest(Prompt.build((), [ids], (5,)), SEAM_0, 1, engine.segments, resumes=False)]
        )
        alone = cached_table(engine.cache_spec, started.scheduled.state)[1]
        shifted = engine.cache_spec.layers[1].rotary.turns([at], torch.device("cpu"))
        turned = engine.cache_spec.layers[1].rotary.turn(alone[0][:, : len(ids)], shifted[0][0], -shifted[1][0])
        here = slice(at, at + len(ids))
        both = (keys[:, here] - turned, values[:, here] - alone[1][:, : len(ids)])
        deviations += sum(one.square().sum((0, 2)) for one in both).tolist()
        at += len(ids)
    most = sorted(range(54), key=lambda i: -deviations[i])[:9]
    [started] = backend.start([SequenceRequest(prompt, SEAM_0, 1, engine.segments, resumes=False)])
    active = started.scheduled
    ids = torch.tensor(prompt.token_ids)
    table = cached_table(engine.cache_spec, active.state)
    with torch.inference_mode():
        chosen = backend._selected(ids, table, list(range(7, 61)), active.positions)
    assert sorted(chosen) == sorted(7 + i for i in most)


def test_more_tokens_are_nearer_to_full() -> None:
    engine, prompt = engine_of(), prompt_of()
    full = engine.score(prompt, (5,), policy=FULL.policy).first_logprobs
    kls = [
        first_token_kl(full, view(engine, p).score(prompt, (5,), policy=SEAM_0).first_logprobs) for p in (0, 30, 100)
    ]
    assert kls[0] > kls[1] > 1e-4 > kls[2]


def test_a_window_is_kept() -> None:
    import tiny
    from transformers import AutoModelForCausalLM, Qwen3Config

    from hypic_rag import SegmentEngine

    config = Qwen3Config(
        **{**tiny.SIZES, "head_dim": 16}, sliding_window=12, use_sliding_window=True, max_window_layers=2,
        layer_types=["full_attention", "sliding_attention"] * 2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="hypic", dtype=torch.float32)
    engine, prompt = SegmentEngine(model, tiny.tokenizer(), name="window", fingerprint="window"), prompt_of()
    wanted = engine.score(prompt, (5, 6), policy=FULL.policy)
    assert (view(engine, 100).score(prompt, (5, 6), policy=SEAM_0).logprobs - wanted.logprobs).abs().max() < 1e-4


def test_a_measured_question_leaves_nothing_behind() -> None:
    engine, mode = engine_of(), parse_mode("selective:p=20")
    task = replace(find_task("qa"), max_new_tokens=3)
    question = Question("1", "Where?", (), ("Here",))
    asked = MeasuredQuestion(task, question, prompt_of(), 0, right_answer(engine, question))
    row, _ = measure(engine, asked, mode, None)
    assert row["mode"] == "selective:p=20" and row["computed_tokens"] == 11 + 5
    assert engine.cache.stats().tiers["host"].n_entries == 4
    forget(engine, asked, [mode])
    assert engine.cache.stats().tiers["host"].n_entries == 1


def test_a_hybrid_model_is_refused() -> None:
    import tiny

    with pytest.raises(BadInput, match="models of full attention alone, and tiny-qwen3_5_text has attention, gdn"):
        view(tiny.engine("qwen3_5_text"), 15)
