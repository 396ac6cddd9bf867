"""One file a Hugging Face architecture: which modules read other tokens, and how it rotates.

A file here names its ``MODEL_TYPES`` and defines ``prepare(model, cache_spec)``, which swaps the linear mixers in place
and gives every layer that reads other tokens its slot. Adding a model: docs/adding-a-model.md.
"""

import difflib
import pkgutil
from collections.abc import Callable
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.errors import UnsupportedModel


def _files() -> dict[str, ModuleType]:
    files = [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {kind: file for file in files for kind in getattr(file, "MODEL_TYPES", ())}


MODEL_TYPES: dict[str, ModuleType] = _files()
"""The file of each ``config.model_type``."""


def prepare(model: PreTrainedModel) -> CacheSpec:
    """Swap what reads other tokens. Raises UnsupportedModel."""
    text = text_part(model)
    kind = text.config.model_type
    check_supported(kind, type(model).__name__, lambda: mixers(model))
    cache_spec, file = CacheSpec(), MODEL_TYPES[kind]
    package = type(model).__module__.partition(".")[0]
    if package == "fla" and not hasattr(file, "REGISTERED_BY"):
        raise UnsupportedModel(
            f"the class of this {kind} model is flash-linear-attention's, which takes the place of transformers' own "
            "in a process that has imported it. Load the model in another process"
        )
    file.prepare(text, cache_spec)
    return cache_spec


def text_part(model: Any) -> Any:
    """Return the model, or of one with a vision tower what a model file reads: the text's ``config`` and ``model``."""
    config = model.config.get_text_config()
    return model if config is model.config else SimpleNamespace(config=config, model=model.base_model.language_model)


def mixers_of(config: Any) -> tuple[str, ...]:
    """Name the ``mixers`` of a model that need not be loaded; none where transformers cannot make it."""
    try:
        with torch.device("meta"):
            return mixers(AutoModelForCausalLM.from_config(config))  # type: ignore[no-untyped-call]
    except Exception:  # whatever a class that nobody here knows may raise
        return ()


def mixers(model: PreTrainedModel) -> tuple[str, ...]:
    """Name the classes of the modules that probably read other tokens, each once."""
    words = ("attention", "attn", "mixer", "mamba", "delta", "conv", "retention", "recurrent", "ssm", "rwkv")
    parts = ("Norm", "Embedding", "MLP", "Mlp", "FeedForward", "Conv1d", "Conv1D", "List")
    wholes = ("Model", "LM", "Layer", "Block")
    names = {type(module).__name__ for module in model.modules()}
    return tuple(
        sorted(n for n in names if any(word in n.lower() for word in words) and not n.endswith(parts + wholes))
    )


def check_supported(model_type: str, name: str, mixers: Callable[[], tuple[str, ...]]) -> None:
    """Raise UnsupportedModel, before anything large is loaded, where no model file knows
    the type or its file refuses it.

    name: with the class that the checkpoint declares; mixers: asked for the error.
    """
    if model_type in MODEL_TYPES:
        for declared, reason in getattr(MODEL_TYPES[model_type], "REFUSED", {}).items():
            if declared in name:
                raise UnsupportedModel(f"{name} cannot be used: {reason}. Choose another with --model")
        return
    near = difflib.get_close_matches(model_type, MODEL_TYPES, n=3, cutoff=0.5)
    raise UnsupportedModel(
        f"{name} is of the architecture {model_type!r}, which no file of hypic_rag/engine/models knows"
        + (f" (its mixers: {', '.join(names)})" if (names := mixers()) else "")
        + (f"; near: {', '.join(near)}" if near else "")
        + ". Use a model of docs/models.md with --model, or add a file: docs/adding-a-model.md"
    )
