"""The recurrence of a linear layer over a pass, row by row and splice by splice, in float64."""

import torch
from torch import Tensor

from hypic_kernels.plan import LinearPlan

EXACT, LAST_STATE, ADD = 0, 1, 2


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor | None,
    plan: LinearPlan,
    S: Tensor,
    T: Tensor | None,
    T_at: Tensor | None,
    form: str,
    rates: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute scan.scan row by row, by its arguments. Returns (N, H, V) float64, and (n_slots, H, K, V) float64 with
    the new states; ``S`` itself stays as it is."""
    n_heads = v.shape[1]
    q, k = (t.double().repeat_interleave(n_heads // t.shape[1], dim=1) for t in (q, k))
    v, g = v.double(), log_decay.double().exp()
    g = g[..., None] if log_decay.dim() == 3 else g[..., None, None]
    out, after = torch.zeros_like(v), S.double()
    for m, (start, to) in enumerate(zip(plan.state_from.tolist(), plan.state_to.tolist(), strict=True)):
        if to < 0:
            continue
        R = torch.zeros_like(after[0]) if start < 0 else S[start].double()
        for run in range(int(plan.first_run[m]), int(plan.first_run[m + 1])):
            row, slot = int(plan.run_row[run]), int(plan.run_slot[run])
            for i in range(row, row + int(plan.run_n[run])):
                R = g[i] * R
                written = v[i]
                if beta is not None:
                    written = beta[i].double()[:, None] * (v[i] - torch.einsum("hk,hkv->hv", k[i], R))
                R = R + k[i][..., None] * written[:, None]
                out[i] = torch.einsum("hk,hkv->hv", q[i], R)
            if slot >= 0:
                n_tokens = int(plan.run_tokens[run])
                R = _composed(R, S[slot].double(), T, T_at, rates, form, slot, n_tokens, int(plan.run_compose[run]))
        after[to] = R
    return out, after


def _composed(
    R: Tensor,
    S: Tensor,
    T: Tensor | None,
    T_at: Tensor | None,
    rates: Tensor | None,
    form: str,
    slot: int,
    n_tokens: int,
    compose: int,
) -> Tensor:
    if compose == LAST_STATE:
        return S
    if compose == ADD:
        return R + S
    if form == "length":
        assert rates is not None
        return (n_tokens * rates.double()).exp()[:, None, None] * R + S
    assert T is not None
    if form == "steps":
        assert rates is not None
        return (T[slot].double()[:, None] * rates.double()).exp()[..., None] * R + S
    if form == "scalar":
        return T[slot].double().exp()[:, None, None] * R + S
    if form == "diagonal":
        return T[slot].double().exp()[..., None] * R + S
    assert T_at is not None
    carried = [
        torch.zeros_like(r) if at < 0 else T[at].double() @ r for at, r in zip(T_at[slot].tolist(), R, strict=True)
    ]
    return torch.stack(carried) + S
