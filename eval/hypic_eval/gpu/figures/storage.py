"""Bytes of a cached segment by codec, and what of them are transitions that no longer matter."""

from collections.abc import Iterator

import torch

from hypic_eval.gpu.bench import Bench
from hypic_eval.results import ResultRow
from hypic_rag.cache import Entry, codec_named
from hypic_rag.cache.codec import DEAD_NORM

TOKENS = 512
MIB = 2**20
GOALS = {"int8": 40.0, "int8-kv8": 35.0}
"""MiB of a segment of TOKENS, of whose transitions DEAD_SHARE are dead."""
DEAD_SHARE = 0.42


def measure(bench: Bench) -> Iterator[ResultRow]:
    n = min(TOKENS, bench.sizes.tokens)
    ids = bench.ids(n, 3)
    bench.forget([ids])
    bench.engine.prefill([ids])
    entry = bench.stored(ids).entry
    alive = torch.cat([norms(layer.tensors["T"]) >= DEAD_NORM for layer in entry.layers if "T" in layer.tensors])
    n_heads, n_dead = len(alive), int((~alive).sum())
    of_T = max(layer.tensors["T"][0].nbytes for layer in entry.layers if "T" in layer.tensors)
    data = f"a segment of {n}"
    dead = f"{n_dead} of {n_heads} T ({100 * n_dead / n_heads:.1f}%) have a norm below {DEAD_NORM:g} in this entry"
    of_goal = f"the goal is for {100 * DEAD_SHARE:.0f}%, and nothing is scaled to it"
    without = entry.nbytes - n_dead * of_T
    yield bench.row(
        "codec none", "bytes", "MiB", entry.nbytes / MIB, "as engine.prefill makes it: every T, in float32", data=data
    )
    yield bench.row(
        "codec none, without dead T", "bytes", "MiB", without / MIB, f"the same less dead T; {dead}", data=data
    )
    for codec, goal in GOALS.items():
        encoded = codec_named(codec).encode(entry)
        lost = ", ".join(f"{name} {100 * error:.2g}%" for name, error in errors(entry, codec, encoded).items())
        how = f"really encoded; {dead}: {of_goal}; decoded tensors are off by, relative (Frobenius): {lost}"
        yield bench.row(
            f"codec {codec}", "bytes", "MiB", encoded.nbytes / MIB, how, data=data, goal=goal if n == TOKENS else None
        )
    yield bench.row("dead T", "share", "%", 100 * n_dead / n_heads, dead, data=data, arrow="")


def norms(T: torch.Tensor) -> torch.Tensor:
    """Compute the Frobenius norms (H,) of T (H, K, K)."""
    found: torch.Tensor = torch.linalg.vector_norm(T.float(), dim=(1, 2))
    return found.cpu()


def errors(entry: Entry, codec: str, encoded: Entry) -> dict[str, float]:
    """Measure, by what a codec encodes, the Frobenius norm of the difference over that of the
    tensors, of all layers together."""
    decoded = codec_named(codec).decode(encoded)
    found: dict[str, float] = {}
    for name in codec_named(codec).encodings:
        off = of = 0.0
        for made, kept in zip(entry.layers, decoded.layers, strict=True):
            if name in made.tensors:
                tensor = made.tensors[name].float()
                off += square(kept.tensors[name].float() - tensor)
                of += square(tensor)
        if of:
            found[name] = (off / of) ** 0.5
    return found


def square(tensor: torch.Tensor) -> float:
    """Sum of squares, in float64."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2
