"""``/v1/vector_stores``: collections, as OpenAI's clients list, search and read them. Files are sent to those."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from hypic_apps.server.app_state import Service, Serving
from hypic_apps.server.auth.tenants import Asking
from hypic_apps.server.errors import ApiError
from hypic_apps.server.routes.json_bodies import JsonRoute
from hypic_apps.server.routes.paging import Id, page
from hypic_apps.server.schemas.responses import PageBody, ok
from hypic_rag.collections.tenant import Tenant

router = APIRouter(prefix="/v1/vector_stores", tags=["vector_stores"], route_class=JsonRoute)
MOST_FOUND = 50
STATUS = {"ready": "completed", "failed": "failed"}
Part = Annotated[int, Query(ge=1, le=100)]
Order = Literal["asc", "desc"]


class FileCounts(BaseModel):
    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStoreBody(BaseModel):
    """A collection. name: what it is called as a collection and a model."""

    id: str
    object: Literal["vector_store"]
    created_at: int
    name: str
    usage_bytes: int
    file_counts: FileCounts
    status: Literal["in_progress", "completed"]
    last_active_at: None
    metadata: dict[str, str]


class LastError(BaseModel):
    code: Literal["server_error"]
    message: str


class VectorStoreFile(BaseModel):
    id: str
    object: Literal["vector_store.file"]
    usage_bytes: int
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "failed"]
    last_error: LastError | None
    attributes: dict[str, str]
    filename: str


class TextContent(BaseModel):
    type: Literal["text"]
    text: str


class FoundContent(BaseModel):
    """score: cosine to the query."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, str]
    content: list[TextContent]


class FoundPage(BaseModel):
    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[FoundContent]
    has_more: bool
    next_page: None


class ContentPage(BaseModel):
    object: Literal["vector_store.file_content.page"]
    data: list[TextContent]
    has_more: bool
    next_page: None


class DeletedStore(BaseModel):
    id: str
    object: Literal["vector_store.deleted", "vector_store.file.deleted"]
    deleted: Literal[True]


class Named(BaseModel):
    """file_ids, metadata, expires_after and chunking_strategy have to be empty."""

    model_config = ConfigDict(extra="forbid")
    name: str
    file_ids: list[str] | None = Field(None, max_length=0)
    metadata: dict[str, str] | None = Field(None, max_length=0)
    expires_after: None = None
    chunking_strategy: None = None


class Ranking(BaseModel):
    ranker: str = "auto"
    score_threshold: float | None = Field(None, ge=-1, le=1)


class SearchRequest(BaseModel):
    """filters: none are supported. rewrite_query: it never is."""

    model_config = ConfigDict(extra="forbid")
    query: str
    max_num_results: int = Field(10, ge=1, le=MOST_FOUND)
    ranking_options: Ranking | None = None
    filters: None = None
    rewrite_query: Literal[False] | None = None


@router.post("", responses=ok(VectorStoreBody))
def create(new: Named, serving: Serving, asking: Asking) -> dict[str, Any]:
    return _store(serving.collections.create(asking, new.name))


@router.get("", responses=ok(PageBody[VectorStoreBody]))
def listed(
    serving: Serving, asking: Asking, limit: Part = 20, order: Order = "desc", after: Id = None
) -> dict[str, Any]:
    return page(_ordered([_store(one) for one in serving.collections.all(asking)], order), limit, after)


