"""POST /v1/collections/NAME/texts: a text in JSON, which becomes a file of the collection."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from hypic_apps.server.app_state import Serving
from hypic_apps.server.auth.tenants import Asking
from hypic_apps.server.ingestion.uploads import written
from hypic_apps.server.routes.json_bodies import JsonRoute
from hypic_apps.server.schemas.responses import FileBody, ok

router = APIRouter(prefix="/v1/collections/{name}/texts", tags=["files"], route_class=JsonRoute)


class NewText(BaseModel):
    """filename: says how it is read, as of a file that is sent: notes.md; of another kind it is plain text."""

    text: str = Field(min_length=1)
    filename: str = Field("text.txt", min_length=1, max_length=1000)


@router.post("", status_code=202, responses=ok(FileBody, status=202))
def send(name: str, new: NewText, serving: Serving, asking: Asking) -> dict[str, Any]:
    """Store a text. What was answered is on the disk, as of an upload."""
    serving.collections.check(asking, name)
    upload = written(serving.collections.uploads, new.filename, new.text)
    return serving.collections.add(asking, name, [upload])[0]
