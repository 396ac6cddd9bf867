"""``/v1/collections/NAME/files``: sent, listed, deleted."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from hypic_apps.server.app_state import Serving
from hypic_apps.server.auth.tenants import Asking
from hypic_apps.server.ingestion.uploads import receive
from hypic_apps.server.routes.paging import Id, Limit, page
from hypic_apps.server.schemas.responses import Deleted, FileBody, ListBody, PageBody, ok

router = APIRouter(prefix="/v1/collections/{name}/files", tags=["files"])
PARTS = {"type": "array", "items": {"type": "string", "format": "binary"}}
BODY = {"schema": {"type": "object", "properties": {"file": PARTS}, "required": ["file"]}}


@router.post(
    "",
    status_code=202,
    responses=ok(ListBody[FileBody], status=202),
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": BODY}}},
)
async def send(name: str, request: Request, serving: Serving, asking: Asking) -> dict[str, Any]:
    """Store files. What was answered is on the disk: it will be ingested, also if the server is killed now."""
    collections = serving.collections
    await run_in_threadpool(collections.check, asking, name)
    content_type = request.headers.get("content-type", "")
    uploads = await receive(request.stream(), content_type, collections.uploads, collections.max_upload)
    return {"object": "list", "data": await run_in_threadpool(collections.add, asking, name, uploads)}


@router.get("", responses=ok(PageBody[FileBody]))
def listed(name: str, serving: Serving, asking: Asking, limit: Limit = None, after: Id = None) -> dict[str, Any]:
    return page(serving.collections.files(asking, name), limit, after)


@router.get("/{file_id}", responses=ok(FileBody))
def one(name: str, file_id: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    return serving.collections.file(asking, name, file_id)


@router.delete("/{file_id}", responses=ok(Deleted))
def delete(name: str, file_id: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    """Delete a file: its texts, vectors and segments are gone when this answers."""
    serving.collections.delete_file(asking, name, file_id)
    return {"id": file_id, "object": "file", "deleted": True}
