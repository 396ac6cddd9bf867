"""Conversations of tenants, in server.sqlite. Passages stand in rows that refer to their files, and leave with them."""

import json
import sqlite3
import time
import uuid
from collections.abc import Sequence
from typing import Any

from hypic_apps.server.errors import ApiError
from hypic_rag.collections import rows
from hypic_rag.collections.database import CollectionDatabase
from hypic_rag.collections.tenant import Tenant
from hypic_rag.retrieval.readers.document import clean
from hypic_rag.sqlite_rows import DamagedRow

SELECT = (
    "SELECT c.id, title, coalesce(collections.name, c.collection) AS collection, c.created_at, updated, "
    "(SELECT count(*) FROM turns WHERE conversation_id = c.id) AS n_turns "
    "FROM conversations AS c LEFT JOIN collections ON collections.id = c.collection_id AND NOT deleting"
)
MOST_TITLE = 200  # characters


class ConversationArchive:
    """For any number of threads; every method may block, and raises ApiError 404 for what is not the tenant's."""

    def __init__(self, database: CollectionDatabase):
        self._database = database

    def list(self, tenant: Tenant, query: str, limit: int) -> list[dict[str, Any]]:
        """List conversations, the one that went on last first. query: words in the title, in questions or answers."""
        where, values = "c.tenant = ?", [tenant.id]
        for word in _folded(query).split():
            where += (
                " AND (instr(c.words, ?) OR EXISTS "
                "(SELECT 1 FROM turns WHERE conversation_id = c.id AND instr(turns.words, ?)))"
            )
            values += [word, word]
        with self._database.reading() as db:
            found = db.execute(f"{SELECT} WHERE {where} ORDER BY updated DESC LIMIT ?", (*values, limit)).fetchall()
        return [_told(row) for row in found]

    def create(self, tenant: Tenant, title: str, collection: str | None) -> dict[str, Any]:
        """Begin a conversation over a collection of the tenant's, or over none. Raises ApiError."""
        made, now, title = f"conv-{uuid.uuid4().hex}", time.time(), _title(title)
        with self._database.writing() as db:
            collection_id = None
            if collection is not None:
                row = rows.find(db, tenant.id, collection)
                if row is None:
                    raise _absent("collection", collection, "GET /v1/collections lists yours")
                collection_id = row["id"]
            values = (made, tenant.id, title, _folded(title), collection, collection_id, int(now), now)
            db.execute(
                "INSERT INTO conversations (id, tenant, title, words, collection, collection_id, created_at, updated) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
        return self.about(tenant, made)

    def about(self, tenant: Tenant, conversation_id: str) -> dict[str, Any]:
        with self._database.reading() as db:
            return _told(_found(db, tenant, conversation_id))

    def get(self, tenant: Tenant, conversation_id: str) -> dict[str, Any]:
        """Return a conversation with its turns. A passage whose file was deleted is null."""
        with self._database.reading() as db:
            told = _told(_found(db, tenant, conversation_id))
            of_it = (conversation_id,)
            turns = db.execute("SELECT * FROM turns WHERE conversation_id = ? ORDER BY turn", of_it).fetchall()
            passages = db.execute(
                "SELECT turn, run, place, passage FROM turn_passages JOIN files ON files.id = file_id "
                "WHERE conversation_id = ? AND status != 'deleting'",
                of_it,
            ).fetchall()
        kept = {(row["turn"], row["run"], row["place"]): _stored(row["passage"]) for row in passages}
        told["turns"] = [
            {"question": row["question"], "runs": [
                {**run, "documents": [kept.get((row["turn"], i, j)) for j in range(run["documents"])]}
                for i, run in enumerate(_stored(row["runs"]))
            ]}
            for row in turns
        ]  # fmt: skip
        return told

    def rename(self, tenant: Tenant, conversation_id: str, title: str) -> dict[str, Any]:
        title = _title(title)
        with self._database.writing() as db:
            _found(db, tenant, conversation_id)
            db.execute(
                "UPDATE conversations SET title = ?, words = ? WHERE id = ?", (title, _folded(title), conversation_id)
            )
        return self.about(tenant, conversation_id)

    def save_turn(
        self, tenant: Tenant, conversation_id: str, turn: int, question: str, runs: Sequence[dict[str, Any]]
    ) -> None:
        """Put a turn in the place of the one of this number, which is the next new one at most.

        runs: of each ``text``, ``documents`` and whatever else is to be had back. Of the documents those are kept that
        are of a file of the tenant's.
        """
        with self._database.writing() as db:
            if turn > _found(db, tenant, conversation_id)["n_turns"]:
                raise ApiError(409, f"there is no turn before turn {turn}: save that one first", param="turn")
            at = (conversation_id, turn)
            db.execute("DELETE FROM turns WHERE conversation_id = ? AND turn = ?", at)  # its passages go with it
            bare = [{**run, "documents": len(run["documents"])} for run in runs]
            words = _folded("\n".join([question, *(run["text"] for run in runs)]))
            values = (*at, clean(question), _json(bare), words)
            db.execute(
                "INSERT INTO turns (conversation_id, turn, question, runs, words) VALUES (?, ?, ?, ?, ?)", values
            )
            db.executemany(
                "INSERT INTO turn_passages SELECT ?, ?, ?, ?, files.id, ? FROM files JOIN collections "
                "ON collections.id = collection_id WHERE files.id = ? AND tenant = ? AND status != 'deleting'",
                [
                    (*at, i, j, _json(one), clean(str(one.get("file_id"))), tenant.id)
                    for i, run in enumerate(runs)
                    for j, one in enumerate(run["documents"])
                ],
            )
            db.execute("UPDATE conversations SET updated = ? WHERE id = ?", (time.time(), conversation_id))

    def delete(self, tenant: Tenant, conversation_id: str) -> None:
        with self._database.writing() as db:
            _found(db, tenant, conversation_id)
            db.execute("DELETE FROM conversations WHERE id = ?", (conversation_id,))
        self._database.compact()

    def delete_all(self, tenant: Tenant) -> int:
        """Delete all of a tenant's; return how many there were."""
        with self._database.writing() as db:
            n_deleted = db.execute("DELETE FROM conversations WHERE tenant = ?", (tenant.id,)).rowcount
        self._database.compact()
        return n_deleted


def _found(db: sqlite3.Connection, tenant: Tenant, conversation_id: str) -> sqlite3.Row:
    query = f"{SELECT} WHERE c.tenant = ? AND c.id = ?"
    row: sqlite3.Row | None = db.execute(query, (tenant.id, clean(conversation_id))).fetchone()
    if row is None:
        raise _absent("conversation", conversation_id, "GET /v1/chats lists yours")
    return row


def _absent(kind: str, name: str, hint: str) -> ApiError:
    return ApiError(404, f"there is no {kind} {name[:80]!r}: {hint}", code=f"{kind}_not_found", param=kind)


def _told(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "object": "chat",
        "title": row["title"],
        "collection": row["collection"],
        "created_at": row["created_at"],
        "updated_at": int(row["updated"]),
        "n_turns": row["n_turns"],
    }


def _title(title: str) -> str:
    shown = " ".join(clean(title).split())
    if not shown:
        raise ApiError(400, "the title is empty: give one", param="title")
    return shown[:MOST_TITLE]


def _folded(text: str) -> str:
    return clean(text).casefold()


def _json(value: object) -> str:
    try:
        return clean(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the turn cannot be kept: {error}", param="runs") from error


def _stored(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedRow(f"could not decode a turn: {error}") from error
