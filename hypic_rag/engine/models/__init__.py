"""One file a Hugging Face architecture: which modules read other tokens, and how it rotates.

``prepare(model)`` finds the file by ``config.model_type``, swaps the linear mixers in place, and returns what the
engine needs to know. Adding a model: docs/adding-a-model.md.
"""

from types import ModuleType

from transformers import PreTrainedModel

from hypic_rag.engine.models import qwen3_5, qwen3_next
from hypic_rag.engine.models.layout import Layout
from hypic_rag.errors import UnsupportedModel

ARCHITECTURES: tuple[ModuleType, ...] = (qwen3_5, qwen3_next)
MODEL_TYPES: dict[str, ModuleType] = {name: file for file in ARCHITECTURES for name in file.MODEL_TYPES}


def prepare(model: PreTrainedModel) -> Layout:
    """Swap what reads other tokens. Raises UnsupportedModel."""
    kind = model.config.model_type
    check_supported(kind, type(model).__name__)
    return MODEL_TYPES[kind].prepare(model)  # type: ignore[no-any-return]


def check_supported(model_type: str, name: str) -> None:
    """Before anything large is loaded. Raises UnsupportedModel."""
    if model_type not in MODEL_TYPES:
        raise UnsupportedModel(
            f"{name} is of the architecture {model_type!r}, which no file of hypic_rag/engine/models knows; known: "
            f"{', '.join(sorted(MODEL_TYPES))}. Use one of these with --model, or add a file: docs/adding-a-model.md"
        )
