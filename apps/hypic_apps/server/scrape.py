"""GET /metrics: in the format that Prometheus asks for."""

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client.exposition import choose_encoder

from hypic_apps.server.service import Service, service

router = APIRouter()


@router.get("/metrics")
def metrics(request: Request, found: Service = Depends(service)) -> Response:  # noqa: B008
    """In a thread: counting what is on the disk may take a moment."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(found.metrics.registry), media_type=content_type)
