"""Full recompute as well as it is done without us: the Hugging Face model over the same weights."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import DynamicCache

from hypic_eval.gpu.clock import elapsed_ms

RULES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
"""The names under which the model's file calls the recurrence, whoever computes it."""
CUDNN_FIRST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
NOISE = 0.3
"""How far, relative to its logits, a way may be from the untouched forward in bfloat16; 0.07 is what two orders of
summing give over 40 layers, and another context gives 1.1."""


@dataclass(frozen=True)
class Way:
    """How the pass is run. fused: fla's convolution and norms in place of torch's operators.

    cudnn: attention by cuDNN where it can, else as torch chooses. chunk: rows a pass, with a cache between; None: one.
    """

    fused: bool = False
    cudnn: bool = False
    chunk: int | None = None

    def __str__(self) -> str:
        parts = ["whole" if self.chunk is None else f"chunks of {self.chunk}"]
        parts += ["fla's convolution and norms"] * self.fused + ["cuDNN attention"] * self.cudnn
        return ", ".join(parts)


class PlainCopy:
    """A second model over the first one's weights, which exist once. Make it before an engine prepares the first."""

    def __init__(self, model: Any):
        shared = {id(t): t for t in (*model.parameters(), *model.buffers())}
        self.model: Any = copy.deepcopy(model, shared).eval()
        config = self.model.config
        assert all(module.config is config for module in self.model.modules() if hasattr(module, "config"))
        config._attn_implementation = "sdpa"
        config._experts_implementation = "grouped_mm"
        self.file: ModuleType = import_module(type(self.model).__module__)
        self.device: torch.device = self.model.device
        self.way = Way()
        self.thorough = False
        self._chosen: dict[int, tuple[Way, dict[str, float]]] = {}
        self._fused: dict[Any, Callable[..., Tensor]] = {}

    @property
    def uses_fla(self) -> bool:
        return self.recurrence.startswith("fla.")

    @property
    def recurrence(self) -> str:
        """The module whose chunked gated delta rule transformers took when it was imported."""
        rule = getattr(self.file, RULES[0])
        found = inspect.getclosurevars(rule).nonlocals.get("implementation", rule)
        return str(found.__module__)

    def __call__(self, token_ids: Sequence[int]) -> int:
        """Return the first token after ``token_ids``, from ids on the host to an id on the host."""
        return int(self.logits(token_ids).argmax())

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Return the logits (vocabulary,) of the last row, on the device."""
        ids = torch.tensor([token_ids], device=self.device)
        with self._running():
            if self.way.chunk is None:
                return self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]  # type: ignore[no-any-return]
            cache = DynamicCache(config=self.model.config)
            *before, last = ids.split(self.way.chunk, dim=1)
            for chunk in before:
                self.model.model(input_ids=chunk, cache=cache, use_cache=True)
            return self.model(input_ids=last, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1]  # type: ignore[no-any-return]

    @torch.inference_mode()
    def prefill(self, segments: Sequence[Sequence[int]]) -> None:
        """Run all layers over segments of equal length, each by itself; nothing is kept."""
        ids = torch.tensor(segments, device=self.device)
        with self._running():
            self.model.model(input_ids=ids, use_cache=False)

    @contextmanager
    def torch_only(self) -> Iterator[None]:
        """Run the recurrence by transformers' own torch code, in full float32, for checks."""
        rules = {name: getattr(getattr(self.file, name), "__wrapped__", getattr(self.file, name)) for name in RULES}
        before, self.way = self.way, Way()
        try:
            with (
                patch.multiple(self.file, **rules),
                torch.backends.cudnn.flags(enabled=False),
            ):  # its convolutions: TF32
                yield
        finally:
            self.way = before

    def choose(self, token_ids: Sequence[int], say: Callable[[str], None]) -> dict[str, float]:
        """Take the fastest way for a prompt of this length. Returns the ms of every way that was tried.

        Chunks with a cache between them only where ``thorough``: they read the experts once more each, and tuning
        their kernels takes a minute.
        """
        n = len(token_ids)
        if n in self._chosen:
            self.way, tried_before = self._chosen[n]
            return tried_before
        first = Way()
        self.way = first
        wanted = self.logits(token_ids).float()
        tried: dict[Way, float] = {first: self._time(token_ids)}
        say(f"full recompute: {first}: {tried[first]:.0f} ms")
        if self.uses_fla:
            self._try(Way(fused=True), token_ids, wanted, tried, say)
        if self.device.type == "cuda":
            self._try(Way(fastest(tried).fused, cudnn=True), token_ids, wanted, tried, say)
        for chunk in (8192, 4096):
            if self.thorough and n > chunk:
                way = fastest(tried)
                self._try(Way(way.fused, way.cudnn, chunk), token_ids, wanted, tried, say)
        self.way = fastest(tried)
        by_name = {str(way): ms for way, ms in tried.items()}
        self._chosen[n] = self.way, by_name
        return by_name

    def _try(
        self, way: Way, token_ids: Sequence[int], wanted: Tensor, tried: dict[Way, float], say: Callable[[str], None]
    ) -> None:
        """Try a way; one that fails or computes something else is told and left out:
        the baseline is the others' best."""
        self.way = way
        try:
            error = relative_error(self.logits(token_ids), wanted)
            if error > NOISE:
                say(f"full recompute: {way}: logits off by {error:.2f}, not used")
                return
            tried[way] = self._time(token_ids)
            say(f"full recompute: {way}: {tried[way]:.0f} ms (logits off by {error:.3f})")
        except Exception as error:  # a kernel of fla or cuDNN that this version or size does not have
            say(f"full recompute: {way}: not used, {type(error).__name__}: {str(error).splitlines()[0][:120]}")

    def _time(self, token_ids: Sequence[int]) -> float:
        """Time a way, in ms, after the pass that compared the logits, which set its kernels up."""
        return elapsed_ms(lambda: self(token_ids), self.device)

    @contextmanager
    def _running(self) -> Iterator[None]:
        fused = self.way.fused
        if fused and not self._fused:
            self._fused = fla_norms(self.model)
        for norm, forward in self._fused.items():
            if fused:
                norm.forward = forward
            else:
                norm.__dict__.pop("forward", None)
        convolution = patch.object(self.file, "causal_conv1d_fn", fla_convolution) if fused else nullcontext()
        attention = sdpa_kernel(CUDNN_FIRST, set_priority=True) if self.way.cudnn else nullcontext()
        with convolution, attention:
            yield


