"""How exact composition is: states composed from segments against a float64 recurrence of every token."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from hypic_eval.machine import commit, describe_machine
from hypic_eval.results import ResultRow, Results
from hypic_rag.engine.families import FAMILIES
from hypic_rag.engine.families.family import Family
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.families.step import run_tokens
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.passes.recurrence import walk
from hypic_rag.engine.passes.torch_isolation import TorchIsolation
from hypic_rag.engine.plan import RunRows, build

VERSION = 1
GOAL = 1e-6
"""In float32, at four segments of 256 tokens."""
DECAYS = (0.001, 0.1, 0.9, 0.99, 0.999, 1.0)
"""What a token leaves of the state before it; heads and tokens scatter around it."""
FORMS = ("fp32", "bf16 inputs", "T and S kept in bf16")
NOTES = [
    "Relative Frobenius error of the composed state to the float64 recurrence, token by token, from the same inputs. "
    "fp32: as the engine computes. bf16 inputs: queries, keys and values rounded first, on both sides. "
    "T and S kept in bf16: what an entry would lose by that.",
]


def layer_of(
    family: Family, n_heads: int, k_dim: int, v_dim: int, decay: float, generator: torch.Generator
) -> LinearLayer:
    """Make a layer of random rates. RetNet's and Lightning's heads decay by ``decay``
    to the power 0.5 to 1.5 a token."""
    log = torch.tensor(float(decay)).log()
    rates = None
    if family.name in ("retnet", "lightning"):
        rates = log * torch.linspace(0.5, 1.5, n_heads)
    elif family.name == "mamba1":
        rates = log * (0.5 + torch.rand(n_heads, k_dim, generator=generator))
    return LinearLayer(family, n_heads, k_dim, 1 if family.name == "mamba1" else v_dim, rates=rates)


def random_rows(layer: LinearLayer, n: int, decay: float, generator: torch.Generator) -> RecurrenceInputs:
    """Draw what the layer's recurrence reads of n tokens: keys of length one, write strengths from 0 to 1."""
    assert layer.family is not None
    name, H, K = layer.family.name, layer.n_heads, layer.k_dim

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    log = torch.tensor(float(decay)).log()
    q, k, v = normal(n, H, K), F.normalize(normal(n, H, K), dim=-1), normal(n, H, layer.v_dim)
    rows = RecurrenceInputs(q, k, v, log * (0.5 + uniform(n, H)))
    if name in ("retnet", "lightning"):
        assert layer.rates is not None
        return replace(rows, log_decay=layer.rates.expand(n, H))
    if name == "mamba1":
        assert layer.rates is not None
        dt = 0.5 + uniform(n, H)
        return replace(rows, log_decay=dt[..., None] * layer.rates, dt=dt)
    if name in ("gla", "rwkv6", "kda", "rwkv7"):
        rows = replace(rows, log_decay=log * (0.5 + uniform(n, H, K)))
    if name in ("deltanet", "gdn", "kda"):
        rows = replace(rows, beta=uniform(n, H))
    if name == "deltanet":
        return replace(rows, log_decay=torch.zeros(n, H))
    if name == "rwkv6":
        return replace(rows, bonus=normal(H, K))
    if name == "rwkv7":
        removal = F.normalize(normal(n, H, K), dim=-1)
        return replace(rows, a=-removal, b=removal * uniform(n, H, K))
    return rows


def fold(layer: LinearLayer, rows: RecurrenceInputs, seam: int) -> dict[str, Tensor]:
    """Compute T and S of a segment's interior, as the engine's isolated prefill makes them."""
    n = len(rows.q)
    isolated = TorchIsolation.of(torch.arange(n), [(seam, n)])
    isolated.recurrent_scan(0, layer, rows)
    return isolated.kept[0][0]


def composed(
    layer: LinearLayer,
    segments: Sequence[RecurrenceInputs],
    seam: int,
    R: Tensor,
    keep: Callable[[Tensor], Tensor] = lambda t: t,
) -> list[Tensor]:
    """Return the state after each segment: its seam run from the state before, its interior composed. R: (H, K, V)."""
    assert layer.family is not None
    states = []
    for rows in segments:
        if seam:
            live = build([[RunRows(seam)]])
            R = walk(rows[:seam], live, layer, R[None], lambda s, i, R: R)[1][0]
        kept = {name: keep(t) for name, t in fold(layer, rows, seam).items()}
        S = kept.pop("S")
        R = layer.family.transition.compose(R, kept, S, len(rows.q) - seam, layer)
        states.append(R)
    return states


def run_exactness(
    names: Sequence[str], counts: Sequence[int], length: int, seam: int, on_progress: Callable[[int, int], None]
) -> Results:
    """Measure every family at every decay; errors after each number of segments in ``counts``."""
    found: list[ResultRow] = []
    for step, (decay, name) in enumerate((d, n) for d in DECAYS for n in names):
        on_progress(step, len(DECAYS) * len(names))
        for form in FORMS:
            for n, error in errors(FAMILIES[name], decay, form, counts, length, seam).items():
                bound = GOAL if form == "fp32" and n <= 4 else None
                found.append(
                    ResultRow(
                        task="exactness",
                        version=VERSION,
                        data=f"decay {decay:g} a token, segments of {length}",
                        n=1,
                        mode=name,
                        metric=f"{form}, {n} segments" if n > 1 else f"{form}, 1 segment",
                        arrow="↓",
                        unit="relative error",
                        value=error,
                        interval=None,
                        model="random inputs",
                        commit=commit(),
                        settings={"length": length, "seam": seam},
                        goal=bound,
                    )
                )
    on_progress(1, 1)
    return Results("exactness", describe_machine(), found, NOTES)


def errors(family: Family, decay: float, form: str, counts: Sequence[int], length: int, seam: int) -> dict[int, float]:
    """Measure relative Frobenius errors by the number of segments composed."""
    generator = torch.Generator().manual_seed(0)
    layer = layer_of(family, 3, 32, 16, decay, generator)
    segments = [random_rows(layer, length, decay, generator) for _ in range(max(counts))]
    if form == "bf16 inputs":
        segments = [replace(rows, **{x: getattr(rows, x).bfloat16().float() for x in "qkv"}) for rows in segments]
    R = torch.randn(layer.n_heads, layer.k_dim, layer.v_dim, generator=generator)  # never zero
    keep = (lambda t: t.bfloat16().float()) if form == "T and S kept in bf16" else (lambda t: t)
    states = composed(layer, segments, seam, R, keep)
    found, want = {}, R.double()
    for n, (rows, state) in enumerate(zip(segments, states, strict=True), start=1):
        want = run_tokens(family, rows.to(torch.float64), want)[1]
        if n in counts:
            found[n] = float((state.double() - want).norm() / want.norm())
    return found
