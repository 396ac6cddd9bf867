"""Spliced attention against each row's keys gathered one by one and turned, in float64."""

import os
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the kernels are written in triton")
DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("on a CPU, triton runs with TRITON_INTERPRET=1 only", allow_module_level=True)

from hypic_kernels import attention, attention_reference  # noqa: E402
from hypic_kernels.attention_plan import AttentionBucket, SequenceRows, view_plan, write_plan  # noqa: E402
from hypic_kernels.plan import AttentionPlan  # noqa: E402

# A sequence: own rows already there, rows of the pass, and (first own row that sees it, keys, turned by) an interior.
SPLICED = (0, 8, [(0, 40, 0), (2, 33, 57), (4, 1, 93), (5, 17, 102)])
DECODING = (37, 1, [(0, 21, 0), (8, 50, 29)])
RESUMED = (5, 6, [(2, 19, 7), (7, 18, 31), (11, 12, 80)])  # the last one no row sees
PLAIN = (0, 3, [])


@dataclass(frozen=True)
class Case:
    sequences: list[tuple[int, int, list[tuple[int, int, int]]]]
    Hq: int
    H: int
    D: int
    Dv: int
    rotary: int
    interleaved: bool = False
    softcap: float | None = None
    sinks: bool = False
    split: int = 1024
    n_rows: int = 0  # of the bucket; 0: no padding
    dtype: torch.dtype = torch.float32
    blocks: tuple[int, int, int, int] | None = None


CASES = {
    "one spliced prompt": Case([SPLICED], 4, 2, 64, 64, 64),
    "four sequences, padded": Case([SPLICED, DECODING, RESUMED, PLAIN], 2, 1, 64, 64, 16, n_rows=20),
    "pieces cut": Case([SPLICED, DECODING, RESUMED], 2, 2, 64, 64, 64, split=16, n_rows=16),
    "pieces cut oddly": Case([RESUMED, DECODING], 2, 1, 64, 64, 64, split=7),
    "many row blocks": Case([SPLICED], 8, 1, 64, 64, 64, blocks=(16, 16, 4, 1)),
    "queries through memory": Case([SPLICED, PLAIN], 4, 1, 96, 128, 64, blocks=(64, 16, 4, 1)),
    "three heads a key head": Case([SPLICED, RESUMED], 3, 1, 64, 64, 64, blocks=(16, 32, 4, 1)),
    "head size 80": Case([SPLICED, DECODING], 2, 2, 80, 80, 32),
    "head size 96, neighbours": Case([SPLICED, DECODING], 2, 1, 96, 96, 96, interleaved=True),
    "head size 128, wider than V": Case([SPLICED], 2, 1, 128, 64, 128),
    "head size 256, a quarter turns": Case([SPLICED], 2, 1, 256, 256, 64),
    "V wider": Case([RESUMED], 2, 1, 64, 96, 64),
    "softcap": Case([SPLICED, DECODING], 4, 2, 64, 64, 64, softcap=2.0),
    "sinks": Case([SPLICED, DECODING], 4, 2, 64, 64, 64, sinks=True, n_rows=12),
    "all at once": Case([DECODING, SPLICED, PLAIN], 4, 2, 96, 80, 48, True, 3.0, True, 16, 13),
    "decoding": Case([DECODING] * 3, 8, 1, 64, 64, 64, split=16, n_rows=4),
}
LONG = (0, 192, [(8 * (j + 1), 1016, 1024 * j) for j in range(16)])
LATE = (200, 1, [(8 * (j + 1), 1016, 1024 * j) for j in range(4)])
if DEVICE == "cuda":
    big = Case([LONG], 16, 2, 256, 256, 64, n_rows=192)
    CASES |= {
        "Qwen3.5-35B-A3B": replace(big, dtype=torch.bfloat16),
        "Qwen3.5-35B-A3B, short pieces": replace(big, dtype=torch.bfloat16, split=256),
        "Qwen3.5-35B-A3B, 64 places": replace(big, dtype=torch.bfloat16, blocks=(64, 32, 4, 3)),
        "Qwen3.5-35B-A3B, float32": big,
        "Qwen3.5-35B-A3B, decoding": replace(big, sequences=[LATE] * 8, n_rows=8, split=256, dtype=torch.bfloat16),
        "gpt-oss": Case([LONG, LATE], 64, 8, 64, 64, 64, sinks=True, n_rows=256, dtype=torch.bfloat16),
        "Gemma 2": Case([LONG, LATE], 8, 4, 256, 256, 256, softcap=50.0, n_rows=256, dtype=torch.float16),
        "head size 128": Case([LONG, LATE], 32, 8, 128, 128, 128, n_rows=256, dtype=torch.bfloat16),
        "head size 80, bf16": Case([LONG], 32, 32, 80, 80, 32, n_rows=192, dtype=torch.bfloat16),
        "head size 96, bf16": Case([LONG], 32, 32, 96, 96, 96, n_rows=192, dtype=torch.bfloat16),
    }


