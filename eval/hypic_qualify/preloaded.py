"""Imported once, by the process that many servers are forked from: what each would import and set up again."""

import hypic_apps.server.app
import hypic_apps.session  # noqa: F401
import sentence_transformers  # noqa: F401
import transformers.models.qwen3_5_moe.modeling_qwen3_5_moe  # noqa: F401
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

import hypic_rag.engine
import hypic_rag.retrieval  # noqa: F401

get_checkpoint_conversion_mapping("")  # type: ignore[no-untyped-call]  # compiles patterns, a third of a server's start
