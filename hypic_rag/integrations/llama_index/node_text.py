"""Which title and text of a LlamaIndex node the model reads; the same at ingestion and at the question."""

from llama_index.core.schema import BaseNode, MetadataMode


def title_and_text(node: BaseNode) -> tuple[str, str]:
    """Return the title (metadata ``title``, else ``file_name``, else none) and the node's text without any metadata.

    Metadata other than the title never enters a segment: a path, a date or a score that changes would make
    another segment of the same text, and nothing would be found in the cache.
    """
    title = node.metadata.get("title", node.metadata.get("file_name", ""))
    return " ".join(str(title or "").split()), node.get_content(metadata_mode=MetadataMode.NONE)
