"""``hypic-rag collections``: what the server has, and stores that become collections."""

import dataclasses
import json
from typing import Annotated

from typer import Argument

from hypic_apps.cli import options
from hypic_rag.config import Settings

OF_ENGINE = tuple(name for name in options.PLACE if name not in (*options.DOCUMENTS, "embedder"))


@options.with_settings("tenant")
def ls(settings: Settings, as_json: options.Json = False) -> None:
    """List a tenant's collections, with their files. Works beside a running server."""
    from hypic_rag.collections import opening

    found = opening.listed(settings)
    if as_json:
        print(json.dumps(found, ensure_ascii=False, indent=2))
        return
    for one in found:
        print(f"{one['name']:<20}  {one['n_ready']} of {one['n_files']} files ready, {one['n_documents']} documents")
    if not found:
        print("no collections: hypic-rag ingest PATH... makes one")


@options.with_settings("tenant", "seam_tokens", *OF_ENGINE)
def add_store(
    settings: Settings,
    store: Annotated[str, Argument(metavar="STORE", help="A name under HYPIC_HOME/stores, or a folder.")],
    name: Annotated[str, Argument(metavar="NAME", help="Of the collection; made where it is missing.")] = "default",
    as_json: options.Json = False,
) -> None:
    """Copy a store into a collection, which hypic-rag serve has, too.

    Its documents, vectors and cached segments are copied as they are: nothing is read, embedded or prefilled again.
    What the collection has already stays, and so does the store: delete its folder when you have looked.
    """
    from hypic_apps import session

    settings = dataclasses.replace(settings, store=store, collection=name)
    with session.open_adoption(settings) as (source, segments, engine, opened, ledger):
        from hypic_rag.collections.adoption import adopt

        done = adopt(source, segments, opened, engine, ledger)
    if as_json:
        print(json.dumps(dataclasses.asdict(done), indent=2))
        return
    print(
        f"{done.n_documents} documents of {done.n_files} files are in the collection {name} now, {done.n_there} were; "
        f"{done.n_copied} segments copied"
        + (f", {done.n_cold} will be prefilled when they are asked for" if done.n_cold else "")
    )
    session.say(f"the store {source.folder} is as it was: delete it when you have looked")
