"""The two-stream form: an oracle of the assembled forward, from the plain Hugging Face model's own layers.

One stream holds every cached segment in isolation, all of its tokens; the other the active rows. A linear layer
runs token by token in float64 over the whole prompt, with the active rows' inputs in place of the isolated ones;
in a full-attention layer the active queries see keys of both streams, every key rotated at its global position.
Nothing is composed, no query is turned, and no chunk is formed.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hypic_rag.engine.assemble import cached_seam
from hypic_rag.engine.families import reference
from hypic_rag.engine.policy import Policy
from hypic_rag.prompt import Prompt


@dataclass
class Piece:
    """A part of the prompt: its isolated stream (None where all is live) and its active rows."""

    ids: Tensor
    offset: int
    seam: int | None
    isolated: Tensor | None = None  # (m, hidden)
    active: Tensor | None = None  # (rows, hidden)

    @property
    def n_active(self) -> int:
        return len(self.ids) if self.seam is None else self.seam


@torch.no_grad()
def logits(model: Any, prompt: Prompt, policy: Policy) -> Tensor:
    """Logits (n_active, vocabulary) of all active rows. model: plain, float64 or float32."""
    pieces, offset = [], 0
    for part in prompt.parts:
        pieces.append(Piece(torch.tensor(part.ids), offset, cached_seam(part, policy)))
        offset += len(part.ids)
    for piece in pieces:
        embedded = model.model.embed_tokens(piece.ids)
        piece.active = embedded[: piece.n_active]
        piece.isolated = None if piece.seam is None else embedded
    for layer in model.model.layers:
        mix = _linear if hasattr(layer, "linear_attn") else _attention
        mix(model, layer, pieces, policy)
        for piece in pieces:
            piece.active = _mlp(layer, piece.active)
            piece.isolated = None if piece.isolated is None else _mlp(layer, piece.isolated)
    rows = torch.cat([piece.active for piece in pieces])
    return model.lm_head(model.model.norm(rows))


def _mlp(layer: Any, h: Tensor) -> Tensor:
    if not len(h):
        return h
    out = layer.mlp(layer.post_attention_layernorm(h)[None])
    return h + (out[0] if isinstance(out, tuple) else out)[0]


def _linear(model: Any, layer: Any, pieces: list[Piece], policy: Policy) -> None:
    m = layer.linear_attn
    zero = torch.zeros(m.num_v_heads, m.head_k_dim, m.head_v_dim, dtype=torch.float64)
    before = torch.zeros(m.conv_kernel_size - 1, m.conv_dim, dtype=torch.float64)
    R = zero
    for piece in pieces:
        iso = act = None
        if piece.isolated is not None:
            iso = _inputs(m, layer.input_layernorm(piece.isolated), torch.zeros_like(before))
        if piece.n_active:
            act = _inputs(m, layer.input_layernorm(piece.active), before)
            out, R = reference.gdn(*act["rows"], R)
            piece.active = piece.active + _out(m, out, act["z"], piece.active.dtype)
            before = torch.cat((before, act["qkv"]))[-len(before) :]
        if iso is not None:
            interior = tuple(t[piece.seam :] for t in iso["rows"])
            if policy.compose == "exact":
                R = reference.gdn(*interior, R)[1]
            else:
                alone = reference.gdn(*interior, zero)[1]
                R = alone if policy.compose == "last_state" else R + alone
            padded = torch.cat((torch.zeros_like(before), iso["qkv"]))
            before = padded[-len(before) :]
            out, _ = reference.gdn(*iso["rows"], zero)
            piece.isolated = piece.isolated + _out(m, out, iso["z"], piece.isolated.dtype)


def _inputs(m: Any, x: Tensor, before: Tensor) -> dict[str, Any]:
    """Projections and the convolution, window by window. x: (n, hidden)."""
    if hasattr(m, "in_proj_qkv"):
        qkv, z, b, a = m.in_proj_qkv(x), m.in_proj_z(x), m.in_proj_b(x), m.in_proj_a(x)
    else:
        q, k, v, z, b, a = m.fix_query_key_value_ordering(m.in_proj_qkvz(x)[None], m.in_proj_ba(x)[None])
        qkv = torch.cat([t[0].reshape(len(x), -1) for t in (q, k, v)], dim=-1)
        z, b, a = z[0].reshape(len(x), -1), b[0], a[0]
    qkv, b, a = qkv.double(), b.double(), a.double()
    padded = torch.cat((before, qkv))
    weight = m.conv1d.weight[:, 0].double()  # (C, k)
    mixed = F.silu(torch.stack([(padded[i : i + weight.shape[1]] * weight.T).sum(0) for i in range(len(x))]))
    q, k, v = mixed.split((m.key_dim, m.key_dim, m.value_dim), dim=-1)
    q, k = (t.reshape(len(x), m.num_k_heads, m.head_k_dim) for t in (q, k))
    q, k = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    q, k = (t.repeat_interleave(m.num_v_heads // m.num_k_heads, dim=1) for t in (q, k))
    log_decay = -m.A_log.double().exp() * F.softplus(a + m.dt_bias.double())
    v = v.reshape(len(x), m.num_v_heads, m.head_v_dim)
    return {"rows": (q * m.head_k_dim**-0.5, k, v, log_decay, b.sigmoid()), "z": z, "qkv": qkv}


def _out(m: Any, out: Tensor, z: Tensor, dtype: torch.dtype) -> Tensor:
    gated = m.norm(out.to(dtype).reshape(-1, m.head_v_dim), z.reshape(-1, m.head_v_dim))
    return m.out_proj(gated.reshape(len(out), -1))


def _attention(model: Any, layer: Any, pieces: list[Piece], policy: Policy) -> None:
    m = layer.self_attn
    modeling = import_module(type(m).__module__)

    def heads(h: Tensor, first: int, local: int) -> tuple[Tensor, ...]:
        """q, k, v (heads, n, D) and the gate; k at positions from ``first`` on, q and k also from ``local`` on."""
        x = layer.input_layernorm(h)
        q, gate = m.q_proj(x).view(len(x), -1, 2 * m.head_dim).chunk(2, dim=-1)
        q, k = m.q_norm(q), m.k_norm(m.k_proj(x).view(len(x), -1, m.head_dim))
        v = m.v_proj(x).view(len(x), -1, m.head_dim)
        rotated = []
        for start in (first, local):
            positions = torch.arange(start, start + len(x))[None]
            cos, sin = model.model.rotary_emb(
                x, positions[None].expand(3, -1, -1) if "3_5" in modeling.__name__ else positions
            )
            rotated.append(modeling.apply_rotary_pos_emb(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cos, sin))
        (gq, gk), (lq, lk) = rotated
        return gq[0], gk[0], lq[0], lk[0], v.transpose(0, 1), gate.reshape(len(x), -1)

    def attend(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, q_at: Tensor, k_at: Tensor) -> Tensor:
        groups = q.shape[0] // k.shape[0]
        k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
        scores = (q @ k.transpose(-1, -2) * m.scaling).masked_fill(k_at[None] > q_at[:, None], float("-inf"))
        out = (scores.softmax(-1) @ v).transpose(0, 1).reshape(q.shape[1], -1)
        return m.o_proj(out * gate.sigmoid())

    keys, values, at, queries = [], [], [], []
    for piece in pieces:
        if piece.n_active:
            gq, gk, _, _, v, gate = heads(piece.active, piece.offset, piece.offset)
            here = piece.offset + torch.arange(piece.n_active)
            queries.append((piece, gq, gate, here))
            keys.append(gk), values.append(v), at.append(here)
        if piece.isolated is not None:
            gq, gk, lq, lk, v, gate = heads(piece.isolated, piece.offset, 0)
            local = torch.arange(len(piece.ids))
            piece.isolated = piece.isolated + attend(lq, lk, v, gate, local, local)
            (
                keys.append(gk[:, piece.seam :]),
                values.append(v[:, piece.seam :]),
                at.append(piece.offset + local[piece.seam :]),
            )
    k, v, k_at = torch.cat(keys, 1), torch.cat(values, 1), torch.cat(at)
    for piece, q, gate, q_at in queries:
        piece.active = piece.active + attend(q, k, v, gate, q_at, k_at)
