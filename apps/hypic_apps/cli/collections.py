"""``hypic-rag collections``: what the server has."""

import json

from hypic_apps.cli import options
from hypic_rag.config import Settings


@options.with_settings("tenant")
def ls(settings: Settings, as_json: options.Json = False) -> None:
    """List a tenant's collections, with their files. Works beside a running server."""
    from hypic_apps.collections import opening

    found = opening.listed(settings)
    if as_json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return
    for one in found:
        print(f"{one['name']:<20}  {one['n_ready']} of {one['n_files']} files ready, {one['n_documents']} documents")
    if not found:
        print("no collections: hypic-rag ingest PATH... --collection NAME makes one")
