"""Stand-ins for Ring linear 2.0 and 2.5, whose code comes with their checkpoints: its modules, names and order.

Left out is what reads no other tokens (experts). The recurrence is a loop over tokens.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from cases import Case
from cases.minimax import SteppedState


class RingConfig(PreTrainedConfig):
    model_type = "bailing_moe_linear"

    vocab_size: int = 157184
    hidden_size: int = 2048
    intermediate_size: int = 5120
    num_hidden_layers: int = 20
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int = 128
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    use_qk_norm: bool = True
    use_qkv_bias: bool = False
    use_bias: bool = False
    initializer_range: float = 0.02
    max_position_embeddings: int = 32768
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float = 0.5
    layer_group_size: int = 5
    group_norm_size: int = 4
    tie_word_embeddings: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None


class Ring25Config(RingConfig):
    model_type = "bailing_moe_v2_5"

    q_lora_rank: int | None = None
    kv_lora_rank: int = 512
    qk_rope_head_dim: int = 64
    qk_nope_head_dim: int = 128
    v_head_dim: int = 128


class GroupRMSNorm(nn.Module):
    """Over each of group_norm_size parts of the channels."""

    def __init__(self, hidden_size: int, group_norm_size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.group_norm_size, self.eps = group_norm_size, eps

    def forward(self, x: Tensor) -> Tensor:
        grouped = x.unflatten(-1, (self.group_norm_size, -1))
        return self.weight * F.rms_norm(grouped, grouped.shape[-1:], eps=self.eps).flatten(-2)


class RotaryEmbedding(nn.Module):
    def __init__(self, config: Any, dims: int):
        super().__init__()
        frequencies = config.rope_parameters["rope_theta"] ** -(torch.arange(0, dims, 2) / dims)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = (position_ids[..., None].float() * self.inv_freq).repeat(1, 1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: (1, H, N, D), its first dims in halves."""
    dims = cos.shape[-1]
    half = x[..., dims // 2 : dims]
    swapped = torch.cat((-half, x[..., : dims // 2]), dim=-1)
    return torch.cat((x[..., :dims] * cos[:, None] + swapped * sin[:, None], x[..., dims:]), dim=-1)


class QueryKeyValue(nn.Module):
    """What the linear layers and the grouped-query ones share."""

    def __init__(self, config: Any, layer_idx: int, num_key_value_heads: int):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.num_heads, self.num_key_value_heads = config.num_attention_heads, num_key_value_heads
        self.num_key_value_groups = self.num_heads // num_key_value_heads
        self.head_dim = config.head_dim
        width = (self.num_heads + 2 * num_key_value_heads) * self.head_dim
        self.query_key_value = nn.Linear(config.hidden_size, width, bias=config.use_qkv_bias)
        if config.use_qk_norm:
            self.query_layernorm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
            self.key_layernorm = nn.RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.dense = nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=config.use_bias)

    def project(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """(1, H, N, D) each."""
        qkv = self.query_key_value(x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
        q, k, v = qkv.split((self.num_heads, self.num_key_value_heads, self.num_key_value_heads), dim=1)
        if self.config.use_qk_norm:
            q, k = self.query_layernorm(q), self.key_layernorm(k)
        return rotate(q, *angles), rotate(k, *angles), v


class LinearAttention(QueryKeyValue):
    def __init__(self, config: Any, layer_idx: int):
        super().__init__(config, layer_idx, config.num_attention_heads)
        width = self.num_heads * self.head_dim
        self.g_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.g_norm = GroupRMSNorm(width, config.group_norm_size, config.rms_norm_eps)
        slopes = torch.tensor([2 ** (-8 * (h + 1) / self.num_heads) for h in range(self.num_heads)])
        scale = 1 - (layer_idx - 1) / (config.num_hidden_layers - 1) + 1e-5
        self.register_buffer("slope", -slopes * scale, persistent=False)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_value: dict[int, Tensor] | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **_: Any,
    ) -> tuple[Tensor, None, Any]:
        q, k, v = self.project(hidden_states, position_embeddings)
        states = {} if past_key_value is None else past_key_value
        S = states.get(self.layer_idx, torch.zeros(self.num_heads, self.head_dim, self.head_dim, device=q.device))
        outputs = []
        for t in range(q.shape[2]):
            S = self.slope.exp().to(q.device)[:, None, None] * S + k[0, :, t, :, None] * v[0, :, t, None, :]
            outputs.append(torch.einsum("hk,hkv->hv", q[0, :, t] * self.head_dim**-0.5, S))
        states[self.layer_idx] = S
        out = self.g_norm(torch.stack(outputs).flatten(1)[None])
        return self.dense(out * self.g_proj(hidden_states).sigmoid()), None, past_key_value


def attention(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    function = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, eager_attention_forward)
    return function(module, q, k, v, mask, scaling=q.shape[-1] ** -0.5)[0].flatten(2)


class GroupedQueryAttention(QueryKeyValue):
    def __init__(self, config: Any, layer_idx: int):
        super().__init__(config, layer_idx, config.num_key_value_heads)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, position_embeddings: Any, **_: Any
    ) -> tuple[Tensor, None, None]:
        q, k, v = self.project(hidden_states, position_embeddings)
        return self.dense(attention(self, q, k, v, attention_mask)), None, None


class MultiLatentAttention(nn.Module):
    num_key_value_groups = 1

    def __init__(self, config: Any, layer_idx: int):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.num_heads = config.num_attention_heads
        self.q_lora_rank, self.kv_lora_rank = config.q_lora_rank, config.kv_lora_rank
        self.qk_rope_head_dim, self.qk_nope_head_dim = config.qk_rope_head_dim, config.qk_nope_head_dim
        self.v_head_dim = config.v_head_dim
        self.qk_head_dim = self.qk_nope_head_dim + self.qk_rope_head_dim
        self.scaling = self.qk_head_dim**-0.5
        hidden, heads, rank = config.hidden_size, self.num_heads, self.kv_lora_rank
        self.q_a_proj = nn.Linear(hidden, self.q_lora_rank, bias=config.use_qkv_bias)
        self.q_a_layernorm = nn.RMSNorm(self.q_lora_rank, eps=1e-6)
        self.q_b_proj = nn.Linear(self.q_lora_rank, heads * self.qk_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, rank + self.qk_rope_head_dim, bias=config.use_qkv_bias)
        self.kv_a_layernorm = nn.RMSNorm(rank, eps=1e-6)
        self.kv_b_proj = nn.Linear(rank, heads * (self.qk_nope_head_dim + self.v_head_dim), bias=False)
        self.dense = nn.Linear(heads * self.v_head_dim, hidden, bias=config.use_qkv_bias)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, position_embeddings: Any, **_: Any
    ) -> tuple[Tensor, None, None]:
        def heads(x: Tensor) -> Tensor:
            return x.view(*hidden_states.shape[:2], -1, x.shape[-1] // self.num_heads).transpose(1, 2)

        def rotated(x: Tensor) -> Tensor:  # pairs are neighbours before, halves after
            return rotate(torch.cat((x[..., ::2], x[..., 1::2]), dim=-1), *position_embeddings)

        q, q_rot = heads(self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))).split(
            (self.qk_nope_head_dim, self.qk_rope_head_dim), dim=-1
        )
        latent, k_rot = self.kv_a_proj_with_mqa(hidden_states).split((self.kv_lora_rank, self.qk_rope_head_dim), dim=-1)
        k, v = heads(self.kv_b_proj(self.kv_a_layernorm(latent))).split(
            (self.qk_nope_head_dim, self.v_head_dim), dim=-1
        )
        q = torch.cat((q, rotated(q_rot)), dim=-1)
        k = torch.cat((k, rotated(k_rot[:, None]).expand(-1, self.num_heads, -1, -1)), dim=-1)
        return self.dense(attention(self, q, k, v, attention_mask)), None, None


class MLP(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, config: Any, layer_idx: int):
        super().__init__()
        group = config.layer_group_size
        is_last = (layer_idx + 1) % group == 0 or layer_idx >= config.num_hidden_layers // group * group
        self.attention_layer_type = "attention" if is_last else "linear_attention"
        full = MultiLatentAttention if hasattr(config, "kv_lora_rank") else GroupedQueryAttention
        self.attention = (full if is_last else LinearAttention)(config, layer_idx)
        self.mlp = MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, attention_mask: Tensor | None, angles: Any, angles_mla: Any) -> Tensor:
        is_latent = self.attention_layer_type == "attention" and angles_mla is not None
        attended, _, _ = self.attention(
            hidden_states=self.input_layernorm(x),
            attention_mask=attention_mask,
            position_embeddings=angles_mla if is_latent else angles,
        )
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class RingPreTrainedModel(PreTrainedModel):
    config: RingConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True


