"""From the base model's GGUF file and the trained mixers to the tensors of a Hugging Face checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_rag.errors import ModelNotReady

if TYPE_CHECKING:
    from torch import Tensor

# GGUF name -> checkpoint name, and whether it is a norm (the architecture stores norms minus one).
TOP_LEVEL = {
    "token_embd": ("model.embed_tokens", False),
    "output_norm": ("model.norm", True),
}
IN_EVERY_LAYER = {
    "ffn_gate": ("mlp.gate_proj", False),
    "ffn_up": ("mlp.up_proj", False),
    "ffn_down": ("mlp.down_proj", False),
    "attn_norm": ("input_layernorm", True),
    "ffn_norm": ("post_attention_layernorm", True),
}
SCALE = ".scale"


def base_tensors(gguf_file: Path) -> dict[str, Tensor]:
    """Read embeddings, norms and MLPs of a GGUF file, by checkpoint name.

    Matrices come as bfloat16 (out, in), norms as float32 minus one. Attention tensors are left out, since the
    mixers replace them, and so is a separate head, since it is tied to the embeddings.

    Raises ModelNotReady if the file cannot be read as GGUF or holds none of the names.
    """
    import torch
    from gguf import GGUFReader, dequantize

    try:
        reader = GGUFReader(gguf_file)
    except (OSError, ValueError, IndexError) as error:
        raise ModelNotReady(f"{gguf_file.name} cannot be read as a GGUF file: {error}") from error
    tensors = {}
    for stored in reader.tensors:
        name, is_norm = _checkpoint_name(stored.name)
        if name is None:
            continue
        # A copy: for float32 tensors dequantize gives a read-only view of the mapped file.
        weight = torch.tensor(dequantize(stored.data, stored.tensor_type), dtype=torch.float32)
        tensors[name] = weight - 1 if is_norm else weight.to(torch.bfloat16)
    if not tensors:
        raise ModelNotReady(f"{gguf_file.name} holds no tensor of a llama-like model")
    return tensors


def mixer_tensors(mixers_file: Path) -> dict[str, Tensor]:
    """Read the mixers of every layer, by checkpoint name: ``weight = int8 * scale`` multiplied out.

    Matrices come as bfloat16 (out, in); ``A_log``, ``dt_bias``, ``conv1d`` and norms as float32, as stored.
    Weights that are not int8 are taken as they are.

    Raises ModelNotReady if the file cannot be read or an int8 weight has no scale of its shape.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(mixers_file)
    except (OSError, SafetensorError) as error:
        raise ModelNotReady(f"mixers {mixers_file} cannot be read: {error}") from error
    tensors = {}
    for name, weight in stored.items():
        if name.endswith(SCALE):
            continue
        if weight.dtype == torch.int8:
            weight = weight.float() * _scale_of(name, stored, mixers_file).float()
        is_matrix = weight.dim() == 2
        tensors[name] = weight.to(torch.bfloat16 if is_matrix else torch.float32)
    return tensors


def check_same_layout(mixers_file: Path, wanted_file: Path) -> None:
    """Raise ModelNotReady unless both mixer files hold weights of the same names and shapes."""
    found, wanted = _layout(mixers_file), _layout(wanted_file)
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise ModelNotReady(
                f"mixers {mixers_file} do not fit this model: {name} is {found.get(name, 'absent')}, "
                f"but {wanted.get(name, 'absent')} is wanted. Give a file with the names and shapes of "
                f"{wanted_file}, or leave it out to use that one."
            )


def _checkpoint_name(gguf_name: str) -> tuple[str | None, bool]:
    stem = gguf_name.removesuffix(".weight")
    if stem in TOP_LEVEL:
        name, is_norm = TOP_LEVEL[stem]
        return f"{name}.weight", is_norm
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if match is None or match[2] not in IN_EVERY_LAYER:
        return None, False
    name, is_norm = IN_EVERY_LAYER[match[2]]
    return f"model.layers.{match[1]}.{name}.weight", is_norm


def _scale_of(name: str, stored: dict[str, Tensor], mixers_file: Path) -> Tensor:
    scale = stored.get(name + SCALE)
    wanted = (stored[name].shape[0], 1)
    if scale is None or tuple(scale.shape) != wanted:
        found = "absent" if scale is None else f"of shape {tuple(scale.shape)}"
        raise ModelNotReady(
            f"mixers {mixers_file}: {name} is int8, so {name + SCALE} must have shape {wanted}, but it is {found}"
        )
    return scale


def _layout(mixers_file: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(mixers_file, framework="pt") as opened:
            names = [name for name in opened.keys() if not name.endswith(SCALE)]  # noqa: SIM118
            return {name: tuple(opened.get_slice(name).get_shape()) for name in names}
    except (OSError, SafetensorError) as error:
        raise ModelNotReady(f"mixers {mixers_file} cannot be read: {error}") from error
