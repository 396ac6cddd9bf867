"""What the hardware alone would take for a warm pass: read once what must be read, at the bandwidth measured."""

from typing import Any

import torch

from hypic_eval.gpu.bench import Bench
from hypic_eval.gpu.plain import PlainCopy, Way
from hypic_rag.prompt import Ids, Prompt


def floor_ms(bench: Bench, prompt: Prompt) -> float:
    """Estimate the least time, in ms, of the first token of a warm prompt: weights, of experts only those
    touched, and the segments' entries."""
    touched = experts_touched(bench.plain, prompt, bench.seam)
    n_experts = bench.plain.model.config.num_experts
    entries = sum(bench.stored_bytes(ids) for ids in prompt.documents)
    weights = weight_bytes(bench.plain.model, touched)
    share = sum(touched) / (n_experts * len(touched))
    bench.notes.append(
        f"Floor at {len(prompt.documents)} segments: {weights / 1e9:.1f} GB of weights with {100 * share:.1f}% of the "
        f"experts touched by the active rows, and {entries / 1e9:.2f} GB of entries."
    )
    return 1e3 * (weights + entries) / bench.device_bandwidth()


def weight_bytes(model: Any, touched: list[int]) -> float:
    """Count the bytes that a pass reads: all but the embeddings, of which it takes a few
    rows, and the experts not touched."""
    experts = [layer.mlp.experts for layer in model.model.layers]
    of_experts = [sum(weight.nbytes for weight in expert.parameters()) for expert in experts]
    others = sum(weight.nbytes for weight in model.parameters()) - sum(of_experts)
    others -= model.get_input_embeddings().weight.nbytes
    n: int = model.config.num_experts
    return float(others + sum(nbytes * some / n for nbytes, some in zip(of_experts, touched, strict=True)))


def experts_touched(plain: PlainCopy, prompt: Prompt, seam: int) -> list[int]:
    """Count how many experts of each layer the active rows of a prompt are sent to, in a full recompute of it.

    Counted there and not in the assembled pass, whose rows are the same but for what reuse loses, since a hook
    would not run inside a captured graph.
    """
    rows = torch.tensor(active_rows(prompt, seam), device=plain.device)
    counts: list[int] = []

    def count(router: Any, given: Any, made: Any) -> None:
        counts.append(int(made[2][rows].unique().numel()))

    hooks = [layer.mlp.gate.register_forward_hook(count) for layer in plain.model.model.layers]
    before, plain.way = plain.way, Way()
    try:
        plain.logits(prompt.token_ids)
    finally:
        plain.way = before
        for hook in hooks:
            hook.remove()
    return counts


def active_rows(prompt: Prompt, seam: int) -> list[int]:
    """List the positions of the rows that a warm pass computes: every document's seam, and all that is live."""
    rows: list[int] = []
    position = 0
    for part in prompt.parts:
        ids: Ids = part.ids
        n = {"leading": 0, "document": min(seam, len(ids)), "live": len(ids)}[part.kind]
        rows += range(position, position + n)
        position += len(ids)
    return rows
