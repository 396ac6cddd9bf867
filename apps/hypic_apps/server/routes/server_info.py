"""GET /v1/server: what runs here, and how full it is."""

import asyncio
from typing import Any

from fastapi import APIRouter

from hypic_apps.server.app_state import Serving
from hypic_apps.server.routes.models import policy_told
from hypic_rag import __version__

router = APIRouter()


@router.get("/version")
async def version() -> dict[str, str]:
    return {"version": __version__}


@router.get("/v1/server")
async def server(found: Serving) -> dict[str, Any]:
    stats = await asyncio.to_thread(found.engine.cache.stats)  # asks the disk tier's index
    return {
        "version": __version__,
        "model": found.model_name,
        "policy": policy_told(found),
        "context_length": found.engine.context_length,
        "tiers": {
            name: {
                "n_entries": tier.n_entries,
                "nbytes": tier.nbytes,
                "budget": tier.budget,
                "hits": tier.hits,
                "state": tier.state,  # "ok" or "degraded"; why is in the log, as it may name folders
            }
            for name, tier in stats.tiers.items()
        },
        "running": found.loop.n_running,
        "waiting": found.loop.n_waiting,
    }
