"""``hypic-rag info``: the model, the documents and the cache."""

import json

from hypic_apps.cli import options
from hypic_rag.config import Settings


@options.with_settings(*options.PLACE)
def run(settings: Settings, as_json: options.Json = False) -> None:
    """Show the model and its layers, the index, and the cache by tier."""
    from hypic_apps import overview

    fields = overview.fields(settings)
    print(json.dumps(fields, ensure_ascii=False, indent=2) if as_json else overview.text(fields))