@router.get("/{store_id}", responses=ok(VectorStoreBody))
def one(store_id: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    return _store(serving.collections.get(asking, _name(serving, asking, store_id)))


@router.post("/{store_id}", responses=ok(VectorStoreBody))
def rename(store_id: str, new: Named, serving: Serving, asking: Asking) -> dict[str, Any]:
    return _store(serving.collections.rename(asking, _name(serving, asking, store_id), new.name))


@router.delete("/{store_id}", responses=ok(DeletedStore))
def delete(store_id: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    gone = serving.collections.delete(asking, _name(serving, asking, store_id))
    return {"id": gone, "object": "vector_store.deleted", "deleted": True}


@router.post("/{store_id}/search", responses=ok(FoundPage))
def search(store_id: str, body: SearchRequest, serving: Serving, asking: Asking) -> dict[str, Any]:
    """Find passages, the nearest first."""
    least = body.ranking_options.score_threshold if body.ranking_options is not None else None
    retriever = serving.collections.retriever(asking, _name(serving, asking, store_id)).at_least(least)
    data = [
        {
            "file_id": one.metadata["file_id"],
            "filename": one.metadata["filename"],
            "score": one.similarity,
            "attributes": {},
            "content": [{"type": "text", "text": one.text}],
        }
        for one in retriever.retrieve(body.query, body.max_num_results)
    ]
    return {"object": "vector_store.search_results.page", "search_query": [body.query], "data": data, **_WHOLE}


@router.get("/{store_id}/files", responses=ok(PageBody[VectorStoreFile]))
def files(
    store_id: str, serving: Serving, asking: Asking, limit: Part = 20, order: Order = "desc", after: Id = None
) -> dict[str, Any]:
    found = serving.collections.files(asking, _name(serving, asking, store_id))
    return page(_ordered([_file(store_id, one) for one in found], order), limit, after)


@router.get("/{store_id}/files/{file_id}", responses=ok(VectorStoreFile))
def file(store_id: str, file_id: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    return _file(store_id, serving.collections.file(asking, _name(serving, asking, store_id), file_id))


@router.get("/{store_id}/files/{file_id}/content", responses=ok(ContentPage))
def content(store_id: str, file_id: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    """Give what a file was cut into, in its order."""
    _, found = serving.readiness.passages(asking, _name(serving, asking, store_id), file_id)
    data = [{"type": "text", "text": one["text"]} for one in found]
    return {"object": "vector_store.file_content.page", "data": data, **_WHOLE}


@router.delete("/{store_id}/files/{file_id}", responses=ok(DeletedStore))
def delete_file(store_id: str, file_id: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    serving.collections.delete_file(asking, _name(serving, asking, store_id), file_id)
    return {"id": file_id, "object": "vector_store.file.deleted", "deleted": True}


_WHOLE = {"has_more": False, "next_page": None}


def _name(serving: Service, asking: Tenant, store_id: str) -> str:
    try:
        return serving.collections.name_of(asking, store_id)
    except ApiError:
        text = f"there is no vector store {store_id[:80]!r}: GET /v1/vector_stores lists yours"
        raise ApiError(404, text, code="vector_store_not_found", param="vector_store_id") from None


def _ordered(data: list[dict[str, Any]], order: Order) -> list[dict[str, Any]]:
    return data if order == "asc" else data[::-1]


def _store(one: dict[str, Any]) -> dict[str, Any]:
    n_total, n_done, n_failed = (one["progress"][name] for name in ("n_total", "n_done", "n_failed"))
    return {
        "id": one["id"],
        "object": "vector_store",
        "created_at": one["created_at"],
        "name": one["name"],
        "usage_bytes": one["bytes"],
        "file_counts": {
            "in_progress": n_total - n_done,
            "completed": n_done - n_failed,
            "failed": n_failed,
            "cancelled": 0,
            "total": n_total,
        },
        "status": "completed" if one["status"] == "ready" else "in_progress",
        "last_active_at": None,
        "metadata": {},
    }


def _file(store_id: str, one: dict[str, Any]) -> dict[str, Any]:
    failed = one["status"] == "failed"
    return {
        "id": one["id"],
        "object": "vector_store.file",
        "usage_bytes": one["bytes"],
        "created_at": one["created_at"],
        "vector_store_id": store_id,
        "status": STATUS.get(one["status"], "in_progress"),
        "last_error": {"code": "server_error", "message": one["error"] or "it failed"} if failed else None,
        "attributes": {},
        "filename": one["filename"],
    }
