"""The default model, smollm2-hybrid-155m: its trained parts, and how its folder is built from them."""

from hypic_rag.default_model.build import NAME, build, ensure

__all__ = ["NAME", "build", "ensure"]
