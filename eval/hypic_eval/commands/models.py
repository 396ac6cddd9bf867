"""``hypic-eval models``: the page of families and architectures."""

import logging

import typer


def run() -> None:
    """Print the table of supported models, as docs/models.md has it."""
    from hypic_eval.models_page import page

    logging.getLogger("transformers").setLevel(logging.ERROR)
    typer.echo(page(), nl=False)
