"""What must be right before anything is timed."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hypic_eval.gpu import shape
from hypic_eval.gpu.bench import Bench, engine_of
from hypic_eval.gpu.plain import PlainCopy, Way, relative_error
from hypic_rag.engine import Policy, SegmentEngine
from hypic_rag.prompt import Ids, Prompt

FP32_BOUND = 1e-3
"""Largest difference of log-probabilities in float32 on a tiny model; 1.4e-4 is what two orders of summing give."""
OTHERS_DIFFER = 100 * FP32_BOUND
TIMES_NOISE, AT_MOST = 3.0, 0.5
"""How far the engine may be from the plain model in bfloat16: some times its own noise. Another context gives 1.1."""
TINY_MEMORY = 1 << 30
"""Of the tiny engine's pools: left to itself it would take the GPU for them."""
LEADING, SEGMENT, QUESTION = 96, 160, 16


@dataclass(frozen=True)
class Check:
    """``value`` must be at most ``bound``, or at least, where ``at_least``."""

    what: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound  # False for NaN

    def fields(self) -> dict[str, Any]:
        sign = "≥" if self.at_least else "≤"
        verdict = "holds" if self.holds else "FAILS"
        return {"check": self.what, "value": f"{self.value:.2g}", "bound": f"{sign} {self.bound:.2g}", "": verdict}


def small(device: torch.device, say: Callable[[str], None]) -> list[Check]:
    """Check a tiny model of the same family and head sizes in float32: on ``device``, on a CPU, and by Hugging Face."""
    model = shape.build(shape.config_of("tiny"), torch.device("cpu"), torch.float32)
    on_device = copy.deepcopy(model).to(device)
    plain = PlainCopy(on_device)
    memory = TINY_MEMORY if device.type == "cuda" else None
    here, on_cpu = engine_of(on_device, "tiny, here", memory), engine_of(model, "tiny, CPU", None)
    vocabulary = model.config.vocab_size

    def ids(n: int, seed: int) -> Ids:
        return tuple(torch.randint(3, vocabulary, (n,), generator=torch.Generator().manual_seed(seed)).tolist())

    def first(engine: SegmentEngine, prompt: Prompt, policy: Policy | None = None) -> Tensor:
        return engine.score(prompt, (5,), policy).first_logprobs.double()

    def apart(a: Tensor, b: Tensor) -> float:
        return float((a - b).abs().max())

    say("checks on a tiny model in float32")
    prefix = Prompt.build(ids(LEADING, 1), (), ids(QUESTION, 2))
    with plain.torch_only():
        wanted = plain.logits(prefix.token_ids).double().log_softmax(-1).cpu()
    documents = [ids(n, 10 + n) for n in (SEGMENT, 7, SEGMENT + 1, 65)]
    prompt = Prompt.build(ids(20, 3), documents, ids(QUESTION, 4))
    assembled = first(here, prompt)
    checks = [
        Check(
            "tiny, fp32: leading segment and question, engine against Hugging Face",
            apart(first(here, prefix), wanted),
            FP32_BOUND,
        ),
        Check(
            "tiny, fp32: four documents assembled, here against a CPU",
            apart(assembled, first(on_cpu, prompt)),
            FP32_BOUND,
        ),
        Check(
            "tiny, fp32: all recomputed, here against a CPU",
            apart(*(first(e, prompt, Policy("full")) for e in (here, on_cpu))),
            FP32_BOUND,
        ),
    ]
    for compose in ("last_state", "add"):
        other = first(here, prompt, Policy(compose=compose))
        checks.append(
            Check(f"tiny, fp32: {compose} differs from exact", apart(other, assembled), OTHERS_DIFFER, at_least=True)
        )
    return checks


def large(bench: Bench) -> list[Check]:
    """Check the model that is timed: a leading segment and a question, against the plain forward of the same weights.

    The bound is made of the plain model's own noise: how far its logits move when the same tokens are run in two
    passes with a cache between.
    """
    bench.say(f"checks on {bench.name}")
    tokens = min(256, bench.sizes.tokens)
    prompt = Prompt.build(bench.ids(tokens, 1), (), bench.ids(bench.sizes.question, 2))
    plain = bench.plain
    plain.way = Way()
    wanted = plain.logits(prompt.token_ids).float().cpu()
    plain.way = Way(chunk=len(prompt.token_ids) // 2 + 1)
    noise = relative_error(plain.logits(prompt.token_ids).float().cpu(), wanted)
    plain.way = Way()
    found = bench.engine.score(prompt, (5,)).first_logprobs
    error = relative_error(found, wanted)
    dtype = str(plain.model.dtype).removeprefix("torch.")
    bench.notes.append(
        f"Leading segment of {tokens} and question of {bench.sizes.question} on {bench.name}: the engine's logits are "
        f"{error:.2g} from the plain model's, relative, whose own noise is {noise:.2g}; first tokens are "
        f"{'equal' if found.argmax() == wanted.argmax() else 'not equal'}."
    )
    finite = float(torch.isfinite(wanted).all())
    return [
        Check(f"{bench.name}, {dtype}: logits are finite", finite, 1.0, at_least=True),
        Check(
            f"{bench.name}, {dtype}: engine against the plain model, relative error of logits",
            error,
            min(max(TIMES_NOISE * noise, FP32_BOUND), AT_MOST),
        ),
    ]
