"""GET /v1/models, and which names a request may give: the model, each collection over it, the embedder."""

from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from hypic_apps.server.app_state import Service, Serving
from hypic_apps.server.auth.tenants import Asking
from hypic_apps.server.errors import ApiError
from hypic_apps.server.schemas.responses import ListBody, ModelBody, ok
from hypic_rag.retrieval.embedder import DEFAULT_ALIASES, DEFAULT_EMBEDDER

router = APIRouter()
BETWEEN = ":"  # the model's name and a collection's, which has none


@router.get("/v1/models", responses=ok(ListBody[ModelBody]))
async def models(found: Serving, who: Asking) -> dict[str, Any]:
    """List the model first, then collections, each as ``MODEL:NAME``, then the embedder."""
    collections = await run_in_threadpool(found.collections.names, who)
    over = [_model(found, f"{found.model_name}{BETWEEN}{name}", created) for name, created in collections]
    return {"object": "list", "data": [_model(found, found.model_name, found.started), *over, _embedder(found)]}


@router.get("/v1/models/{name:path}", responses=ok(ModelBody))
async def model(name: str, found: Serving, who: Asking) -> dict[str, Any]:
    if name in embedder_names(found):
        return _embedder(found)
    collection = collection_of(found, name)
    if collection is None:
        return _model(found, found.model_name, found.started)
    for known, created in await run_in_threadpool(found.collections.names, who):
        if known == collection:
            return _model(found, f"{found.model_name}{BETWEEN}{known}", created)
    raise NoModel(name, found.model_name)


class NoModel(ApiError):
    """Neither a model nor a collection has this name."""

    def __init__(self, name: str, served: str):
        text = f"there is no model and no collection {name[:100]!r} here: the model is {served!r} or 'default', and "
        super().__init__(404, text + "GET /v1/models lists all", code="model_not_found", param="model")


def model_names(found: Service) -> tuple[str, ...]:
    return (found.model_name, found.engine.model_name, found.settings.model, "default")


def collection_of(found: Service, name: str | None) -> str | None:
    """Return which collection is asked under a model's name: none under the model's own, or without any. It need not be
    there."""
    if not name or name in (names := model_names(found)):
        return None
    for known in names:
        if name.startswith(known + BETWEEN):
            return name[len(known + BETWEEN) :]
    return name


def check_model(found: Service, name: str | None) -> None:
    """Raise ApiError, 404, for a name that is not the model's, where no collection can be asked."""
    if collection_of(found, name) is not None:
        raise NoModel(str(name), found.model_name)


def embedder_names(found: Service) -> tuple[str, ...]:
    """Return the names of the embedder, the one to tell of first."""
    name = found.embedder.name
    return (name, *(alias for alias in DEFAULT_ALIASES if name == DEFAULT_EMBEDDER and alias != name))


def check_embedder(found: Service, name: str | None) -> None:
    """Raise ApiError, 404, for a name that is not the embedder's."""
    if name and name not in (names := embedder_names(found)):
        text = f"there is no embedder {name[:100]!r} here, only {names[0]!r}"
        raise ApiError(404, text, code="model_not_found", param="model")


def policy_told(found: Service) -> dict[str, Any]:
    policy = found.engine.policy
    return {"mode": policy.mode, "seam_tokens": policy.seam_tokens, "compose": policy.compose}


def _model(found: Service, name: str, created: int) -> dict[str, Any]:
    context = found.engine.context_length
    return {
        **{"id": name, "object": "model", "created": created, "owned_by": "hypic-rag"},
        **{"context_length": context, "max_model_len": context, "policy": policy_told(found)},
    }


def _embedder(found: Service) -> dict[str, Any]:
    return {
        **{"id": found.embedder.name, "object": "model", "created": found.started, "owned_by": "hypic-rag"},
        **{"context_length": None, "max_model_len": None, "policy": None},
    }
