"""``/v1/tenants``: the operator's look at whose what is, and the deletion of all that is of a tenant."""

import re
import time
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from hypic_apps.server.app_state import Serving
from hypic_apps.server.errors import ApiError
from hypic_apps.server.schemas.responses import ListBody, ok
from hypic_rag.collections.database import TENANT
from hypic_rag.collections.tenant import Tenant, tenant_of

router = APIRouter(prefix="/v1/tenants", tags=["operator"])


class TenantBody(BaseModel):
    """n_keys: in force. bytes: of segments on disk, those of documents in requests included."""

    id: str
    object: Literal["tenant"]
    n_keys: int
    n_collections: int
    n_files: int
    n_documents: int
    bytes: int


class TenantDeleted(BaseModel):
    id: str
    object: Literal["tenant"]
    deleted: Literal[True]
    n_keys: int
    n_collections: int


@router.get("", responses=ok(ListBody[TenantBody]))
def listed(serving: Serving) -> dict[str, Any]:
    """List tenants that have keys in force, collections or segments. Needs an operator's key."""
    n_keys: dict[str, int] = {}
    for key in serving.keys.all():
        if key.tenant is not None and key.is_in_force(time.time()):
            n_keys[key.tenant] = n_keys.get(key.tenant, 0) + 1
    disk = serving.engine.cache.disk
    nbytes: dict[str, int] = {}
    for namespace, (_, n) in ({} if disk is None else disk.by_namespace()).items():
        nbytes[tenant_of(namespace)] = nbytes.get(tenant_of(namespace), 0) + n
    with serving.database.reading() as db:
        having = {row["tenant"] for row in db.execute("SELECT DISTINCT tenant FROM collections WHERE NOT deleting")}
    data = []
    for one in sorted({*n_keys, *having, *nbytes}):
        collections = serving.collections.all(Tenant(one))
        sums = {name: sum(each[name] for each in collections) for name in ("n_files", "n_documents")}
        data.append(
            {
                "id": one,
                "object": "tenant",
                "n_keys": n_keys.get(one, 0),
                "n_collections": len(collections),
                **sums,
                "bytes": nbytes.get(one, 0),
            }
        )
    return {"object": "list", "data": data}


@router.delete("/{tenant}", responses=ok(TenantDeleted))
def delete(tenant: str, serving: Serving) -> dict[str, Any]:
    """Revoke a tenant's keys, and delete its collections, its conversations and all its segments: they are gone when
    this answers. May be asked again. Needs an operator's key."""
    if not re.fullmatch(TENANT, tenant):
        raise ApiError(404, f"{tenant[:80]!r} names no tenant: GET /v1/tenants lists them", param="tenant")
    of = Tenant(tenant)
    n_keys = serving.keys.revoke_all(tenant)  # first: nothing new comes in
    names = [one["name"] for one in serving.collections.all(of)]
    for name in names:
        serving.collections.delete(of, name)
    serving.conversations.delete_all(of)
    serving.collections.removal.of_requests(of)
    return {"id": tenant, "object": "tenant", "deleted": True, "n_keys": n_keys, "n_collections": len(names)}
