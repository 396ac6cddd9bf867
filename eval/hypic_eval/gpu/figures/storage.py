"""Bytes of a cached segment, and what of them are transitions that no longer matter."""

from hypic_eval.gpu.bench import Bench
from hypic_eval.results import ResultRow
from hypic_rag.cache import Hit

TOKENS = 512
MIB = 2**20
GOAL, GOAL_DEAD_SHARE = 40.0, 0.42
DEAD = 1e-4
"""Frobenius norm below which a T moves no answer (DESIGN: dead transitions)."""


def measure(bench: Bench) -> list[ResultRow]:
    n = min(TOKENS, bench.sizes.tokens)
    ids = bench.ids(n, 3)
    key = bench.engine.segment_key(ids)
    bench.forget([ids])
    stored = bench.engine.prefill([ids]).nbytes
    found = bench.engine.cache.lookup(key)
    assert isinstance(found, Hit)
    norms = [
        norm
        for layer in found.entry.layers
        if "T" in layer.tensors
        for norm in layer.tensors["T"].float().flatten(1).norm(dim=1).tolist()
    ]
    layers = [layer for layer in bench.engine.layout.layers if "T" in layer.shapes(1)]
    n_heads = sum(layer.shapes(1)["T"][0] for layer in layers)
    of_T = 4 * layers[0].shapes(1)["T"][1] ** 2
    n_dead = n_heads - sum(norm >= DEAD for norm in norms)
    data = f"a segment of {n}"
    everything = bench.engine.entry_bytes(n)
    how = f"{n_dead} of {n_heads} T have a norm below {DEAD:g} in this entry"
    return [
        bench.row("stored", "bytes", "MiB", stored / MIB, "the entry as engine.prefill stores it", data=data),
        bench.row(
            "every T", "bytes", "MiB", everything / MIB, "by the shapes of all tensors, T and S in float32", data=data
        ),
        bench.row("without dead T", "bytes", "MiB", (everything - n_dead * of_T) / MIB, how, data=data),
        bench.row(
            f"at {100 * GOAL_DEAD_SHARE:.0f}% dead T",
            "bytes",
            "MiB",
            (everything - GOAL_DEAD_SHARE * n_heads * of_T) / MIB,
            "computed from the two above; a codec's savings are only in what is stored",
            data=data,
            goal=GOAL,
        ),
        bench.row("dead T", "share", "%", 100 * n_dead / n_heads, how, data=data, arrow=""),
    ]