def fastest(tried: dict[Way, float]) -> Way:
    return min(tried, key=lambda way: tried[way])


def relative_error(logits: Tensor, wanted: Tensor) -> float:
    """Measure the Frobenius error of logits without their mean, which no softmax sees."""
    a, b = (t.double() - t.double().mean() for t in (logits, wanted))
    return float((a - b).norm() / b.norm())


def fla_norms(model: Any) -> dict[Any, Callable[..., Tensor]]:
    """Return a forward of fla's for every RMS norm of the model."""
    rms_norm = import_module("fla.modules.norm.layernorm").rms_norm
    rms_norm_gated = import_module("fla.modules.norm.fused_norm_gate").rms_norm_gated
    forwards: dict[Any, Callable[..., Tensor]] = {}
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNormGated"):
            forwards[module] = partial(_gated, rms_norm_gated, module.weight, module.variance_epsilon)
        elif name.endswith("RMSNorm"):
            weight = 1 + module.weight.detach().float()
            forwards[module] = partial(rms_norm, weight=weight, bias=None, eps=module.eps)
    return forwards


def _gated(norm: Callable[..., Tensor], weight: Tensor, eps: float, x: Tensor, gate: Tensor) -> Tensor:
    return norm(x, gate, weight, None, activation="swish", eps=eps)


def fla_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
) -> Tensor:
    """x: (B, C, N), as transformers lays it out; fla wants and gives (B, N, C)."""
    out, _ = import_module("fla.modules.causal_conv1d").causal_conv1d(
        x.transpose(1, 2), weight, bias, activation=activation
    )
    return out.transpose(1, 2)  # type: ignore[no-any-return]
