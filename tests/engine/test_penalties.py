"""Penalties, biases and limits of what is drawn, against transformers' processors and OpenAI's formula."""

from collections import Counter

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hypic_rag import SegmentEngine
from hypic_rag.engine import Policy, Sampling
from hypic_rag.engine.penalties import adjusted
from hypic_rag.engine.sampler import logprobs_of, probabilities
from hypic_rag.errors import BadInput
from hypic_rag.prompt import Prompt

N = 97  # tokens of the vocabulary
PROMPT, ANSWER = (5, 5, 8, 13, 21), (3, 5, 3, 3, 90)


def some_logits(seed: int = 0) -> Tensor:
    return 4 * torch.randn(N, generator=torch.Generator().manual_seed(seed))


def ours(logits: Tensor, sampling: Sampling, ends: tuple[int, ...] = ()) -> Tensor:
    return adjusted(logits, sampling, ends, torch.tensor(sorted({*PROMPT})), ANSWER)


def theirs(logits: Tensor, *processors: object) -> Tensor:
    ids = torch.tensor([[*PROMPT, *ANSWER]])
    found: Tensor = LogitsProcessorList(processors)(ids, logits.double()[None])[0]
    return found


@pytest.mark.parametrize("penalty", [0.5, 1.3, 4.0])
def test_repetition_penalty(penalty: float) -> None:
    logits = some_logits()
    want = theirs(logits, RepetitionPenaltyLogitsProcessor(penalty))
    found = ours(logits, Sampling(repetition_penalty=penalty))
    assert torch.equal(found, want)
    assert (found != logits.double()).nonzero().flatten().tolist() == sorted({*PROMPT, *ANSWER})


@pytest.mark.parametrize("frequency, presence", [(0.7, 0.0), (0.0, 1.1), (-0.4, 2.0)])
def test_frequency_and_presence_count_the_answer_alone(frequency: float, presence: float) -> None:
    logits = some_logits()
    want = logits.double().clone()
    # OpenAI: mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence
    for token, n in Counter(ANSWER).items():
        want[token] = want[token] - n * frequency - presence
    found = ours(logits, Sampling(frequency_penalty=frequency, presence_penalty=presence))
    assert (found - want).abs().max() < 1e-12


def test_bias() -> None:
    logits, bias = some_logits(), {3: -100.0, 50: 7.5}
    want = theirs(logits, SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()}))
    assert torch.equal(ours(logits, Sampling(logit_bias=tuple(bias.items()))), want)


@pytest.mark.parametrize("least", [len(ANSWER), len(ANSWER) + 1])
def test_ends_wait_for_the_least_length(least: int) -> None:
    logits, ends = some_logits(), (2, 7)
    want = theirs(logits, MinNewTokensLengthLogitsProcessor(len(PROMPT), least, list(ends)))
    assert torch.equal(ours(logits, Sampling(min_tokens=least), ends), want)


LIMITS = {  # top-k, top-p, min-p
    "top-k": (5, 1.0, 0.0),
    "one": (1, 1.0, 0.0),
    "all": (N, 1.0, 0.0),
    "min-p": (0, 1.0, 0.05),
    "min-p of one": (0, 1.0, 1.0),
    "top-p of top-k": (9, 0.8, 0.0),
    "all three": (20, 0.9, 0.02),
}


