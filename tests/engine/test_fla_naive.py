"""Every recurrence held to the naive functions of flash-linear-attention, where it is installed: another's arithmetic.

They compute in float32, token by token, and order their arguments each their own way. The float64 oracle is in
``test_families``.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

pytest.importorskip("fla.ops", reason="pip install fla-core, and triton")

from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.kda.naive import naive_recurrent_kda
from fla.ops.rwkv6.recurrent_naive import naive_recurrent_rwkv6
from fla.ops.simple_gla.naive import naive_recurrent_simple_gla
from hypic_eval.exactness import layer_of, random_rows

from hypic_rag.engine.families import FAMILIES
from hypic_rag.engine.families.inputs import RecurrenceInputs

H, K, V, N = 3, 32, 16, 150  # K != V, or a transposed state passes; N fills no chunk
DECAY = 0.99
Naive = Callable[[RecurrenceInputs, Tensor], tuple[Tensor, Tensor]]


def simple_gla(rows: RecurrenceInputs, S: Tensor) -> tuple[Tensor, Tensor]:
    return naive_recurrent_simple_gla(rows.q, rows.k, rows.v, rows.log_decay, 1.0, S)


def gla(rows: RecurrenceInputs, S: Tensor) -> tuple[Tensor, Tensor]:
    return naive_recurrent_gla(unscaled(rows.q), rows.k, rows.v, rows.log_decay, S, output_final_state=True)


def delta_rule(rows: RecurrenceInputs, S: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, beta = (t.transpose(1, 2) for t in (unscaled(rows.q), rows.k, rows.v, rows.beta))
    return heads_last(delta_rule_recurrence(q, k, v, beta, S))


def gated_delta_rule(rows: RecurrenceInputs, S: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, beta, log_decay = rows.q, rows.k, rows.v, rows.beta, rows.log_decay
    return naive_recurrent_gated_delta_rule(q, k, v, beta, log_decay, 1.0, S, output_final_state=True)


def kda(rows: RecurrenceInputs, S: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, beta, log_decay = rows.q, rows.k, rows.v, rows.beta, rows.log_decay
    return naive_recurrent_kda(q, k, v, log_decay, beta, 1.0, S, output_final_state=True)


def rwkv6(rows: RecurrenceInputs, S: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, log_decay = (t.transpose(1, 2) for t in (rows.q, rows.k, rows.v, rows.log_decay))
    return heads_last(naive_recurrent_rwkv6(q, k, v, log_decay, rows.bonus, 1.0, S, output_final_state=True))


def dplr(rows: RecurrenceInputs, S: Tensor) -> tuple[Tensor, Tensor]:
    inputs = (unscaled(rows.q), rows.k, rows.v, rows.a, rows.b, rows.log_decay)
    return heads_last(dplr_recurrence(*(t.transpose(1, 2) for t in inputs), S))


def unscaled(q: Tensor) -> Tensor:
    """Some naive functions divide by the root of K whatever they are told."""
    return q * q.shape[-1] ** 0.5


def heads_last(read: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return read[0].transpose(1, 2), read[1]


NAIVE: dict[str, Naive] = {
    "retnet": simple_gla,
    "lightning": simple_gla,
    "mamba2": simple_gla,
    "gla": gla,
    "mamba1": gla,  # a channel is a head with one value
    "rwkv6": rwkv6,
    "deltanet": delta_rule,
    "gdn": gated_delta_rule,
    "kda": kda,
    "rwkv7": dplr,
}


def rel_err(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


def test_every_family_has_a_naive_form() -> None:
    assert NAIVE.keys() == FAMILIES.keys()


@pytest.mark.parametrize("size", [1, 8, 16, 64])
@pytest.mark.parametrize("name", FAMILIES)
def test_chunks_equal_the_naive_form(name: str, size: int) -> None:
    """Outputs and end state of one sequence, in chunks of every size, from a state that is not zero."""
    generator = torch.Generator().manual_seed(0)
    layer = layer_of(FAMILIES[name], H, K, V, DECAY, generator)
    rows = random_rows(layer, N, DECAY, generator)
    S = torch.randn(1, H, K, layer.v_dim, generator=generator)
    out, end = NAIVE[name](rows.map(lambda t: t[None]), S)

    index = torch.arange(-(-N // size) * size).clamp_max(N).view(-1, size)
    running = FAMILIES[name].run(rows, index)
    state = S
    for chunk in range(len(index)):
        state = running.advance(chunk, state)
    got = running.outputs().transpose(1, 2).flatten(0, 1)[:N]
    assert rel_err(got, out[0]) < 2e-6
    assert rel_err(state, end) < 2e-6
    assert rel_err(state, S) > 0.1
