"""Tiny models of flash-linear-attention whose memory lives; see ``cases``."""

import math
from typing import Any

import fla_two_stream
import torch
from cases import DEVICE, Case, half_lives
from torch import nn


def blocks(model: Any) -> list[Any]:
    return [block for block in model.model.layers if not hasattr(block.attn, "rope_theta")]


def rates(model: Any) -> torch.Tensor:
    """(n_layers, H) log decays a token; every layer has short and long memories."""
    mixers = [block.attn for block in blocks(model)]
    n_heads = getattr(mixers[0], "num_v_heads", mixers[0].num_heads)
    return math.log(2) / half_lives(len(mixers) * n_heads).view(n_heads, len(mixers)).T


def by_channel(rates: torch.Tensor, K: int) -> torch.Tensor:
    """(..., H * K); a head's channels differ from each other by up to four times."""
    return (rates[..., None] * 4 ** torch.linspace(0, 1, K)).flatten(-2)


def write_gently(model: Any) -> None:
    """The delta rule forgets what it overwrites: a long memory is written gently.

    One constant channel of the residual stream gives each head its write strength.
    """
    model.model.embeddings.weight[:, 0] = 0.5
    for name, weight in model.model.layers.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight[0, :] = 0  # nobody writes into the constant channel
    for block, writes in zip(blocks(model), write_strengths(model), strict=True):
        block.attn.b_proj.weight.mul_(0.1)
        block.attn.b_proj.weight[:, 0] = torch.logit(writes) / 2.5


def write_strengths(model: Any) -> torch.Tensor:
    """(n_layers, H)."""
    shape = rates(model).T.shape
    return torch.linspace(0.95, 0.03, shape.numel()).view(shape).T


def gla(model: Any) -> None:
    for block, rate in zip(blocks(model), rates(model), strict=True):
        m, last = block.attn, block.attn.gk_proj[-1]
        rate = rate.view(-1, m.num_kv_groups).mean(1)  # where heads share a gate
        decay = (-m.gate_logit_normalizer * by_channel(rate, m.head_k_dim)).exp()
        last.weight.mul_(0.1)
        last.bias.copy_(decay.logit())


def gated_deltanet(model: Any) -> None:
    for block, rate in zip(blocks(model), rates(model), strict=True):
        block.attn.A_log.copy_((rate / math.log(2)).log())
        block.attn.dt_bias.zero_()
        block.attn.a_proj.weight.mul_(0.1)
    write_gently(model)


def kda(model: Any) -> None:
    for block, rate in zip(blocks(model), rates(model), strict=True):
        m, rate = block.attn, by_channel(rate, block.attn.head_k_dim)
        m.A_log.zero_()
        m.dt_bias.copy_(rate.expm1().log() if m.lower_bound is None else (rate / -m.lower_bound).logit())
        m.f_proj[-1].weight.mul_(0.1)
    write_gently(model)


def scatter(model: Any) -> None:
    """RWKV starts many weights from zero; then its shifts, bonuses and channel mixing could not be told from none."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.normal_(std=0.15)
    for name, p in model.named_parameters():
        if name.endswith((".mu", ".x_k", ".x_r", ".x_w", ".x_v", ".x_a", ".x_g", ".x_bias")):
            p.uniform_(0, 1)
        elif name.endswith(("bonus", "r_k")):
            p.normal_()


def rwkv6(model: Any) -> None:
    scatter(model)
    for block, rate in zip(blocks(model), rates(model), strict=True):
        last = block.attn.w_proj.linear.lora[-1]
        last.weight.mul_(0.1)
        last.bias.copy_(by_channel(rate, block.attn.head_k_dim).log())


def rwkv7(model: Any) -> None:
    """Removals overwrite, as the delta rule's writes do."""
    scatter(model)
    for block, rate, writes in zip(blocks(model), rates(model), write_strengths(model), strict=True):
        m = block.attn
        for lora, value in (
            (m.w_lora, by_channel(rate, m.head_dim) / 0.6065306597126334),
            (m.a_lora, writes.repeat_interleave(m.head_dim)),
        ):
            lora.lora[-1].weight.mul_(0.1)
            lora.lora[-1].bias.copy_(value.logit())


DELTA_NET = {"attn_mode": "chunk" if DEVICE == "cpu" else "fused_recurrent"}  # its chunked kernel refuses float32
FLOAT16_INVERSE = 2e-3  # of RWKV-7's chunked kernel, whatever its inputs are: 8e-4 seen
HYBRID = {"attn": {"layers": [1], "num_heads": 4, "num_kv_heads": 2, "qkv_bias": True}}
WINDOW = {"attn": {"layers": [0], "num_heads": 4, "window_size": 20, "rope_theta": 500.0}}


def case(kind: str, enliven: Any = None, live: bool = True, tolerance: float = 2e-4, **config: Any) -> Case:
    changes: dict[str, Any] = (
        {"tolerance": tolerance} if enliven is None else {"tolerance": tolerance, "enliven": enliven}
    )
    config = {"num_hidden_layers": 2, "num_heads": 4, **config}
    return Case(kind, config, mixers=("attn", "ffn"), stepped=fla_two_stream.stepped, live=live, **changes)  # type: ignore[arg-type]


CASES = {
    "retnet": case("retnet", num_heads=2),  # half-lives of 22 and 44 tokens, whatever the weights
    "retnet, grouped": case(
        "retnet", num_hidden_layers=3, num_heads=2, num_kv_heads=1, use_output_gate=False, feature_map="relu", **HYBRID
    ),
    "gla": case("gla", gla, expand_k=1.0, expand_v=0.5),
    "gla, grouped": case("gla", gla, num_kv_heads=2, use_short_conv=True, feature_map="relu", fuse_norm=False),
    "delta_net": case("delta_net", write_gently, num_heads=8, expand_v=2, **DELTA_NET),
    "delta_net, bare": case(
        "delta_net",
        write_gently,
        expand_k=0.6875,
        use_short_conv=False,
        use_gate=True,
        qk_activation="identity",
        **DELTA_NET,
    ),
    "delta_net, sums": case(  # keys of sum one hardly overwrite
        "delta_net", live=False, use_beta=False, allow_neg_eigval=True, qk_activation="elu", qk_norm="sum", **DELTA_NET
    ),
    "gated_deltanet": case("gated_deltanet", gated_deltanet, head_dim=16, expand_v=2),
    "gated_deltanet, hybrid": case("gated_deltanet", gated_deltanet, head_dim=16, num_hidden_layers=3, **HYBRID),
    "gated_deltanet, grouped": case(
        "gated_deltanet",
        gated_deltanet,
        head_dim=16,
        num_heads=2,
        num_v_heads=4,
        use_gate=False,
        num_hidden_layers=3,
        **WINDOW,
    ),
    "kda": case("kda", kda, head_dim=16, expand_v=2),
    "kda, bounded": case("kda", kda, head_dim=16, num_heads=2, num_v_heads=4, safe_gate=True, lower_bound=-5.0),
    "rwkv6": case("rwkv6", rwkv6),
    "rwkv7": case("rwkv7", rwkv7, tolerance=FLOAT16_INVERSE, head_dim=16, num_heads=None),
    "rwkv7, plain norms": case("rwkv7", rwkv7, tolerance=FLOAT16_INVERSE, head_dim=16, num_heads=None, fuse_norm=False),
}
