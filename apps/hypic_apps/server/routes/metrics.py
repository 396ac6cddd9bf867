"""GET /metrics: in the format that Prometheus asks for."""

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from hypic_apps.server.app_state import Serving

router = APIRouter()


@router.get("/metrics")
def metrics(request: Request, found: Serving) -> Response:
    """Write the metrics, in a thread: counting what is on the disk may take a moment."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(found.metrics.exposed(found.engine.model_name)), media_type=content_type)
