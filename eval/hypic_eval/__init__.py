"""Measures hypic-rag: answer quality, agreement with a reference, and time to the first token."""
