"""The collection that the settings name: looked up to be read, or claimed and made to be written. Imports no torch."""

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypic_rag.collections import rows
from hypic_rag.collections.claim import claimed, private_folder
from hypic_rag.collections.database import FILE, TENANT, CollectionDatabase
from hypic_rag.collections.tenant import Tenant
from hypic_rag.config import Settings, home
from hypic_rag.errors import BadInput, nearest
from hypic_rag.paths import exists

DEFAULT = "default"


@dataclass(frozen=True)
class Collection:
    """server: the folder of the server that it is in (HYPIC_HOME/server). folder: of its store."""

    name: str
    tenant: Tenant
    id: str
    server: Path
    database: CollectionDatabase

    @property
    def folder(self) -> Path:
        return rows.folder_of(self.server, self.tenant.id, self.id)

    @property
    def namespace(self) -> str:
        """The namespace of its segments."""
        return self.tenant.namespace(self.id)


def server_folder() -> Path:
    """Return where the server keeps everything."""
    return home() / "server"


def is_there(settings: Settings) -> bool:
    """Return whether there is the collection. Raises BadInput for a name that cannot be one."""
    name, tenant, server = *_names(settings), server_folder()
    if not exists(server / FILE):
        return False
    with contextlib.closing(CollectionDatabase(server / FILE)) as database, database.reading() as db:
        return rows.find(db, tenant.id, name) is not None


@contextlib.contextmanager
def named(settings: Settings) -> Iterator[Collection]:
    """Look the collection up as ``find``, and close its database at the end."""
    collection = find(settings)
    with contextlib.closing(collection.database):
        yield collection


def find(settings: Settings) -> Collection:
    """Open the collection to be read, also beside a running server; its database is the caller's to close.

    Raises BadInput where there is none.
    """
    name, tenant, server = *_names(settings), server_folder()
    if not exists(server / FILE):
        raise _absent(name, tenant, [])
    with contextlib.ExitStack() as opened:
        database = opened.enter_context(contextlib.closing(CollectionDatabase(server / FILE)))
        with database.reading() as db:
            found = rows.find(db, tenant.id, name)
            query = "SELECT name FROM collections WHERE tenant = ? AND NOT deleting ORDER BY name"
            others = [row["name"] for row in db.execute(query, (tenant.id,))]
        if found is None:
            raise _absent(name, tenant, others)
        opened.pop_all()
    return Collection(name, tenant, str(found["id"]), server, database)


@contextlib.contextmanager
def claimed_to_write(settings: Settings) -> Iterator[Callable[[], Collection]]:
    """Claim the server's folder for this process alone; what is given looks the collection up, and makes it where it is
    missing. Raises BadInput where a server or another ingestion is at work."""
    name, tenant, server = *_names(settings), server_folder()
    private_folder(server)
    with claimed(server, "ingest"), contextlib.closing(CollectionDatabase(server / FILE)) as database:
        rows.check_known(database, server)

        def found_or_made() -> Collection:
            with database.writing() as db:
                found = rows.find(db, tenant.id, name)
                collection_id = rows.make(db, tenant.id, name) if found is None else str(found["id"])
            return Collection(name, tenant, collection_id, server, database)

        yield found_or_made


def listed(settings: Settings) -> list[dict[str, Any]]:
    """List the collections of the settings' tenant, by their names. Raises BadInput."""
    tenant, server = _tenant(settings), server_folder()
    if not exists(server / FILE):
        return []
    with contextlib.closing(CollectionDatabase(server / FILE)) as database, database.reading() as db:
        query = "SELECT id, name FROM collections WHERE tenant = ? AND NOT deleting ORDER BY name"
        of_tenant = db.execute(query, (tenant.id,)).fetchall()
        return [{"name": row["name"], "id": row["id"], **rows.sums(db, row["id"])} for row in of_tenant]


def _tenant(settings: Settings) -> Tenant:
    if not re.fullmatch(TENANT, settings.tenant):
        raise BadInput(f"{settings.tenant!r} names no tenant: hypic-rag keys list shows them")
    return Tenant(settings.tenant)


def _names(settings: Settings) -> tuple[str, Tenant]:
    name = settings.collection or DEFAULT
    if why := rows.bad_name(name):
        raise BadInput(why)
    return name, _tenant(settings)


def _absent(name: str, tenant: Tenant, others: list[str]) -> BadInput:
    of = "" if tenant.id == "local" else f" of the tenant {tenant.id}"
    there = f" All: {', '.join(others)}." if others else ""
    return BadInput(
        f"there is no collection {name!r}{of}.{nearest(name, others)}{there} "
        f"Make it with hypic-rag ingest PATH...{'' if name == DEFAULT else f' --collection {name}'}"
    )
