"""The plain models of flash-linear-attention on a CPU, where its Triton kernels cannot run.

Recurrences become its own naive functions, token by token; norms, activations, convolutions and shifts become its own
references where it has some, plain torch where not. Names are replaced where its layers look them up.
"""

from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from fla.modules.activations import ACT2FN
from fla.modules.norm.layernorm import group_norm_ref, layer_norm_ref, rms_norm_ref
from fla.modules.rotary.ops import rotary_embedding_ref
from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.gated_delta_rule.gate import naive_gdn_gate
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.generalized_delta_rule.dplr.naive import dplr_recurrence
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate
from fla.ops.kda.naive import naive_recurrent_kda
from fla.ops.rwkv6.recurrent_naive import naive_recurrent_rwkv6
from fla.ops.rwkv7.fused_addcmul import torch_addcmul_rwkv7
from fla.ops.rwkv7.fused_k_update import k_update_ref
from fla.ops.rwkv7.gate_output_correction import gate_output_correction_ref
from fla.ops.simple_gla.naive import naive_recurrent_simple_gla
from torch import Tensor

Read = tuple[Tensor, Tensor]
"""Outputs (B, T, H, V) and the last state (B, H, K, V), whatever layout the kernels would keep it in."""


def retention(q: Tensor, k: Tensor, v: Tensor, initial_state: Tensor | None = None, **_: Any) -> Read:
    log_decay = (1 - 2.0 ** (-5.0 - torch.arange(q.shape[2], dtype=torch.float))).log()
    return naive_recurrent_simple_gla(q, k, v, log_decay.expand(q.shape[:3]), initial_state=initial_state)


def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    g: Tensor | None = None,
    initial_state: Tensor | None = None,
    **_: Any,
) -> Read:
    return naive_recurrent_gla(q, k, v, g if gk is None else gk, initial_state, output_final_state=True)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool,
    initial_state: Tensor | None = None,
    **_: Any,
) -> Read:
    if use_qk_l2norm_in_kernel:
        q, k = l2_norm(q), l2_norm(k)
    o, state = delta_rule_recurrence(*heads_first(q, k, v, beta), initial_state)
    return o.transpose(1, 2), state


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    allow_neg_eigval: bool,
    initial_state: Tensor | None = None,
    **_: Any,
) -> Read:
    q, k = (l2_norm(t).repeat_interleave(v.shape[2] // t.shape[2], dim=2) for t in (q, k))
    beta = beta.sigmoid() * (2 if allow_neg_eigval else 1)
    log_decay = naive_gdn_gate(g, A_log, dt_bias)
    return naive_recurrent_gated_delta_rule(q, k, v, beta, log_decay, None, initial_state, output_final_state=True)


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    allow_neg_eigval: bool,
    lower_bound: float | None,
    initial_state: Tensor | None = None,
    **_: Any,
) -> Read:
    beta = beta.sigmoid() * (2 if allow_neg_eigval else 1)
    if lower_bound is None:
        log_decay = naive_kda_gate(g, A_log, dt_bias)
    else:
        log_decay = naive_kda_lowerbound_gate(g, A_log, dt_bias, lower_bound)
    return naive_recurrent_kda(l2_norm(q), l2_norm(k), v, log_decay, beta, None, initial_state, output_final_state=True)


def rwkv6(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, scale: float, initial_state: Tensor | None = None, **_: Any
) -> Read:
    o, state = naive_recurrent_rwkv6(*heads_first(r, k, v, w), u, scale, initial_state, output_final_state=True)
    return o.transpose(1, 2), state


def rwkv7(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    scale: float,
    initial_state: Tensor | None = None,
    **_: Any,
) -> Read:
    scaled = r * scale * r.shape[-1] ** 0.5  # the naive form divides by it
    o, state = dplr_recurrence(*heads_first(scaled, k, v, a, b, w), initial_state)
    return o.transpose(1, 2), state


def mul_rwkv7(r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor, **options: Any) -> Read:
    return rwkv7(r, w, k, v, -kk, kk * a, **options)


def heads_first(*tensors: Tensor) -> tuple[Tensor, ...]:
    """(B, T, H, ...) to (B, H, T, ...)."""
    return tuple(t.transpose(1, 2) for t in tensors)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()


def rms_norm(x: Tensor, residual_in_fp32: bool, **options: Any) -> Any:
    return rms_norm_ref(x, **options)


def layer_norm(x: Tensor, residual_in_fp32: bool, **options: Any) -> Any:
    return layer_norm_ref(x, **options)


def group_norm(x: Tensor, residual_in_fp32: bool, **options: Any) -> Any:
    return group_norm_ref(x, **options)


def rms_norm_gated(
    x: Tensor, g: Tensor, weight: Tensor, bias: Tensor | None, activation: str, eps: float, **_: Any
) -> Tensor:
    gate = g.sigmoid() if activation == "sigmoid" else F.silu(g)
    return rms_norm_ref(x, weight, bias, eps=eps) * gate


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    return F.silu(x) * y


def swiglu_linear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(swiglu(x, y), weight, bias)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """x: (B, T, D); weight: (D, W); the state (B, D, W) is the last W inputs."""
    width = weight.shape[-1]
    before = x.new_zeros(len(x), x.shape[-1], width) if initial_state is None else initial_state
    padded = torch.cat((before, x.mT), dim=-1)
    y = F.conv1d(padded[..., 1:], weight[:, None], bias, groups=len(weight)).mT
    return F.silu(y) if activation in ("silu", "swish") else y, padded[..., -width:]


def causal_conv1d_update(x: Tensor, cache: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    return causal_conv1d(x, initial_state=cache, **options)


def rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, seqlen_offsets: int, **_: Any) -> Tensor:
    rows = slice(seqlen_offsets, seqlen_offsets + x.shape[1])
    return rotary_embedding_ref(x, cos[rows], sin[rows], interleaved)


def token_shift(x: Tensor, cu_seqlens: None = None, cache: Tensor | None = None, output_cache: bool = False) -> Any:
    """The step to the row before; the cache is the last row, (B, D)."""
    before = torch.zeros_like(x[:, :1]) if cache is None else cache[:, None]
    delta = torch.cat((before, x[:, :-1]), dim=1) - x
    return (delta, x[:, -1]) if output_cache else delta


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, causal: bool, window_size: tuple[int, int]) -> Tensor:
    at = torch.arange(q.shape[1], device=q.device)
    seen = at[:, None] >= at
    if window_size[0] >= 0:
        seen &= at[:, None] - at <= window_size[0]
    q, k, v = heads_first(q, k, v)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).transpose(1, 2)


