"""From files and folders to documents: text, Markdown, HTML, PDF, CSV, JSON and JSON lines."""

from hypic_rag.retrieval.readers.document import ReadFailure, SourceDocument, title_of_name
from hypic_rag.retrieval.readers.files import SUFFIXES
from hypic_rag.retrieval.readers.read import read_path

__all__ = ["SUFFIXES", "ReadFailure", "SourceDocument", "read_path", "title_of_name"]
