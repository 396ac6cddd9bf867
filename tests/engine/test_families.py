"""Every recurrence held to its float64 form, token by token, from the same float32 inputs (invariants 1 and 4)."""

from dataclasses import replace

import pytest
import torch
from hypic_eval.exactness import composed, fold, layer_of, random_rows
from torch import Tensor

from hypic_rag.engine.families import FAMILIES
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.families.step import run_tokens
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.passes.recurrence import walk
from hypic_rag.engine.plan import RunRows, Splice, build

H, K, V = 3, 32, 16  # K != V, or a transposed state passes
DECAY = 0.99  # a half-life of 69 tokens, half to three times as long by head, token and channel


@pytest.fixture(params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def case(name: str, n: int, decay: float = DECAY) -> tuple[LinearLayer, RecurrenceInputs, Tensor]:
    """A layer, n rows, and a state that is not zero."""
    generator = torch.Generator().manual_seed(0)
    layer = layer_of(FAMILIES[name], H, K, V, decay, generator)
    return layer, random_rows(layer, n, decay, generator), torch.randn(H, K, layer.v_dim, generator=generator)


def rel_err(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


def in_order(sequence: int, index: int, R: Tensor) -> Tensor:
    raise AssertionError("these plans have no splices")


SPLITS = {  # lengths of the segments, seam of each
    "four of 256": ([256] * 4, 8),
    "no seam": ([65, 40], 0),
    "odd lengths": ([9, 63, 64, 65, 130, 17], 8),
    "one token": ([1, 2, 1], 0),
    "wide seam": ([100, 33, 257], 32),
}


@pytest.mark.parametrize("lengths, seam", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-6), (torch.float64, 1e-10)], ids=["fp32", "fp64"])
def test_composition_equals_running_every_token(
    name: str, lengths: list[int], seam: int, dtype: torch.dtype, bound: float
) -> None:
    layer, rows, R = case(name, sum(lengths))
    layer, rows = replace(layer, rates=None if layer.rates is None else layer.rates.to(dtype)), rows.to(dtype)
    if rows.dt is not None and layer.rates is not None:
        rows = replace(rows, log_decay=rows.dt[..., None] * layer.rates)  # in dtype, as the sum of dt composes
    want = run_tokens(FAMILIES[name], rows.to(torch.float64), R.double())[1]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    segments = [rows[start : start + n] for start, n in zip(starts, lengths, strict=True)]
    assert rel_err(composed(layer, segments, seam, R.to(dtype))[-1], want) < bound


def test_interior_never_counts_the_seam(name: str) -> None:
    """S and T R of the interior's rows alone, held to a recurrence from zero and from R; the seam would move both."""
    layer, rows, R = case(name, 70)
    family, seam = FAMILIES[name], 8
    kept = fold(layer, rows, seam)
    S = kept.pop("S")
    assert {key: tuple(t.shape) for key, t in kept.items()} == family.transition.shapes(layer)
    zero, exact = torch.zeros_like(R).double(), rows.to(torch.float64)
    alone, moved, whole = (
        run_tokens(family, part, start)[1]
        for part, start in ((exact[seam:], zero), (exact[seam:], R.double()), (exact, zero))
    )
    assert rel_err(S, alone) < 2e-6
    TR = family.transition.compose(R, kept, torch.zeros_like(R), 70 - seam, layer)
    assert rel_err(TR, moved - alone) < 2e-6
    assert rel_err(whole, alone) > 1e-2


CHUNKINGS = {"single rows": [1, 1, 1], "one run": [64], "past one chunk": [65], "many": [3, 200, 17, 64]}


@pytest.mark.parametrize("lengths", CHUNKINGS.values(), ids=CHUNKINGS)
def test_packed_sequences_equal_each_alone(name: str, lengths: list[int]) -> None:
    """Outputs and states of a packed pass, in chunks of every size, against the recurrence of each sequence."""
    layer, rows, _ = case(name, sum(lengths))
    states = torch.randn(len(lengths), H, K, layer.v_dim, generator=torch.Generator().manual_seed(3))
    got, ends, _ = walk(rows, build([[RunRows(n)] for n in lengths]), layer, states, in_order)
    start = 0
    for s, n in enumerate(lengths):
        out, end = run_tokens(FAMILIES[name], rows.to(torch.float64)[start : start + n], states[s].double())
        assert rel_err(got[start : start + n], out) < 2e-6
        assert rel_err(ends[s], end) < 1e-6
        start += n


def test_splices_come_where_the_plan_puts_them(name: str) -> None:
    """Two sequences; splices before, between (two at once) and after runs. A splice multiplies by its own number."""
    layer, rows, _ = case(name, 40)
    exact = rows.to(torch.float64)
    events = [[Splice(0), RunRows(10), Splice(1), Splice(2), RunRows(5)], [RunRows(20), Splice(0), RunRows(5)]]
    factors = {(0, 0): 0.5, (0, 1): -2.0, (0, 2): 3.0, (1, 0): 0.25}
    states = torch.randn(2, H, K, layer.v_dim, generator=torch.Generator().manual_seed(3))
    ends = walk(rows, build(events), layer, states, lambda s, i, R: R * factors[s, i])[1]

    def run(first: int, stop: int, R: Tensor) -> Tensor:
        return run_tokens(FAMILIES[name], exact[first:stop], R)[1]

    assert rel_err(ends[0], run(10, 15, run(0, 10, states[0].double() * 0.5) * -6.0)) < 1e-6
    assert rel_err(ends[1], run(35, 40, run(15, 35, states[1].double()) * 0.25)) < 1e-6


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "deltanet"])
def test_strong_decay_does_not_overflow(name: str) -> None:
    """exp(-cumsum) would overflow after 2 tokens here: every decay is about 1e-30 a token."""
    layer, rows, R = case(name, 130, decay=1e-30)
    out, end, _ = walk(rows, build([[RunRows(130)]]), layer, R[None], in_order)
    want = run_tokens(FAMILIES[name], rows.to(torch.float64), R.double())
    assert rel_err(out, want[0]) < 2e-6 and rel_err(end[0], want[1]) < 2e-6
