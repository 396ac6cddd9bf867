"""One token at a time, as the papers write it: the pieces of every family's ``step``, and the loop over tokens.

Runs in the dtype given (float64 in the tests); no chunk, no option. This is what the chunked forms are held to.
"""

import torch
from torch import Tensor

from hypic_rag.engine.families.family import Family
from hypic_rag.engine.families.inputs import RecurrenceInputs


def read(S: Tensor, q: Tensor) -> Tensor:
    """Compute ``q^T S``, (H, V). S: (H, K, V); q: (H, K)."""
    return torch.einsum("hk,hkv->hv", q, S)


def outer(k: Tensor, v: Tensor) -> Tensor:
    """Compute ``k v^T``, (H, K, V). k: (H, K); v: (H, V)."""
    return torch.einsum("hk,hv->hkv", k, v)


def delta_write(S: Tensor, row: RecurrenceInputs) -> Tensor:
    """Replace what S predicts for k by v, with strength beta (Widrow and Hoff's rule)."""
    assert row.beta is not None
    return S + outer(row.k * row.beta[:, None], row.v - read(S, row.k))


def run_tokens(family: Family, rows: RecurrenceInputs, S: Tensor) -> tuple[Tensor, Tensor]:
    """Run all rows, one by one, from S (H, K, V), which is not modified. Returns (N, H, V) and the last state."""
    outputs = []
    for t in range(len(rows.q)):
        S, out = family.step(S, rows.map(lambda x, t=t: x[t]))  # type: ignore[misc]
        outputs.append(out)
    return torch.stack(outputs), S
