"""The recurrence of any family over a pass on the device: which kernel, and what it is told of T."""

import torch
from hypic_kernels import chunked_scan, scan
from hypic_kernels.plan import LinearPlan
from torch import Tensor

from hypic_rag.cache.tiers.device_tensors import LayerPools
from hypic_rag.engine.families.inputs import RecurrenceInputs
from hypic_rag.engine.layers import LinearLayer


def recurrent_scan(
    inputs: RecurrenceInputs,
    layer: LinearLayer,
    pools: LayerPools,
    plan: LinearPlan,
    is_spliced: bool,
    is_decoding: bool,
) -> Tensor:
    """Return what the rows read, (N, H, V) float32; states go where the plan says.

    Heads of q and k may serve several of v. is_spliced: whether the pass places a cached interior; is_decoding: whether
    it is of one row a sequence.
    """
    assert layer.family is not None
    q, k, v, log_decay = (t.contiguous() for t in (inputs.q, inputs.k, inputs.v, inputs.log_decay))
    beta = None if inputs.beta is None else inputs.beta.contiguous()
    S = pools.slots["S"]
    transition = layer.family.transition
    if transition.form == "dense":
        T, T_at = pools.matrices, pools.T_at
        assert T is not None and T_at is not None
        if beta is not None and log_decay.dim() == 2 and (is_spliced or not is_decoding):
            return chunked_scan.chunked_scan(q, k, v, log_decay, beta, plan, S, T, T_at, torch.float32)
        if is_spliced:
            return scan.scan(q, k, v, log_decay, beta, plan, S, T, T_at, "dense", torch.float32)
    if not is_spliced:
        return scan.scan(q, k, v, log_decay, beta, plan, S, None, None, "none", torch.float32)
    rates = layer.rates if transition.form in ("steps", "length") else None
    T = pools.slots.get(transition.tensor)
    return scan.scan(q, k, v, log_decay, beta, plan, S, T, None, transition.form, torch.float32, rates)
