"""Linear plans from a readable description of the sequences of a pass, and what its recurrence reads."""

from dataclasses import dataclass

import torch
from hypic_kernels.plan import LinearPlan

EXACT, LAST_STATE, ADD = 0, 1, 2
NONE = -1


@dataclass(frozen=True)
class Sequence:
    """runs: (rows, slot or NONE, compose). start, to: slots of its state and tail before and after."""

    runs: tuple[tuple[int, int, int], ...]
    start: int
    to: int


def linear_plan(
    sequences: list[Sequence], kernel: int = 4, rows: int = 0, padding: int = 0, device: str = "cpu"
) -> tuple[LinearPlan, int]:
    """``rows`` more rows and ``padding`` more sequences and runs pad it. Returns the plan and N."""
    width = kernel - 1
    near, back, ends, virtual = [], [], [], []
    run_row, run_n, run_slot, run_tokens, run_compose, first_run = [], [], [], [], [], [0]
    row = 0
    for sequence in sequences:
        older, since = sequence.start, 0
        for n, slot, compose in sequence.runs:
            run_row.append(row)
            run_n.append(n)
            run_slot.append(slot)
            run_tokens.append(3 + slot)
            run_compose.append(compose)
            near += [min(since + i, width) for i in range(n)]
            back += [older] * n
            row, since = row + n, since + n
            if slot != NONE:
                older, since = slot, 0
        first_run.append(len(run_row))
        ends.append(row)
        virtual.append((min(since, width), older))
    near += [0] * rows + [reach for reach, _ in virtual] + [0] * padding
    back += [NONE] * rows + [older for _, older in virtual] + [NONE] * padding
    runs_padding = [NONE] * padding
    lists = {
        "reach": near,
        "back": back,
        "end": ends + [0] * padding,
        "tail_to": [s.to for s in sequences] + runs_padding,
        "run_row": run_row + [0] * padding,
        "run_n": run_n + [0] * padding,
        "run_slot": run_slot + runs_padding,
        "run_tokens": run_tokens + [0] * padding,
        "run_compose": run_compose + [0] * padding,
        "first_run": first_run + [len(run_row)] * padding,
        "state_from": [s.start for s in sequences] + runs_padding,
        "state_to": [s.to for s in sequences] + runs_padding,
    }
    tensors = {name: torch.tensor(values, dtype=torch.int32, device=device) for name, values in lists.items()}
    return LinearPlan(**tensors), row + rows


def random_pass(q_heads, k_heads, n_heads, K, V, delta, channel_decay, form, n, n_slots, device="cpu"):
    """q, k, v, log_decay, beta, S, T, T_at and rates of a scan: keys of length one, and decays that leave the state
    alive, so that losing T R shows."""

    def random(*shape):
        return torch.randn(*shape, device=device)

    q, k, v = random(n, q_heads, K) * K**-0.5, random(n, k_heads, K), random(n, n_heads, V)
    k = k / k.norm(dim=-1, keepdim=True)
    log_decay = -0.1 * torch.rand(n, n_heads, *([K] if channel_decay else []), device=device)
    beta = torch.rand(n, n_heads, device=device) if delta else None
    S, at, rates = random(n_slots, n_heads, K, V), None, None
    if form == "dense":
        T = random(2 * n_heads, K, K) * K**-0.5
        at = torch.randint(-1, 2 * n_heads, (n_slots, n_heads), device=device, dtype=torch.int32)
        assert (at < 0).any() and (at >= 0).any()
    elif form in ("none", "length"):
        T = None
    elif form == "steps":
        T = torch.rand(n_slots, n_heads, device=device)
    else:
        T = torch.rand(n_slots, n_heads, *([K] if form == "diagonal" else []), device=device).log()
    if form in ("steps", "length"):
        rates = -torch.rand(n_heads, *([K] if form == "steps" else []), device=device) / 3
    return q, k, v, log_decay, beta, S, T, at, rates


def rel_err(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative, in Frobenius' norm."""
    expected = expected.double()
    return float((got.double() - expected).norm() / expected.norm())
