"""Parts of lists, in OpenAI's form."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query

from hypic_apps.server.errors import ApiError

Limit = Annotated[int | None, Query(ge=1, le=10_000)]
Id = Annotated[str | None, Query(max_length=100)]


def page(data: Sequence[dict[str, Any]], limit: int | None, after: str | None) -> dict[str, Any]:
    """Return up to ``limit`` of these behind the one of this id. Raises ApiError where it is none of them."""
    start = 0
    if after is not None:
        start = next((i for i, one in enumerate(data, 1) if one["id"] == after), 0)
        if not start:
            raise ApiError(
                400, f"there is nothing of the id {after!r} in this list: begin without after", param="after"
            )
    part = data[start : None if limit is None else start + limit]
    ids = {"first_id": part[0]["id"] if part else None, "last_id": part[-1]["id"] if part else None}
    return {"object": "list", "data": part, **ids, "has_more": start + len(part) < len(data)}
