"""GET /v1/models, and which names a request may give."""

from typing import Any

from fastapi import APIRouter

from hypic_apps.server.app_state import Service, Serving
from hypic_apps.server.errors import ApiError
from hypic_apps.server.schemas.responses import ListBody, ModelBody, ok

router = APIRouter()


@router.get("/v1/models", responses=ok(ListBody[ModelBody]))
async def models(found: Serving) -> dict[str, Any]:
    return {"object": "list", "data": [_model(found)]}


@router.get("/v1/models/{name:path}", responses=ok(ModelBody))
async def model(name: str, found: Serving) -> dict[str, Any]:
    check_model(found, name)
    return _model(found)


def check_model(found: Service, name: str | None) -> None:
    """Raise ApiError, 404, for a name that is not served; without one it is the model that is."""
    check_name(name, (found.engine.model_name, found.settings.model))


def check_name(name: str | None, served: tuple[str, ...]) -> None:
    """Raise ApiError, 404, for a name that is not ``served``, of which the first is the one to tell of."""
    if name is not None and name not in served:
        also = " (or 'default')" if "default" in served else ""
        raise ApiError(404, f"there is no model {name[:100]!r} here, only {served[0]!r}{also}", code="model_not_found",
                       param="model")  # fmt: skip


def policy_told(found: Service) -> dict[str, Any]:
    policy = found.engine.policy
    return {"mode": policy.mode, "seam_tokens": policy.seam_tokens, "compose": policy.compose}


def _model(found: Service) -> dict[str, Any]:
    return {
        "id": found.engine.model_name,
        "object": "model",
        "created": found.started,
        "owned_by": "hypic-rag",
        "context_length": found.engine.context_length,
        "policy": policy_told(found),
    }
