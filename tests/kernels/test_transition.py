"""Transitions of segments against a float64 recurrence, row by row."""

import os

import pytest
import torch

pytest.importorskip("triton", reason="pip install triton==3.7.1")
DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("on a CPU the kernels need TRITON_INTERPRET=1", allow_module_level=True)

from hypic_kernels import transition, transition_reference  # noqa: E402


def ut_transform(
    k: torch.Tensor, beta: torch.Tensor, g: torch.Tensor, start: list[int], stop: list[int]
) -> torch.Tensor:
    """W of each chunk of 64 rows, in float64: ``(I + tril(beta K K^T e^{g_i - g_j}, -1))^{-1} beta e^g K``."""
    n_heads = beta.shape[1]
    k = k.double().repeat_interleave(n_heads // k.shape[1], dim=1)
    w = torch.zeros(k.shape[0], n_heads, k.shape[-1], dtype=torch.float64, device=k.device)
    for first, last in zip(start, stop, strict=True):
        for chunk in range(first, last, 64):
            at = slice(chunk, min(chunk + 64, last))
            keys, b, total = k[at].transpose(0, 1), beta[at].double().T[..., None], g[at].double().cumsum(0).T
            system = (b * (keys @ keys.mT) * (total[..., :, None] - total[..., None, :]).exp()).tril(-1)
            right = b * total.exp()[..., None] * keys
            solved = torch.linalg.solve_triangular(
                system + torch.eye(system.shape[-1], device=k.device), right, upper=False
            )
            w[at] = solved.transpose(0, 1)
    return w


@pytest.mark.parametrize(
    "key_heads, heads, dim", [(1, 2, 16), (2, 2, 32)] + ([(16, 32, 128)] if DEVICE == "cuda" else [])
)
@pytest.mark.parametrize(
    "precision, bound", [("ieee", 2e-6), ("fp16", 1e-2)] + ([("tf32", 1e-2)] if DEVICE == "cuda" else [])
)
def test_equals_the_recurrence(key_heads: int, heads: int, dim: int, precision: str, bound: float) -> None:
    """Relative Frobenius norm over each segment.

    ieee: float32 sums. TF32 and halves round X, w and k to 10 bits of fraction once a chunk: 2^-11, relative to a
    product that can be larger than what it leaves of X, most so in short segments of small heads, whose norm is an
    average over few (seen on an H200: 4e-3 in TF32). Halves hold nothing below 6e-8, which strong decay comes to: 2e-6
    in the norm of 128 x 128, where 16-bit models take a transition under 1e-4 for zero.
    """
    torch.manual_seed(0)
    start, stop = [0, 8, 71, 80], [8, 71, 72, 80 + 150]
    n = stop[-1]
    k = torch.nn.functional.normalize(torch.randn(n, key_heads, dim, dtype=torch.float64), dim=-1)
    beta, g = torch.rand(n, heads) * 0.5, -torch.rand(n, heads) * torch.logspace(-4, -0.3, heads)
    k, beta, g = k.to(DEVICE), beta.to(DEVICE), g.to(DEVICE)
    w = ut_transform(k, beta, g, start, stop).float()
    rows = [torch.tensor(t, dtype=torch.int32, device=DEVICE) for t in (start, stop)]
    made = transition.transitions(k.float(), w, g, *rows, precision=precision).double()
    want = transition_reference.transitions(k, beta, g, *rows)
    assert ((made - want).norm(dim=(-2, -1)) / want.norm(dim=(-2, -1)).clamp(1e-3)).max() < bound
