"""What passes of many rows on a GPU share: they keep every multiprocessor busy, so nothing is captured as a graph, and
attention is torch's."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from hypic_kernels.plan import LinearPlan
from torch import Tensor

from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer
from hypic_rag.engine.passes.base import AttentionParams
from hypic_rag.engine.passes.dense_attention import causal


class ManyRows:
    """Verbs for models whose linear layers are all Gated DeltaNet (``LinearLayer.in_chunks``): others run elsewhere."""

    def causal_conv1d(
        self, slot: int, layer: LinearLayer, x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool
    ) -> Tensor:
        raise NotImplementedError(f"no prefill kernel convolves for a layer of {layer.name}")

    def token_shift(self, slot: int, layer: LinearLayer, x: Tensor) -> Tensor:
        raise NotImplementedError(f"no prefill kernel shifts tokens for a layer of {layer.name}")

    def recurrent_scan(self, slot: int, layer: LinearLayer, inputs: RecurrenceInputs) -> Tensor:
        raise NotImplementedError(f"no prefill kernel runs a layer of {layer.name}")


def isolated_plan(spans: Sequence[tuple[int, int]], device: torch.device, tail_to: int | None = None) -> LinearPlan:
    """Plan convolutions that begin with zeros at each span; the tails go to slots 0, 1, ... or the one given."""
    reach = torch.cat([torch.arange(stop - start) for start, stop in spans])
    behind = torch.tensor([stop - start for start, stop in spans])
    n = len(spans)
    slots = range(n) if tail_to is None else [tail_to]
    end = torch.tensor([stop for _, stop in spans])
    none = torch.zeros(0)
    parts = {
        "reach": torch.cat((reach, behind)), "back": torch.full((len(reach) + n,), -1), "end": end,
        "tail_to": torch.tensor(list(slots)),
        **dict.fromkeys(
            ("run_row", "run_n", "run_slot", "run_tokens", "run_compose", "first_run", "state_from", "state_to"), none
        ),
    }  # fmt: skip
    return LinearPlan(**{name: t.to(device, torch.int32) for name, t in parts.items()})


def causal_on_device(q: Tensor, k: Tensor, v: Tensor, params: AttentionParams) -> Tensor:
    if params.is_plain and q.is_cuda:
        return F.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, scale=params.scale, enable_gqa=True
        )[0]
    return causal(q, k, v, params, None)
