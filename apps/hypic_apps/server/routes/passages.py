"""``/v1/collections/NAME/files/ID/passages``: a file's text as it is searched; which of its passages are cached, and
caching them again."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel

from hypic_apps.server.app_state import Serving
from hypic_apps.server.auth.tenants import Asking
from hypic_apps.server.schemas.responses import ListBody, ok

router = APIRouter(prefix="/v1/collections/{name}", tags=["files"])


class PassageBody(BaseModel):
    """index: its place in the file. document: the place of its document in the file, which may hold several."""

    index: int
    document: int
    title: str
    page_label: str | None
    text: str


class PassageList(ListBody[PassageBody]):
    """total: of the file. filename: as it was sent."""

    filename: str
    total: int


class CachedBody(BaseModel):
    """A file that is ready: its segments, and how many of them are cached now."""

    file_id: str
    n_segments: int
    n_cached: int


class CachedList(ListBody[CachedBody]):
    """is_warming: segments that are not cached are being made again."""

    is_warming: bool


class Warming(BaseModel):
    object: Literal["collection.warming"]
    is_warming: bool


@router.get("/files/{file_id}/passages", responses=ok(PassageList))
def passages(
    name: str,
    file_id: str,
    serving: Serving,
    asking: Asking,
    offset: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> dict[str, Any]:
    """List what a file was cut into, in its order: all of its text."""
    filename, found = serving.readiness.passages(asking, name, file_id)
    data = [{"index": i, **found[i]} for i in range(offset, min(offset + limit, len(found)))]
    return {"object": "list", "filename": filename, "total": len(found), "data": data}


@router.get("/cached", responses=ok(CachedList))
def cached(name: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    """Count of every file what is cached now: what is not is computed when it is asked for."""
    data, is_warming = serving.readiness.cached(asking, name)
    return {"object": "list", "data": data, "is_warming": is_warming}


@router.post("/warm", status_code=202, responses=ok(Warming, status=202))
def warm(name: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    """Begin to make again what is not cached, as after an eviction or a backup; it goes on when this has answered."""
    return {"object": "collection.warming", "is_warming": serving.readiness.warm(asking, name)}