class RingModel(RingPreTrainedModel):
    _input_embed_layer = "word_embeddings"

    def __init__(self, config: Any):
        super().__init__(config)
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config, int(config.head_dim * config.partial_rotary_factor))
        if hasattr(config, "kv_lora_rank"):
            self.rotary_emb_mla = RotaryEmbedding(config, config.qk_rope_head_dim)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None, **_: Any
    ) -> BaseModelOutputWithPast:
        x = self.word_embeddings(input_ids)
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        mask = create_causal_mask(self.config, x, attention_mask, None, position_ids)
        angles = self.rotary_emb(x, position_ids)
        angles_mla = self.rotary_emb_mla(x, position_ids) if hasattr(self, "rotary_emb_mla") else None
        for layer in self.layers:
            x = layer(x, mask, angles, angles_mla)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(x))


class RingForCausalLM(RingPreTrainedModel, GenerationMixin):
    def __init__(self, config: Any):
        super().__init__(config)
        self.model = RingModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, logits_to_keep: Any = 0, **inputs: Any) -> CausalLMOutputWithPast:
        x = self.model(**inputs).last_hidden_state
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(logits=self.lm_head(x[:, kept]))


class Ring25ForCausalLM(RingForCausalLM):
    config: Ring25Config


for config, model in ((RingConfig, RingForCausalLM), (Ring25Config, Ring25ForCausalLM)):
    model.config_class = config
    AutoConfig.register(config.model_type, config)
    AutoModelForCausalLM.register(config, model)


