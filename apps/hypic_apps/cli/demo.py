"""``hypic-rag demo``: the bundled documents and three questions about them."""

import json

from hypic_apps.cli import options
from hypic_rag.config import Settings


@options.with_settings("top_k", "seam_tokens", "model", "dtype", "device")
def run(settings: Settings, as_json: options.Json = False) -> None:
    """Ingest the bundled documents into a collection of their own and ask three questions about them."""
    from hypic_apps import report
    from hypic_apps.demonstration import demonstrate

    shown = []
    for fields in demonstrate(settings):
        shown.append(fields)
        if not as_json:
            print(f"\nQuestion: {fields['question']}\nAnswer: {report.answer_text(fields)}", flush=True)
    if as_json:
        print(json.dumps(shown, ensure_ascii=False, indent=2))