REPLACED: dict[str, dict[str, Any]] = {
    "fla.layers.multiscale_retention": {
        "chunk_retention": retention,
        "fused_recurrent_retention": retention,
    },
    "fla.layers.gla": {"chunk_gla": gla, "fused_recurrent_gla": gla},
    "fla.layers.delta_net": {"chunk_delta_rule": delta_rule, "fused_recurrent_delta_rule": delta_rule},
    "fla.layers.gated_deltanet": {
        "chunk_gated_delta_rule": gated_delta_rule,
        "fused_recurrent_gated_delta_rule": gated_delta_rule,
        "causal_conv1d": causal_conv1d,
    },
    "fla.layers.kda": {"chunk_kda": kda, "fused_recurrent_kda": kda},
    "fla.layers.rwkv6": {"chunk_rwkv6": rwkv6, "fused_recurrent_rwkv6": rwkv6, "token_shift": token_shift},
    "fla.layers.rwkv7": {
        "chunk_rwkv7": rwkv7,
        "fused_mul_recurrent_rwkv7": mul_rwkv7,
        "fused_addcmul_rwkv7": torch_addcmul_rwkv7,
        "fused_k_rwkv7": k_update_ref,
        "gate_output_correction": gate_output_correction_ref,
        "l2_norm": l2_norm,
        "token_shift": token_shift,
    },
    "fla.layers.attn": {"flash_attn_func": flash_attn_func},
    "fla.models.rwkv6.modeling_rwkv6": {"token_shift": token_shift},
    "fla.models.rwkv7.modeling_rwkv7": {"token_shift": token_shift},
    "fla.modules.norm.layernorm": {"rms_norm": rms_norm, "layer_norm": layer_norm, "group_norm": group_norm},
    "fla.modules.norm.fused_norm_gate": {"rms_norm_gated": rms_norm_gated},
    "fla.modules.mlp": {"swiglu": swiglu, "swiglu_linear": swiglu_linear},
    "fla.modules.causal_conv1d.ops": {"causal_conv1d": causal_conv1d, "causal_conv1d_update": causal_conv1d_update},
    "fla.modules.rotary.ops": {"rotary_embedding": rotary_embedding},
}
ACTIVATIONS = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "swish": F.silu,
    "sqrelu": lambda x: F.relu(x).square(),
}


def install() -> None:
    """For the rest of the process."""
    for module, names in REPLACED.items():
        for name, function in names.items():
            assert hasattr(import_module(module), name), f"{module} has no {name}: this version of fla is another"
            setattr(import_module(module), name, function)
    ACT2FN.update(ACTIVATIONS)
