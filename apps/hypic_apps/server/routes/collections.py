"""``/v1/collections``: made, listed, searched, deleted."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from hypic_apps.server.app_state import Serving
from hypic_apps.server.auth.tenants import Asking
from hypic_apps.server.routes.json_bodies import JsonRoute
from hypic_apps.server.schemas.responses import CollectionBody, Deleted, FoundChunk, ListBody, ok

router = APIRouter(prefix="/v1/collections", tags=["collections"], route_class=JsonRoute)
MOST_FOUND = 100


class NewCollection(BaseModel):
    name: str


@router.post("", status_code=201, responses=ok(CollectionBody, status=201))
def create(new: NewCollection, serving: Serving, asking: Asking) -> dict[str, Any]:
    return serving.collections.create(asking, new.name)


@router.get("", responses=ok(ListBody[CollectionBody]))
def listed(serving: Serving, asking: Asking) -> dict[str, Any]:
    return {"object": "list", "data": serving.collections.all(asking)}


@router.get("/{name}", responses=ok(CollectionBody))
def one(name: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    return serving.collections.get(asking, name)


@router.delete("/{name}", responses=ok(Deleted))
def delete(name: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    """Delete a collection: its files, texts, vectors and segments are gone when this answers."""
    return {"id": serving.collections.delete(asking, name), "object": "collection", "deleted": True}


@router.get("/{name}/search", responses=ok(ListBody[FoundChunk]))
def search(
    name: str, serving: Serving, asking: Asking, q: str, k: Annotated[int, Query(ge=1, le=MOST_FOUND)] = 5
) -> dict[str, Any]:
    found = serving.collections.retriever(asking, name).retrieve(q, k)
    data = [
        {
            "file_id": one.metadata["file_id"],
            "title": one.title,
            "page_label": one.page_label,
            "text": one.text,
            "similarity": one.similarity,
        }
        for one in found
    ]
    return {"object": "list", "data": data}
