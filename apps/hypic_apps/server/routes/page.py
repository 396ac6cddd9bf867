"""The web page at ``/``: its files, as they lie in ``page/``, with headers under which nothing else can run in it."""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fastapi import APIRouter, HTTPException, Request, Response

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",  # licences of what others have written
}
HEADERS = {
    # Documents and models are hostile text: no inline script or style, nothing from elsewhere, and with trusted
    # types the browser itself refuses to make HTML of a string.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again every time, answered 304: a new version shows at once
}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class Asset:
    """One file, and the tag by which a browser knows that it still has it."""

    content: bytes
    media_type: str
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """Read the page's files by name, once."""
    found = {}
    for file in (resources.files("hypic_apps.server") / "page").iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in TYPES:
            content = file.read_bytes()
            found[file.name] = Asset(content, TYPES[suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    return answer(request, "index.html")


@router.api_route("/static/{name}", methods=["GET", "HEAD"])
async def static(request: Request, name: str) -> Response:
    return answer(request, name)


def answer(request: Request, name: str) -> Response:
    asset = assets().get(name)
    if asset is None:
        raise HTTPException(404, f"the page has no file {name}")
    headers = {**HEADERS, "ETag": asset.etag}
    tags = request.headers.get("if-none-match", "")
    if asset.etag in (tag.strip().removeprefix("W/") for tag in tags.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