@pytest.mark.parametrize("top_k, top_p, min_p", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("seed", range(8))
def test_what_is_drawn_from(top_k: int, top_p: float, min_p: float, seed: int) -> None:
    logits = some_logits(seed)
    warpers: list[object] = [TemperatureLogitsWarper(1.7)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    warpers += [MinPLogitsWarper(min_p)] if min_p else []
    want = theirs(logits, *warpers).softmax(-1)
    found = probabilities(logits, Sampling(temperature=1.7, top_k=top_k, top_p=top_p, min_p=min_p))
    assert torch.equal(found > 0, want > 0)
    assert (found / found.sum() - want).abs().max() < 1e-12


def test_log_probabilities_are_the_models_own() -> None:
    logits = some_logits()
    want = logits.log_softmax(-1)
    told = logprobs_of(logits, 40, 3)
    assert told.token == 40 and told.logprob == float(want[40])
    assert told.top == tuple((int(i), float(want[i])) for i in want.argsort(descending=True)[:3])


WRONG = {
    "top_k": {"top_k": -1},
    "min_p": {"min_p": 1.5},
    "frequency": {"frequency_penalty": 2.1},
    "presence": {"presence_penalty": float("nan")},
    "repetition": {"repetition_penalty": 0.0},
    "bias": {"logit_bias": ((3, 101.0),)},
    "a negative id": {"stop_token_ids": (-1,)},
    "min_tokens": {"min_tokens": -1},
    "logprobs": {"logprobs": 21},
}


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
def test_values_that_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        Sampling(**fields)  # type: ignore[arg-type]


def asked(engine: SegmentEngine) -> Prompt:
    return engine.format.prompt("Who built it?", [("Lighthouse", "It was built in 1871 by Ada Marrow. " * 3)])


def test_an_answer_is_drawn_as_a_plain_loop_would(gdn_engine: SegmentEngine) -> None:
    """Greedy: each token is the likeliest of what ``score`` gives once it is penalized, or here favoured, by hand."""
    prompt, policy = asked(gdn_engine), Policy("full")
    plain = gdn_engine.generate(prompt, Sampling(8), policy).token_ids
    banned = plain[0]
    sampling = Sampling(8, frequency_penalty=-2, presence_penalty=-1, logit_bias=((banned, -100.0),), logprobs=2)
    found = gdn_engine.generate(prompt, sampling, policy)
    tokens: list[int] = []
    for told in found.logprobs:
        logprobs = gdn_engine.score(prompt, [*tokens, 0], policy).logprobs[-1]
        assert abs(told.logprob - float(logprobs[told.token])) < 1e-4
        assert [token for token, _ in told.top] == logprobs.topk(2).indices.tolist()
        logprobs[banned] -= 100
        for token, n in Counter(tokens).items():
            logprobs[token] += 2 * n + 1
        assert told.token == int(logprobs.argmax())
        tokens.append(told.token)
    assert found.token_ids == tuple(tokens) and banned not in tokens
    assert len({*tokens}) < len({*plain}) == len(tokens) == 8


def test_repetition_counts_prompt_and_answer(gdn_engine: SegmentEngine) -> None:
    """A tiny penalty makes all logits of what was said enormous or nothing: nothing else is drawn."""
    prompt = asked(gdn_engine)
    plain = gdn_engine.generate(prompt, Sampling(8)).token_ids
    found = gdn_engine.generate(prompt, Sampling(8, repetition_penalty=1e-3)).token_ids
    assert {*found} <= {*prompt.token_ids} and not {*plain} <= {*prompt.token_ids}


def test_what_asks_for_nothing_changes_nothing(gdn_engine: SegmentEngine) -> None:
    """Log-probabilities, a bias of another token and limits that leave all: the same tokens, greedy and drawn."""
    prompt = asked(gdn_engine)
    for temperature in (0.0, 3.0):
        plain = gdn_engine.generate(prompt, Sampling(12, temperature, seed=3))
        other = Sampling(12, temperature, seed=3, logprobs=1, logit_bias=((1, 0.0),), top_k=10**6)
        found = gdn_engine.generate(prompt, other)
        assert found.token_ids == plain.token_ids and plain.logprobs == ()
        assert [one.token for one in found.logprobs] == list(found.token_ids)


def test_tokens_that_end(gdn_engine: SegmentEngine) -> None:
    prompt = asked(gdn_engine)
    whole = gdn_engine.generate(prompt, Sampling(12)).token_ids
    end = whole[5]
    first = whole.index(end)
    stopped = gdn_engine.generate(prompt, Sampling(12, stop_token_ids=(end,)))
    assert stopped.finish_reason == "stop" and stopped.token_ids == whole[:first]
    later = gdn_engine.generate(prompt, Sampling(12, stop_token_ids=(end,), min_tokens=first + 1))
    assert later.token_ids[:first] == whole[:first] and len(later.token_ids) > first
    eos = gdn_engine.tokenizer.eos_token_id
    ends = Sampling(4, logit_bias=((eos, 100.0),))
    assert gdn_engine.generate(prompt, ends).token_ids == ()
    ignored = Sampling(4, logit_bias=((eos, 100.0),), ignore_eos=True)
    assert gdn_engine.generate(prompt, ignored).token_ids == (eos,) * 4
    for fields in ({"stop_token_ids": (49152,)}, {"logit_bias": ((49152, 1.0),)}):
        with pytest.raises(BadInput, match="49151"):
            gdn_engine.generate(prompt, Sampling(**fields))  # type: ignore[arg-type]
