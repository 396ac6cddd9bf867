"""The engine behind HTTP, for many people at once: ``hypic-rag serve``."""
