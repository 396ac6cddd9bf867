"""From the base model's GGUF file and what was trained to the tensors of a Hugging Face checkpoint.

Trained were the mixers and the norms, which replace the base's, and low-rank changes of its MLPs, which are added.
"""

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
# A change of NAME.weight (out, in) is NAME.lora_b (out, rank) @ NAME.lora_a (rank, in).
CHANGE_A, CHANGE_B = ".lora_a", ".lora_b"
# What a file of mixers may lack: the base has its own norms, and its MLPs may stay as they are.
MAY_LACK = re.compile(r"model\.norm\.weight|.*layernorm\.weight|.*\.lora_[ab]")


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


def trained_tensors(mixers_file: Path) -> dict[str, Tensor]:
    """Read mixers, norms and low-rank changes by name, all float32: ``weight = int8 * scale`` multiplied out.

    A scale is one a row, (out,) or (out, 1). Weights that are not int8 are taken as they are.
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
        tensors[name] = weight.float()
        if weight.dtype == torch.int8:
            tensors[name] *= _scale_of(name, stored, mixers_file)
    return tensors


def merge(base: dict[str, Tensor], trained: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put what was trained in the base's place, and add ``lora_b @ lora_a`` to the matrices it is of: the checkpoint.

    base: of ``base_tensors``. trained: of ``trained_tensors``. Neither is changed.
    Matrices come as bfloat16 (out, in), all else as float32.
    Raises ModelNotReady for a change with one factor, or of a matrix that the base has not.
    """
    import torch

    whole = base | {name: weight for name, weight in trained.items() if not name.endswith((CHANGE_A, CHANGE_B))}
    changed = {name.removesuffix(end) for name in trained for end in (CHANGE_A, CHANGE_B) if name.endswith(end)}
    for name in changed:
        a, b, matrix = trained.get(name + CHANGE_A), trained.get(name + CHANGE_B), base.get(f"{name}.weight")
        if a is None or b is None or matrix is None:
            lacks = "the base has no such matrix" if matrix is None else f"{CHANGE_A} and {CHANGE_B} belong together"
            raise ModelNotReady(f"the low-rank change of {name} cannot be multiplied out: {lacks}")
        whole[f"{name}.weight"] = matrix.float() + b @ a
    return {name: weight.to(torch.bfloat16 if weight.dim() == 2 else torch.float32) for name, weight in whole.items()}


def check_layout(mixers_file: Path, wanted_file: Path) -> None:
    """Raise ModelNotReady unless a file's weights have the names and shapes of those in ``wanted_file``.

    Norms and low-rank changes may be absent, but not others.
    """
    found, wanted = _layout(mixers_file), _layout(wanted_file)
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) == wanted.get(name) or (name not in found and MAY_LACK.fullmatch(name)):
            continue
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
    """Return it as (out, 1) float32."""
    scale, n_rows = stored.get(name + SCALE), stored[name].shape[0]
    if scale is None or tuple(scale.shape) not in {(n_rows,), (n_rows, 1)}:
        found = "absent" if scale is None else f"of shape {tuple(scale.shape)}"
        raise ModelNotReady(
            f"mixers {mixers_file}: {name} is int8, so {name + SCALE} must have shape ({n_rows},) or ({n_rows}, 1), "
            f"but it is {found}"
        )
    return scale.float().view(n_rows, 1)


def _layout(mixers_file: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(mixers_file, framework="pt") as opened:
            names = [name for name in opened.keys() if not name.endswith(SCALE)]  # noqa: SIM118
            return {name: tuple(opened.get_slice(name).get_shape()) for name in names}
    except (OSError, SafetensorError) as error:
        raise ModelNotReady(f"mixers {mixers_file} cannot be read: {error}") from error
