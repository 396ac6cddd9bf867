"""A server whose engine answers nothing, with routes that show what stands before a route."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from hypic_apps.server.app import create_app
from hypic_apps.server.app_state import Service
from hypic_apps.server.auth.tenants import tenant
from hypic_apps.server.chat.engine_loop import EngineLoop
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from hypic_rag.cache import SegmentCache, codec_named
from hypic_rag.collections.tenant import Tenant
from hypic_rag.config import Settings
from hypic_rag.engine import Policy
from hypic_rag.engine.session_cache import SessionCache

DOCUMENT = "The lighthouse keeper's secret is 4711."


def make_service(folder: Path, **settings: Any) -> Service:
    engine: Any = SimpleNamespace(
        model_name="tiny",
        policy=Policy(),
        codec=codec_named("none"),
        conversations=SessionCache(1000),
        cache=SegmentCache.open(None),
        format=SimpleNamespace(document=None, leading=None),
        fingerprint="0" * 64,
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))),
    )
    return Service(Settings(**settings), folder, engine, SimpleNamespace(), EngineLoop(engine, 2, 3))  # type: ignore[arg-type]


def make_app(service: Service) -> FastAPI:
    app = create_app(service)

    @app.get("/v1/whose/{name}")
    async def whose(name: str, found: Tenant = Depends(tenant)) -> dict[str, str]:  # noqa: B008
        return {"tenant": found.id}

    @app.post("/v1/echo")
    async def echo(body: dict[str, Any]) -> dict[str, int]:
        return {"n": len(body)}

    @app.post("/v1/fail")
    async def fail(request: Request) -> None:
        raise ValueError(f"cannot read {await request.body()!r}")

    @app.get("/v1/broken-stream")
    async def broken_stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "one"
            await asyncio.sleep(0)
            raise KeyError(DOCUMENT)

        return StreamingResponse(parts())

    return app


@contextlib.contextmanager
def client(service: Service, key: str = "") -> Iterator[TestClient]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with TestClient(make_app(service), headers=headers) as found:
        yield found
