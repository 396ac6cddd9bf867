"""Experts of few rows by our kernel, which reads their weights at the memory's speed, else by transformers.

Registered with transformers as ``experts_implementation="hypic"``.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward

IMPLEMENTATION = "hypic"
KERNEL_DEVICE = "cuda"
MAX_ROWS = 512  # beyond it products, not the weights' memory, take the time
MAX_PAIRS = 16384  # of rows and choices: the kernel's bound
KERNEL_TYPES = (torch.float32, torch.float16, torch.bfloat16)
KERNEL_FORM = {  # of an experts module; what a version of transformers does not know has this value
    "has_gate": True,
    "has_bias": False,
    "has_post_expert_norm": False,
    "is_concatenated": True,
    "is_transposed": False,
    "_is_expert_parallel": False,
}


def hypic_experts(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Run the chosen experts, behind transformers' interface. hidden_states: (N, hidden); top_k_index,
    top_k_weights: (N, k). Returns (N, hidden).

    Without gradients, for at most 512 rows on CUDA, and experts of SiLU(gate) * up: by the kernel.
    """
    if not _suits_kernel(module, hidden_states, top_k_index):
        out: Tensor = grouped_mm_experts_forward(module, hidden_states, top_k_index, top_k_weights)
        return out
    from hypic_kernels.experts import experts  # needs Triton, which a machine without a GPU may lack

    out = experts(hidden_states, top_k_index, top_k_weights, module.gate_up_proj, module.down_proj)
    return out


ExpertsInterface.register(IMPLEMENTATION, hypic_experts)


def _suits_kernel(module: Any, x: Tensor, index: Tensor) -> bool:
    if x.device.type != KERNEL_DEVICE or x.dtype not in KERNEL_TYPES or torch.is_grad_enabled():
        return False
    if not 0 < len(x) <= MAX_ROWS or index.numel() > MAX_PAIRS:
        return False
    return has_kernel(module, x.dtype)


def synchronizes(model: Any) -> bool:
    """Return whether a pass on a GPU waits for some experts: transformers' own ask for their sizes
    but in bfloat16, since Hopper."""
    if model.dtype == torch.bfloat16 and torch.cuda.get_device_capability(model.device) >= (9, 0):
        return False
    return any(hasattr(m, "_apply_gate") and not has_kernel(m, model.dtype) for m in model.modules())


def has_kernel(module: Any, dtype: torch.dtype) -> bool:
    """Return whether our kernel takes these experts, of rows of that type."""
    if any(getattr(module, name, value) != value for name, value in KERNEL_FORM.items()):
        return False
    own_gate = type(module)._apply_gate.__module__ != ExpertsInterface.__module__
    if own_gate or type(module.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        return False
    weights = (module.gate_up_proj, module.down_proj)
    return all(
        w.dtype == dtype and w.is_contiguous() and w.shape[1] % 16 == 0 and w.shape[2] % 16 == 0 for w in weights
    )
