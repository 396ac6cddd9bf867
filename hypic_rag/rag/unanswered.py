"""What is said where there is nothing to answer from. Imports nothing."""

NOTHING_RELEVANT = "Nothing relevant was found for this question, so there is nothing to answer from."


def no_documents(place: str, name: object, to_do: str = "") -> str:
    """Say that a store or a collection (``place``) has none. to_do: for who cannot use the commands."""
    return f"the {place} {name} has no documents yet: {to_do or f'hypic-rag ingest PATH... --{place} {name}'}"
