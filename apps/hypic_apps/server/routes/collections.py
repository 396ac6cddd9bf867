"""``/v1/collections``: made, listed, searched, deleted."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from hypic_apps.server.app_state import Serving
from hypic_apps.server.auth.tenants import Asking
from hypic_apps.server.routes.json_bodies import JsonRoute
from hypic_apps.server.routes.paging import Id, Limit, page
from hypic_apps.server.schemas.responses import CollectionBody, Deleted, FoundChunk, ListBody, PageBody, ok

router = APIRouter(prefix="/v1/collections", tags=["collections"], route_class=JsonRoute)
MOST_FOUND = 100


class NewCollection(BaseModel):
    name: str


@router.post("", status_code=201, responses=ok(CollectionBody, status=201))
def create(new: NewCollection, serving: Serving, asking: Asking) -> dict[str, Any]:
    return serving.collections.create(asking, new.name)


@router.get("", responses=ok(PageBody[CollectionBody]))
def listed(serving: Serving, asking: Asking, limit: Limit = None, after: Id = None) -> dict[str, Any]:
    return page(serving.collections.all(asking), limit, after)


@router.get("/{name}", responses=ok(CollectionBody))
def one(name: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    return serving.collections.get(asking, name)


@router.patch("/{name}", responses=ok(CollectionBody))
def rename(name: str, new: NewCollection, serving: Serving, asking: Asking) -> dict[str, Any]:
    """Give a collection another name; its id, files and segments stay."""
    return serving.collections.rename(asking, name, new.name)


@router.delete("/{name}", responses=ok(Deleted))
def delete(name: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    """Delete a collection: its files, texts, vectors and segments are gone when this answers."""
    return {"id": serving.collections.delete(asking, name), "object": "collection", "deleted": True}


@router.get("/{name}/search", responses=ok(ListBody[FoundChunk]))
def search(
    name: str,
    serving: Serving,
    asking: Asking,
    q: str,
    k: Annotated[int, Query(ge=1, le=MOST_FOUND)] = 5,
    min_similarity: Annotated[float | None, Query(ge=-1, le=1)] = None,
) -> dict[str, Any]:
    """Find passages, the nearest first. min_similarity: of each; without it, what the server's setting says."""
    found = serving.collections.retriever(asking, name).at_least(min_similarity).retrieve(q, k)
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
