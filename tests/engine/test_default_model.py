"""The default model, real text: against the plain Hugging Face forward and the two-stream oracle.

Its own fp32 noise is 1e-4 on logits; 1e-3 is the bound. A wrong seam or a lost transition moves them by over 0.1.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import two_stream
from transformers import AutoModelForCausalLM

from hypic_rag import Policy, Sampling, SegmentEngine
from hypic_rag.engine import assemble
from hypic_rag.engine.backends.base import SequenceRequest
from hypic_rag.prompt import Prompt

ROW = json.loads((Path(__file__).parents[1] / "data" / "hotpotqa_few.jsonl").read_text("utf-8").splitlines()[0])
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def engine(default_model_folder: Path) -> SegmentEngine:
    return SegmentEngine.from_pretrained(default_model_folder, policy=Policy())


@pytest.fixture(scope="module")
def plain(default_model_folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(default_model_folder, dtype=torch.float32)


def prompt(engine: SegmentEngine, n_documents: int) -> Prompt:
    return engine.format.prompt(ROW["question"], [(doc["title"], doc["text"]) for doc in ROW["docs"][:n_documents]])


def assembled(engine: SegmentEngine, ask: Prompt, policy: Policy) -> torch.Tensor:
    [one] = engine.backend.start([SequenceRequest(ask, policy, 1, engine.segments, resumes=False)])
    active = one.scheduled
    return assemble.run(engine.model, engine.cache_spec, [active], [range(len(active.ids))])[0]


@torch.no_grad()
def test_leading_and_question_and_full_mode_equal_the_plain_model(engine: SegmentEngine, plain: Any) -> None:
    for n_documents, policy in ((0, Policy()), (3, Policy("full"))):
        ask = prompt(engine, n_documents)
        want = plain(input_ids=torch.tensor([ask.token_ids])).logits[0]
        got = assembled(engine, ask, policy)
        assert (got - want[-len(got) :]).abs().max() < TOLERANCE


def test_the_assembled_forward_equals_the_two_stream_oracle(engine: SegmentEngine, plain: Any) -> None:
    ask, policy = prompt(engine, 3), Policy()
    got = assembled(engine, ask, policy)
    assert (got - two_stream.logits(plain, ask, policy, tiny.mixers)).abs().max() < TOLERANCE
    other = assembled(engine, ask, Policy(compose="add"))
    assert (got - other).abs().max() > 100 * TOLERANCE


def test_turns_of_a_conversation_resume(engine: SegmentEngine) -> None:
    ask = prompt(engine, 2)
    first = engine.generate(ask, Sampling(max_new_tokens=8))
    follow_up = engine.format.follow_up(ask, first.token_ids, "Where is that?")
    second = engine.generate(follow_up, Sampling(max_new_tokens=8))
    assert second.report.computed_tokens < 40 < second.report.resumed_tokens
    again = SegmentEngine.generate(engine, follow_up, Sampling(max_new_tokens=8), Policy("full"))
    assert again.report.computed_tokens == follow_up.n_tokens  # full never takes a hypic state
