"""A pass on a GPU is captured as a graph, so it may neither wait for the device nor bring anything to it.

Held on the meta device, from which nothing can be read: whatever a pass asks of its data raises.
"""

from dataclasses import dataclass
from typing import Any

import cases
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hypic_rag.engine import models
from hypic_rag.engine.backends.choice import has_kernels
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.moe import IMPLEMENTATION

CASES = cases.all_cases()
N = 6


@dataclass(frozen=True)
class Stub:
    """In place of a ``DeviceAssembly``: its kernels, which are not under test, read nothing."""

    cache_spec: CacheSpec
    positions: Tensor

    def causal_conv1d(
        self, slot: int, layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool
    ) -> Tensor:
        assert x.dtype == torch.bfloat16  # the tails' type
        assert x.shape[1] == len(weight) == self.cache_spec.layers[slot].channels and x.stride(1) == 1
        assert weight.is_contiguous() and weight.shape[1] == self.cache_spec.layers[slot].kernel
        return torch.empty_like(x)

    def token_shift(self, slot: int, layer: Any, x: Tensor) -> Tensor:
        raise AssertionError("no kernel does it")

    def recurrent_scan(self, slot: int, layer: Any, inputs: Any) -> Tensor:
        assert inputs.v.shape == (N, layer.n_heads, layer.v_dim) and inputs.k.shape[2] == layer.k_dim
        return torch.empty_like(inputs.v)

    def gated_delta_rule(
        self, slot: int, layer: Any, m: Any, qkv: Tensor, a: Tensor, b: Tensor, beta_scale: float
    ) -> Tensor:
        return qkv.new_empty(N, layer.n_heads, layer.v_dim)

    def attend(self, slot: int, layer: Any, q: Tensor, k: Tensor, v: Tensor, params: Any) -> Tensor:
        assert q.dtype == k.dtype == v.dtype == torch.bfloat16
        return q.new_empty(*q.shape[:2], v.shape[-1])


class OneDevice(TorchDispatchMode):
    """Refuses what comes from another device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.is_meta:
            given = tree_leaves((args, kwargs))
            brought = [t for t in given if isinstance(t, Tensor) and not t.is_meta and t.dim()]
            assert not brought, f"{func} brings {brought[0].shape} from the host"
        return out


def experts(module: Any, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("name", CASES)
def test_a_pass_asks_nothing_of_its_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hypic_rag.engine.moe.grouped_mm_experts_forward", experts)
    model = CASES[name].build("hypic").cpu()
    cache_spec = models.prepare(model)
    if not has_kernels(cache_spec):
        pytest.skip("runs in torch")
    config = model.config.get_text_config()
    if getattr(config, "_experts_implementation", None):
        config._experts_implementation = IMPLEMENTATION
    model.to("meta", torch.bfloat16)
    ids, positions = (torch.empty(1, N, dtype=torch.int64, device="meta") for _ in range(2))
    kept = torch.empty(2, dtype=torch.int64, device="meta")
    with torch.inference_mode(), cache_spec.current.during(Stub(cache_spec, positions[0])), OneDevice():
        out = model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=kept)
    assert out.logits.shape[:2] == (1, 2)