class SteppedRing(SteppedState):
    """With every row's own angles."""

    def forward(self, hidden_states: Tensor, *_: Any, position_embeddings: Any, **__: Any) -> Any:
        self.angles = position_embeddings
        return super().forward(hidden_states), None, None

    def run(self, cache: Any, x: Tensor, rows: range, out: Tensor) -> None:
        for row in rows:
            angles = tuple(t[:, row : row + 1] for t in self.angles)
            out[row] = self.original(x[row][None, None], past_key_value=cache, position_embeddings=angles)[0][0, 0]

    def fresh(self) -> Any:
        return {}

    def state(self, cache: Any) -> Tensor | None:
        return cache.get(self.original.layer_idx)

    def set_state(self, cache: Any, state: Tensor | None) -> None:
        cache.clear()
        if state is not None:
            cache[self.original.layer_idx] = state


SMALL = {"head_dim": 16, "layer_group_size": 2, "group_norm_size": 2, "num_hidden_layers": 5}
LATENT = {"q_lora_rank": 20, "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12}
LINEAR = ("layers.0.attention", "layers.2.attention")  # 1 and 3 end groups, 4 is in none

CASES = {
    "ring_2.0": Case("bailing_moe_linear", SMALL, mixers=LINEAR, stepped=SteppedRing, live=False),
    "ring_2.5": Case("bailing_moe_v2_5", {**SMALL, **LATENT}, mixers=LINEAR, stepped=SteppedRing, live=False),
}
