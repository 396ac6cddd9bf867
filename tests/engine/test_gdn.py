"""Gated DeltaNet held to its float64 recurrence, token by token from the same float32 inputs (invariant 1)."""

import pytest
import torch
from torch import Tensor

from hypic_rag.engine.families import gdn, reference
from hypic_rag.engine.plan import Mark, Rows, Splice, build
from hypic_rag.engine.recurrence import walk

H, K, V = 3, 32, 16  # K != V, or a transposed state passes


def random_rows(n: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> gdn.Rows:
    """Half-lives of 8, 180 and 4,000 tokens; writes strong to gentle, so that transitions are alive and differ."""
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.nn.functional.normalize(torch.randn(n, H, K, generator=g), dim=-1) for _ in range(2))
    decay = -torch.rand(n, H, generator=g) / torch.tensor([8.0, 180.0, 4000.0])
    beta = torch.rand(n, H, generator=g) * torch.tensor([0.9, 0.2, 0.05])
    rows = (q * K**-0.5, k, torch.randn(n, H, V, generator=g), decay, beta)
    return gdn.Rows(*(t.to(dtype) for t in rows))


def fields(rows: gdn.Rows, part: slice = slice(None), dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    return tuple(t[part].to(dtype) for t in (rows.q, rows.k, rows.v, rows.log_decay, rows.beta))


def rel_err(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


def fold(rows: gdn.Rows, part: slice, seam: int) -> tuple[Tensor, Tensor]:
    """T and S of a segment's interior, as the isolated prefill makes them."""
    segment = gdn.Rows(*fields(rows, part, rows.v.dtype))
    n = len(segment.q)
    events = [Rows(seam), Mark(), Rows(n - seam)] if seam else [Mark(), Rows(n)]
    result = walk(segment, build([events]), torch.zeros(1, H, K, V + K, dtype=rows.v.dtype), lambda s, i, R: R)
    T = result.state[0, ..., V:]
    return T, result.state[0, ..., :V] - T @ result.marked[0]


SPLITS = {  # lengths of the segments, seam of each, steps the state was given before
    "four of 256": ([256] * 4, 8),
    "no seam": ([256] * 4, 0),
    "odd lengths": ([9, 63, 64, 65, 130, 17], 8),
    "one token": ([1, 2, 1], 0),
    "wide seam": ([100, 33, 257], 32),
}


@pytest.mark.parametrize("lengths, seam", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-6), (torch.float64, 1e-10)], ids=["fp32", "fp64"])
def test_composition_equals_running_every_token(
    lengths: list[int], seam: int, dtype: torch.dtype, bound: float
) -> None:
    rows = random_rows(sum(lengths), dtype)
    R = torch.randn(H, K, V, generator=torch.Generator().manual_seed(7)).to(dtype)  # never zero
    want, got, start = R.double(), R, 0
    for n in lengths:
        segment = slice(start, start + n)
        live = gdn.Rows(*fields(rows, slice(start, start + seam), dtype))
        if seam:
            got = walk(live, build([[Rows(seam)]]), got[None], lambda s, i, R: R).state[0]
        T, S = fold(rows, segment, seam)
        got = gdn.compose(got, T, S)
        want = reference.gdn(*fields(rows, segment), want)[1]
        start += n
    assert rel_err(got, want) < bound


def test_interior_never_counts_the_seam() -> None:
    """Invariant 4: T and S are those of the interior's rows alone; with the seam in, S moves by over 1%."""
    rows, seam = random_rows(70), 8
    T, S = fold(rows, slice(0, 70), seam)
    zero, eye = torch.zeros(H, K, V).double(), torch.eye(K).expand(H, K, K).double()
    interior = fields(rows, slice(seam, 70))
    assert rel_err(S, reference.gdn(*interior, zero)[1]) < 2e-6
    q, k, v, decay, beta = interior
    assert rel_err(T, reference.gdn(q, k, v.new_zeros(*k.shape), decay, beta, eye)[1]) < 1e-6
    assert rel_err(S, reference.gdn(*fields(rows), zero)[1]) > 1e-2


CHUNKINGS = {"single rows": [1, 1, 1], "one run": [64], "past one chunk": [65], "many": [3, 200, 17, 64]}


@pytest.mark.parametrize("lengths", CHUNKINGS.values(), ids=CHUNKINGS)
def test_packed_sequences_equal_each_alone(lengths: list[int]) -> None:
    """Outputs and states of a packed pass, for every chunk size, against the recurrence of each sequence."""
    rows = random_rows(sum(lengths))
    states = torch.randn(len(lengths), H, K, V, generator=torch.Generator().manual_seed(3))
    result = walk(rows, build([[Rows(n)] for n in lengths]), states, lambda s, i, R: R)
    start = 0
    for s, n in enumerate(lengths):
        out, state = reference.gdn(*fields(rows, slice(start, start + n)), states[s].double())
        assert rel_err(result.out[start : start + n], out) < 2e-6
        assert rel_err(result.state[s], state) < 1e-6
        start += n


def test_splices_come_where_the_plan_puts_them() -> None:
    """Two sequences; splices before, between (two at once) and after runs. A splice multiplies by its own number."""
    rows = random_rows(40)
    events = [[Splice(0), Rows(10), Splice(1), Splice(2), Rows(5)], [Rows(20), Splice(0), Rows(5)]]
    factors = {(0, 0): 0.5, (0, 1): -2.0, (0, 2): 3.0, (1, 0): 0.25}
    states = torch.randn(2, H, K, V, generator=torch.Generator().manual_seed(3))
    result = walk(rows, build(events), states, lambda s, i, R: R * factors[s, i])
    R = reference.gdn(*fields(rows, slice(0, 10)), states[0].double() * 0.5)[1] * -6.0
    assert rel_err(result.state[0], reference.gdn(*fields(rows, slice(10, 15)), R)[1]) < 1e-6
    R = reference.gdn(*fields(rows, slice(15, 35)), states[1].double())[1] * 0.25
    assert rel_err(result.state[1], reference.gdn(*fields(rows, slice(35, 40)), R)[1]) < 1e-6


def test_strong_decay_does_not_overflow() -> None:
    """exp(-cumsum) would overflow after 2 tokens here; every decay is 1e-30 a token."""
    rows = random_rows(130)
    rows = gdn.Rows(rows.q, rows.k, rows.v, torch.full_like(rows.log_decay, -69.0), rows.beta)
    result = walk(rows, build([[Rows(130)]]), torch.zeros(1, H, K, V), lambda s, i, R: R)
    assert rel_err(result.out, reference.gdn(*fields(rows), torch.zeros(H, K, V).double())[0]) < 2e-6
