"""What the engine does on a GPU, on the shape of a large hybrid: ``hypic-eval gpu``."""
