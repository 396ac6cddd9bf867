"""From files and folders to documents: text, web pages, PDF, Office's files, books, tables, JSON, source code."""

from hypic_rag.retrieval.readers.document import ReadFailure, SourceDocument, title_of_file
from hypic_rag.retrieval.readers.files import KINDS, SUFFIXES
from hypic_rag.retrieval.readers.read import read_path

__all__ = ["KINDS", "SUFFIXES", "ReadFailure", "SourceDocument", "read_path", "title_of_file"]