@dataclass
class Pass:
    """A pass at random. Pool slots that belong to no interior and no past row hold NaN."""

    q: Tensor
    k: Tensor
    v: Tensor
    K: Tensor
    V: Tensor
    cos: Tensor
    sin: Tensor
    partner: Tensor
    sinks: Tensor | None
    inv_freq: Tensor
    offsets: list[int]  # of every turn
    sequences: list[SequenceRows]
    bucket: AttentionBucket
    plan: AttentionPlan


def random_pass(case: Case) -> Pass:
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(case.dtype)

    n_slots, row, offsets, sequences, written = 3, 0, [], [], []
    for past, rows, interiors in case.sequences:
        places = []
        for first, n, offset in interiors:
            places.append((first, n_slots, n, len(offsets)))
            written.append((n_slots, n))
            offsets.append(offset)
            n_slots += n + 1
        written.append((n_slots, past))
        sequences.append(SequenceRows(row, row + rows, past, n_slots, places))
        n_slots += past + rows + 2
        row += rows
    K = torch.full((n_slots, case.H, case.D), float("nan"), dtype=case.dtype)
    V = torch.full((n_slots, case.H, case.Dv), float("nan"), dtype=case.dtype)
    for slot, n in written:
        K[slot : slot + n], V[slot : slot + n] = normal(n, case.H, case.D), normal(n, case.H, case.Dv)

    # q turned by -p: dimension a of a pair (a, b) becomes a cos + b sin, and b becomes b cos - a sin.
    first, second = pairs(case)
    partner = torch.arange(case.D, dtype=torch.int32)
    partner[first], partner[second] = second.int(), first.int()
    inv_freq = 10000.0 ** (-torch.arange(len(first), dtype=torch.float64) / len(first))
    angles = torch.tensor(offsets or [0], dtype=torch.float64)[:, None] * inv_freq
    cos, sin = torch.ones(len(angles), case.D), torch.zeros(len(angles), case.D)
    cos[:, first] = cos[:, second] = angles.cos().float()
    sin[:, first], sin[:, second] = angles.sin().float(), -angles.sin().float()

    N = case.n_rows or row
    # Interiors, own keys, and one that is not used.
    n_keys = [n for past, rows, interiors in case.sequences for n in (past + rows, *(n for _, n, _ in interiors))]
    n_pieces = sum(-(-n // case.split) for n in n_keys) + 1
    n_partial_rows = sum(rows * n_pieces for _, rows, _ in case.sequences)
    bucket = AttentionBucket(N, n_pieces, n_partial_rows, max(rows for _, rows, _ in case.sequences), case.split)
    flat = np.full(bucket.plan_size, 10**8, dtype=np.int32)
    write_plan(flat, sequences, bucket)
    view = (normal(1, case.Hq, N, case.D), normal(1, case.H, N, case.D), normal(1, case.H, N, case.Dv))
    q, k, v = (t.to(DEVICE).squeeze(0).transpose(0, 1) for t in view)  # strides as a model gives them
    return Pass(
        *(q * 2, k, v, K.to(DEVICE), V.to(DEVICE), cos.to(DEVICE), sin.to(DEVICE), partner.to(DEVICE)),
        normal(case.Hq).to(DEVICE) if case.sinks else None,
        *(inv_freq, offsets, sequences, bucket, view_plan(torch.from_numpy(flat).to(DEVICE), bucket)),
    )


def pairs(case: Case) -> tuple[Tensor, Tensor]:
    """Dimensions that turn together, pair by pair: neighbours, or halves of those that turn at all."""
    dims = torch.arange(case.rotary)
    return (dims[::2], dims[1::2]) if case.interleaved else (dims[: case.rotary // 2], dims[case.rotary // 2 :])


def row_by_row(case: Case, made: Pass) -> Tensor:
    """(N, Hq, Dv) float64 from the description alone: every row gathers its keys, turned to where they stand."""
    q, k, v, K, V = (t.double().cpu() for t in (made.q, made.k, made.v, made.K, made.V))
    first, second = pairs(case)
    result = torch.zeros(len(q), case.Hq, case.Dv, dtype=torch.float64)
    for s in made.sequences:
        own = slice(s.own_at, s.own_at + s.past)
        own_K, own_V = torch.cat([K[own], k[s.start : s.stop]]), torch.cat([V[own], v[s.start : s.stop]])
        turned = []
        for _, slot, n, turn in s.interiors:
            key, angle = K[slot : slot + n].clone(), made.offsets[turn] * made.inv_freq
            a, b = key[..., first], key[..., second]
            key[..., first], key[..., second] = a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()
            turned.append(key)
        for i in range(s.start, s.stop):
            number = s.past + i - s.start
            seen = [
                (key, V[at : at + n]) for key, (f, at, n, _) in zip(turned, s.interiors, strict=True) if f <= number
            ]
            seen.append((own_K[: number + 1], own_V[: number + 1]))
            keys, values = (torch.cat(t).repeat_interleave(case.Hq // case.H, 1) for t in zip(*seen, strict=True))
            scores = torch.einsum("hd,jhd->hj", q[i], keys) * case.D**-0.5
            if case.softcap is not None:
                scores = case.softcap * torch.tanh(scores / case.softcap)
            if made.sinks is not None:
                scores = torch.cat([scores, made.sinks.double().cpu()[:, None]], 1)
            weights = torch.softmax(scores, 1)[:, : len(keys)]
            result[i] = torch.einsum("hj,jhv->hv", weights, values)
    return result


def rel_err(got: Tensor, want: Tensor) -> float:
    return float((got.double().cpu() - want).norm() / want.norm())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_keys_gathered_row_by_row(case, monkeypatch):
    made = random_pass(case)
    # Scratch and result start as NaN: what is read was written.
    monkeypatch.setattr(
        attention.torch,
        "empty",
        lambda shape, dtype, device: torch.full(shape, float("nan"), dtype=dtype, device=device),
    )
    attention.store_kv(made.k, made.v, made.plan.kv_at, made.K, made.V)
    got = attention.spliced_attention(
        *(made.q, made.K, made.V, made.plan, made.cos, made.sin, made.partner, case.D**-0.5),
        *(case.softcap, made.sinks),
        n_partial_rows=made.bucket.n_partial_rows,
        max_rows=made.bucket.max_rows,
        blocks=case.blocks,
    )
    assert got.dtype == case.dtype
    # Rounding alone. 16-bit: the turned query, the weights and the result are rounded to 8 bits (bf16) or 11.
    bound = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[case.dtype]
    assert rel_err(got, row_by_row(case, made)) < bound
    assert not got[sum(rows for _, rows, _ in case.sequences) :].any()


SMALL = {name: case for name, case in CASES.items() if case.sequences[0] is not LONG}


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_the_reference_equals_keys_gathered_row_by_row(case):
    made = random_pass(replace(case, dtype=torch.float64))
    attention_reference.store_kv(made.k, made.v, made.plan.kv_at, made.K, made.V)
    got = attention_reference.spliced_attention(
        *(made.q, made.K, made.V, made.plan, made.cos, made.sin, made.partner, case.D**-0.5),
        *(case.softcap, made.sinks),
    )
    assert rel_err(got, row_by_row(case, made)) < 1e-7  # the turn tables are float32


def test_store_kv_writes_its_rows_and_no_others():
    generator = torch.Generator().manual_seed(3)
    k, v = (torch.randn(1, 3, 5, D, generator=generator).to(DEVICE)[0].transpose(0, 1) for D in (80, 48))
    kv_at = torch.tensor([4, -1, 0, 11, -1], dtype=torch.int32, device=DEVICE)
    pools = [torch.randn(12, 3, D, generator=generator).to(DEVICE) for D in (80, 48)]
    expected = [pool.clone() for pool in pools]
    attention_reference.store_kv(k, v, kv_at, *expected)
    assert torch.equal(expected[0][11], k[3]) and torch.equal(expected[1][1], pools[1][1])
    attention.store_kv(k, v, kv_at, *pools)
    assert torch.equal(pools[0], expected[0]) and torch.equal(pools[1], expected[1])
