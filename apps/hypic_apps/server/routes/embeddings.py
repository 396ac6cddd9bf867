"""POST /v1/embeddings: the vectors that collections are searched with."""

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from hypic_apps.server.app_state import Serving
from hypic_apps.server.chat.event_stream import ClientGone
from hypic_apps.server.errors import ApiError
from hypic_apps.server.routes.json_bodies import JsonRoute
from hypic_apps.server.routes.models import check_embedder
from hypic_apps.server.schemas.requests import EmbeddingRequest
from hypic_apps.server.schemas.responses import EmbeddingAnswer, ok
from hypic_rag.retrieval.embedder import BATCH, Embedder, Vectors

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/embeddings", response_model=None, responses=ok(EmbeddingAnswer))
async def embeddings(body: EmbeddingRequest, request: Request, found: Serving) -> Response:
    embedder = found.embedder
    check_embedder(found, body.model)
    if body.dimensions is not None and body.dimensions != (n := await asyncio.to_thread(lambda: embedder.dimension)):
        text = f"the vectors of {embedder.name} have {n} dimensions: leave dimensions out"
        raise ApiError(400, text, code="unsupported_parameter", param="dimensions")
    vectors: list[Vectors] = []
    n_tokens = 0
    for start in range(0, len(body.input), BATCH):  # between batches others get their turn
        if await request.is_disconnected():
            raise ClientGone()
        made, n = await asyncio.to_thread(_embed, embedder, body.input[start : start + BATCH])
        vectors += list(made)
        n_tokens += n
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    head = {"object": "list", "model": embedder.name, "usage": usage}
    content = await asyncio.to_thread(_json, head, vectors, body.encoding_format)
    return Response(content, media_type="application/json")


def _json(head: dict[str, Any], vectors: Sequence[Vectors], encoding: str) -> str:
    """Write vector by vector: the encoder keeps the interpreter to itself, and for a
    million numbers that is seconds."""
    data = ",".join(
        json.dumps({"object": "embedding", "index": i, "embedding": _encoded(vector, encoding)})
        for i, vector in enumerate(vectors)
    )
    return f'{json.dumps(head)[:-1]}, "data": [{data}]}}'


def _embed(embedder: Embedder, given: list[str | list[int]]) -> tuple[Vectors, int]:
    texts = [one if isinstance(one, str) else embedder.text_of(one) for one in given]
    return embedder.embed(texts), embedder.n_tokens(texts)


def _encoded(vector: Vectors, encoding: str) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    return [float(value) for value in vector]
