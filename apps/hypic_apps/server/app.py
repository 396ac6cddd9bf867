"""The application: routes over one Service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from hypic_apps.server import errors
from hypic_apps.server.app_state import Service, Serving
from hypic_apps.server.middleware import middleware
from hypic_apps.server.routes import (
    chat,
    chats,
    collections,
    completions,
    embeddings,
    files,
    metrics,
    models,
    page,
    passages,
    responses,
    server_info,
    tenants,
    texts,
    tokens,
    vector_stores,
)


def create_app(made: Service) -> FastAPI:
    """Make the application; the service's engine loop runs while it does."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        made.loop.start()
        made.usage.start()
        await asyncio.to_thread(made.collections.start)
        yield
        await asyncio.to_thread(made.loop.close, made.settings.grace_seconds)
        made.preparing.close()
        await asyncio.to_thread(made.readiness.close)
        await asyncio.to_thread(made.collections.close)
        await asyncio.to_thread(made.usage.close)
        made.keys.close()

    # Without the pages that show the schema: they load scripts from elsewhere. /openapi.json has it.
    app = FastAPI(title="hypic-rag", lifespan=lifespan, middleware=middleware(made), docs_url=None, redoc_url=None)
    app.state.service = made
    errors.install(app)
    for part in (
        server_info,
        chat,
        completions,
        responses,
        embeddings,
        models,
        collections,
        files,
        passages,
        chats,
        texts,
        tokens,
        vector_stores,
        page,
        metrics,
        tenants,
    ):
        app.include_router(part.router, responses=errors.RESPONSES)

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready")
    async def ready(found: Serving) -> dict[str, object]:
        found.loop.check_ready()
        return {"status": "ready", "running": found.loop.n_running, "waiting": found.loop.n_waiting}

    return app
