"""``/v1/chats``: the page's conversations, by tenant. ``/v1/conversations`` is OpenAI's name for something else."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from hypic_apps.server.app_state import Serving
from hypic_apps.server.auth.tenants import Asking
from hypic_apps.server.errors import ApiError
from hypic_apps.server.routes.json_bodies import JsonRoute
from hypic_apps.server.schemas.responses import ListBody, ok

router = APIRouter(prefix="/v1/chats", tags=["chats"], route_class=JsonRoute)
MOST_RUNS, MOST_DOCUMENTS, MOST_TURNS = 8, 2_000, 10_000


class NewChat(BaseModel):
    """collection: its name; null where the model is asked alone."""

    title: str = Field(max_length=10_000)
    collection: str | None = None


class Renamed(BaseModel):
    title: str = Field(max_length=10_000)


class SavedRun(BaseModel):
    """An answer, as it was told: ``documents`` and ``hypic`` of ``/v1/chat/completions``. error: why it failed."""

    state: Literal["done", "stopped", "failed"]
    mode: str | None = None
    text: str = ""
    finish: str | None = None
    error: str | None = None
    documents: list[dict[str, Any] | None] = Field([], max_length=MOST_DOCUMENTS)
    hypic: dict[str, Any] | None = None


class SavedTurn(BaseModel):
    """A question and its answers: the first, and others to compare it with."""

    question: str
    runs: list[SavedRun] = Field(min_length=1, max_length=MOST_RUNS)


class ChatBody(BaseModel):
    """Times in seconds since 1970. collection: the name that it has now, or had last."""

    id: str
    object: Literal["chat"]
    title: str
    collection: str | None
    created_at: int
    updated_at: int
    n_turns: int


class ChatWithTurns(ChatBody):
    """A document is null once its file was deleted."""

    turns: list[SavedTurn]


class DeletedChats(BaseModel):
    object: Literal["chat"]
    deleted: Literal[True]
    n_deleted: int


@router.post("", status_code=201, responses=ok(ChatBody, status=201))
def create(new: NewChat, serving: Serving, asking: Asking) -> dict[str, Any]:
    return serving.conversations.create(asking, new.title, new.collection)


@router.get("", responses=ok(ListBody[ChatBody]))
def listed(
    serving: Serving, asking: Asking, q: str = "", limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> dict[str, Any]:
    """List conversations, the one that went on last first. q: words of titles, questions and answers."""
    return {"object": "list", "data": serving.conversations.list(asking, q, limit)}


@router.delete("", responses=ok(DeletedChats))
def delete_all(serving: Serving, asking: Asking) -> dict[str, Any]:
    return {"object": "chat", "deleted": True, "n_deleted": serving.conversations.delete_all(asking)}


@router.get("/{chat_id}", responses=ok(ChatWithTurns))
def one(chat_id: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    return serving.conversations.get(asking, chat_id)


@router.post("/{chat_id}", responses=ok(ChatBody))
def rename(chat_id: str, new: Renamed, serving: Serving, asking: Asking) -> dict[str, Any]:
    return serving.conversations.rename(asking, chat_id, new.title)


@router.put("/{chat_id}/turns/{turn}", responses=ok(ChatBody))
def save(chat_id: str, turn: int, saved: SavedTurn, serving: Serving, asking: Asking) -> dict[str, Any]:
    """Save a turn; the first is 0. What is there under this number is replaced."""
    if not 0 <= turn < MOST_TURNS:
        raise ApiError(400, f"turn is {turn}; give 0 to {MOST_TURNS - 1}", param="turn")
    runs = [{**run.model_dump(), "documents": [one or {} for one in run.documents]} for run in saved.runs]
    serving.conversations.save_turn(asking, chat_id, turn, saved.question, runs)
    return serving.conversations.about(asking, chat_id)


@router.delete("/{chat_id}", responses=ok(DeletedChats))
def delete(chat_id: str, serving: Serving, asking: Asking) -> dict[str, Any]:
    serving.conversations.delete(asking, chat_id)
    return {"object": "chat", "deleted": True, "n_deleted": 1}
