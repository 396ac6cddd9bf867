"""A server with the interface of ours and no model: the page's tests say how fast it is and what goes wrong."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from hypic_apps.server import errors
from hypic_apps.server.routes import page

from hypic_rag.rag.unanswered import is_answer

POLICY = {"mode": "hypic", "seam_tokens": 8, "compose": "exact"}
BAND = (
    "is a rock band that was formed in a small town. Its first record came out on a label of its own, and sold well "
    "enough that a larger one took it on. It has toured on three continents since, and won a prize in 2013. "
)
PASSAGES = [  # title, text, tokens, similarity, tier, why it was missing
    ("Halestorm", f"Halestorm {BAND}" * 3 + "Halestorm comes from Red Lion in Pennsylvania.", 203, 0.447, "disk", None),
    ("Audioslave", f"Audioslave {BAND}" * 2 + "Audioslave comes from Los Angeles.", 187, 0.371, "host", None),
    ("Red Lion, Pennsylvania", f"Red Lion {BAND}", 164, 0.334, None, "never_seen"),
    ("A title that is long enough that it has to take two lines beside the answer", BAND, 221, 0.298, "device", None),
    ("<b>Hostile</b>", "<img src=x onerror=\"window.hostile = 1\"><script>window.hostile = 1</script>", 118, 0.12,
     "disk", None),
]  # fmt: skip
ANSWER = "**Audioslave** is from farther west: Los Angeles, and *Halestorm* from Red Lion. <b>Not bold.</b>"
MARKDOWN = """# Where from

Both are `rock` bands:

- **Halestorm** from Red Lion
- **Audioslave** from Los Angeles
  - nested

1. first
2. second

> said once

```python
if a < b:
    print("<script>window.hostile = 1</script>")
```

[a link](javascript:alert(1)) <img src=x onerror="window.hostile = 1">

| band | town |
| :-- | --: |
| Halestorm | Red Lion |
| Audioslave | Los Angeles |

[good](https://example.org/a) or ~~no~~"""


@dataclass
class Fake:
    """keys: those accepted; none: all. seconds: a token, before the first token, and for a file to be ready.
    trouble: what the next answer comes to: busy, late (an error within the stream), cut, context, odd, or <hostile>.
    asked: the bodies of the chat requests. closed: how many of them the page left. n_cold: segments of each file that
    are not cached, until they are warmed. n_computed: as the next answers tell; None: what their segments say."""

    keys: set[str] = field(default_factory=set)
    token_seconds: float = 0.002
    first_seconds: float = 0.02
    file_seconds: float = 0.2
    answer: str = ANSWER
    trouble: str | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    closed: int = 0
    collections: dict[str, dict[str, Any]] = field(default_factory=dict)
    chats: dict[str, dict[str, Any]] = field(default_factory=dict)
    n_cold: int = 0
    n_computed: int | None = None
    warming_until: float = 0.0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def collection(self, name: str) -> dict[str, Any]:
        if name not in self.collections:
            raise errors.ApiError(404, f"there is no collection {name}: make it first", code="collection_not_found")
        return self.collections[name]

    def add(self, name: str, *filenames: str, age: float = 1e9) -> None:
        """A collection with files that began as many seconds ago."""
        made = {"id": f"c{next(self.numbers)}", "name": name, "created_at": int(time.time()), "files": {}}
        kept = self.collections.setdefault(name, made)
        for filename in filenames:
            number = f"f{next(self.numbers)}"
            kept["files"][number] = {"id": number, "filename": filename, "bytes": 34_212, "began": time.time() - age}

    def told_file(self, file: dict[str, Any]) -> dict[str, Any]:
        done = (time.time() - file["began"]) / self.file_seconds
        status = "queued" if done < 0.1 else "parsing" if done < 0.2 else "prefilling" if done < 1 else "ready"
        error = None
        if file["filename"].endswith(".bin") and status not in ("queued", "parsing"):
            status, error = "failed", f"{file['filename']} is no file that can be read: txt, md, html, pdf, jsonl"
        total = 8000 if status in ("prefilling", "ready") else 0
        return {
            "id": file["id"], "object": "file", "filename": file["filename"], "bytes": file["bytes"],
            "created_at": int(file["began"]), "status": status, "error": error, "n_documents": 1,
            "n_chunks": 12, "n_segments": 12, "n_prefilled": 12 if status == "ready" else 0,
            "tokens_done": int(total * min(1.0, done)), "tokens_total": total,
        }  # fmt: skip

    def told(self, collection: dict[str, Any]) -> dict[str, Any]:
        files = [self.told_file(file) for file in collection["files"].values()]
        is_ready = all(file["status"] in ("ready", "failed") for file in files)
        n_done = sum(file["status"] in ("ready", "failed") for file in files)
        return {
            "id": collection["id"], "object": "collection", "name": collection["name"],
            "created_at": collection["created_at"], "n_files": len(files), "n_documents": len(files),
            "n_chunks": 12 * n_done, "bytes": 34_212 * len(files), "status": "ready" if is_ready else "working",
            "progress": {"n_done": n_done, "n_failed": sum(file["status"] == "failed" for file in files),
                         "n_total": len(files),
                         "tokens_done": sum(file["tokens_done"] for file in files),
                         "tokens_total": sum(file["tokens_total"] for file in files)},
        }  # fmt: skip


def documents(is_full: bool, is_known: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for i, (title, text, n_tokens, similarity, tier, reason) in enumerate(PASSAGES):
        row = {"index": i, "title": title, "source": "bands.md", "page_label": str(i + 3) if i else None,
               "text": text, "similarity": similarity, "file_id": "f1", "n_tokens": n_tokens}  # fmt: skip
        if is_known:
            row |= {"tier": "live" if is_full else tier, "miss_reason": None if is_full else reason}
        found.append(row)
    return found


def figures(is_full: bool, n_turns: int) -> dict[str, Any]:
    used = documents(is_full, True)
    segments = [{"kind": "leading", "n_tokens": 14, "seam_tokens": 0, "tier": "live" if is_full else "host",
                 "miss_reason": None, "document": None}]  # fmt: skip
    for _ in range(n_turns - 1):
        for kind, n_tokens in (("document", 300), ("live", 40)):
            segments.append({"kind": kind, "n_tokens": n_tokens, "seam_tokens": 0, "tier": "conversation",
                             "miss_reason": None, "document": None})  # fmt: skip
    for row in used:
        segments.append({"kind": "document", "n_tokens": row["n_tokens"], "seam_tokens": 8, "tier": row["tier"],
                         "miss_reason": row["miss_reason"], "document": row["index"]})  # fmt: skip
    segments.append({"kind": "live", "n_tokens": 23, "seam_tokens": 0, "tier": "live", "miss_reason": None,
                     "document": None})  # fmt: skip
    prompt = sum(segment["n_tokens"] for segment in segments)  # type: ignore[misc]
    computed = prompt if is_full else 23 + 5 * 8 + 164
    ms = {"queue": 3.1, "prefill": 0.0 if is_full else 310.0, "assemble": 4181.0 if is_full else 94.2,
          "ttft": 4184.1 if is_full else 409.0, "decode": 512.0, "total": 4720.0 if is_full else 960.0}  # fmt: skip
    return {**POLICY, "mode": "full" if is_full else "hypic", "prompt_tokens": prompt, "computed_tokens": computed,
            "cached_tokens": prompt - computed, "resumed_tokens": 0, "n_dropped": 0, "ms": ms,
            "segments": segments}  # fmt: skip


def create() -> FastAPI:
    app = FastAPI()
    app.state.fake = Fake()
    errors.install(app)
    app.include_router(page.router)

    @app.middleware("http")
    async def keys(request: Request, call_next: Any) -> Response:
        fake: Fake = app.state.fake
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if request.url.path.startswith("/v1/") and fake.keys and given not in fake.keys:
            told = errors.ApiError(401, "the API key is not known here", code="invalid_api_key")
            if given == "sk-operator":
                told = errors.ApiError(403, "this is an operator's key: use a tenant's", code="wrong_kind_of_key")
            return JSONResponse(told.body(), told.status)
        answer: Response = await call_next(request)
        return answer

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        model = {"id": "smollm2-hybrid-155m", "object": "model", "created": 0, "owned_by": "hypic-rag",
                 "context_length": 8192, "policy": POLICY}  # fmt: skip
        return {"object": "list", "data": [model]}

    @app.get("/v1/server")
    async def server() -> dict[str, Any]:
        tiers = {"host": {"n_entries": 120, "nbytes": 982_000_000, "budget": 2_000_000_000, "hits": 3},
                 "disk": {"n_entries": 412, "nbytes": 3_310_000_000, "budget": 10_000_000_000, "hits": 9}}  # fmt: skip
        return {"version": "0.1.0", "model": "smollm2-hybrid-155m", "policy": POLICY, "context_length": 8192,
                "tiers": tiers, "running": 0, "waiting": 0}  # fmt: skip

    @app.get("/v1/collections")
    async def collections() -> dict[str, Any]:
        fake: Fake = app.state.fake
        return {"object": "list", "data": [fake.told(one) for one in fake.collections.values()]}

    @app.post("/v1/collections", status_code=201)
    async def make(body: dict[str, str]) -> dict[str, Any]:
        fake: Fake = app.state.fake
        if body["name"] in fake.collections:
            raise errors.ApiError(409, f"there is a collection {body['name']} already: choose another name")
        fake.add(body["name"])
        return fake.told(fake.collections[body["name"]])

    @app.delete("/v1/collections/{name}")
    async def drop(name: str) -> dict[str, Any]:
        app.state.fake.collection(name)
        del app.state.fake.collections[name]
        return {"deleted": True}

    @app.get("/v1/collections/{name}/files")
    async def files(name: str) -> dict[str, Any]:
        fake: Fake = app.state.fake
        return {"object": "list", "data": [fake.told_file(file) for file in fake.collection(name)["files"].values()]}

    @app.post("/v1/collections/{name}/files", status_code=202)
    async def upload(name: str, request: Request) -> dict[str, Any]:
        fake: Fake = app.state.fake
        fake.collection(name)
        async with request.form() as form:
            sent = [part.filename for part in form.getlist("file") if not isinstance(part, str)]
        if "huge.txt" in sent:
            raise errors.ApiError(413, "'huge.txt' is larger than 50 MB, the most that one file may be")
        fake.add(name, *[str(filename) for filename in sent], age=0)
        return await files(name)

    @app.delete("/v1/collections/{name}/files/{number}")
    async def remove(name: str, number: str) -> dict[str, Any]:
        del app.state.fake.collection(name)["files"][number]
        return {"deleted": True}

    @app.get("/v1/collections/{name}/cached")
    async def cached(name: str) -> dict[str, Any]:
        fake: Fake = app.state.fake
        told = [{"file_id": number, "n_segments": 12, "n_cached": 12 - fake.n_cold}
                for number in fake.collection(name)["files"]]  # fmt: skip
        is_warming = fake.warming_until > time.time()
        return {"object": "list", "data": told, "is_warming": is_warming}

    @app.post("/v1/collections/{name}/warm", status_code=202)
    async def warm(name: str) -> dict[str, Any]:
        fake: Fake = app.state.fake
        fake.n_cold, fake.warming_until = 0, time.time() + 0.3
        return {"object": "collection.warming", "is_warming": True}

    @app.get("/v1/collections/{name}/files/{number}/passages")
    async def passages(name: str, number: str, offset: int = 0, limit: int = 200) -> dict[str, Any]:
        fake: Fake = app.state.fake
        if number not in fake.collection(name)["files"]:
            raise errors.ApiError(404, f"there is no file '{number}'", code="file_not_found")
        rows = [{"index": i, "document": i, "title": title, "page_label": str(i + 3) if i else None, "text": text}
                for i, (title, text, *_) in enumerate(PASSAGES)]  # fmt: skip
        filename = fake.collection(name)["files"][number]["filename"]
        return {"object": "list", "filename": filename, "total": len(rows), "data": rows[offset : offset + limit]}

    def chat_of(chat_id: str) -> dict[str, Any]:
        fake: Fake = app.state.fake
        if chat_id not in fake.chats:
            raise errors.ApiError(404, f"there is no conversation '{chat_id}'", code="conversation_not_found")
        return fake.chats[chat_id]

    @app.get("/v1/chats")
    async def chats(q: str = "") -> dict[str, Any]:
        fake: Fake = app.state.fake
        words = q.lower().split()
        found = [one for one in fake.chats.values() if all(word in one["title"].lower() for word in words)]
        return {"object": "list", "data": sorted(found, key=lambda one: -one["updated_at"])}

    @app.post("/v1/chats", status_code=201)
    async def begin(body: dict[str, Any]) -> dict[str, Any]:
        fake: Fake = app.state.fake
        made = {"id": f"conv-{next(fake.numbers)}", "object": "chat", "title": body["title"], "turns": [],
                "collection": body["collection"], "created_at": int(time.time()), "updated_at": int(time.time()),
                "n_turns": 0}  # fmt: skip
        return fake.chats.setdefault(made["id"], made)

    @app.get("/v1/chats/{chat_id}")
    async def chat_with_turns(chat_id: str) -> dict[str, Any]:
        return chat_of(chat_id)

    @app.post("/v1/chats/{chat_id}")
    async def rename(chat_id: str, body: dict[str, Any]) -> dict[str, Any]:
        chat_of(chat_id)["title"] = body["title"]
        return chat_of(chat_id)

    @app.put("/v1/chats/{chat_id}/turns/{turn}")
    async def save(chat_id: str, turn: int, body: dict[str, Any]) -> dict[str, Any]:
        turns = chat_of(chat_id)["turns"]
        assert turn <= len(turns)
        turns[turn:] = [body, *turns[turn + 1 :]]
        chat_of(chat_id)["n_turns"] = len(turns)
        return chat_of(chat_id)

    @app.delete("/v1/chats/{chat_id}")
    async def forget(chat_id: str) -> dict[str, Any]:
        chat_of(chat_id)
        del app.state.fake.chats[chat_id]
        return {"deleted": True}

    @app.delete("/v1/chats")
    async def forget_all() -> dict[str, Any]:
        app.state.fake.chats.clear()
        return {"deleted": True}

    @app.post("/v1/chat/completions")
    async def chat(body: dict[str, Any]) -> Response:
        fake: Fake = app.state.fake
        fake.asked.append(body)
        trouble, fake.trouble = fake.trouble, None
        if trouble == "busy":
            raise errors.Busy(5)
        if trouble and "<" in trouble:
            raise errors.ApiError(400, trouble)
        if trouble == "context":
            raise errors.ApiError(400, "9,100 tokens do not fit the context of 8,192: ask in a new conversation",
                                  code="context_length_exceeded")  # fmt: skip
        return StreamingResponse(stream(fake, body, trouble), media_type="text/event-stream")

    return app


async def stream(fake: Fake, body: dict[str, Any], trouble: str | None) -> AsyncIterator[str]:
    is_full = body.get("mode") == "full"
    n_turns = sum(message["role"] == "user" for message in body["messages"])
    is_whole = False

    def event(delta: dict[str, Any], **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": more.pop("finish_reason", None)}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
        return f"data: {json.dumps({**chunk, 'choices': [choice], **more})}\n\n"

    try:
        yield event({"role": "assistant", "content": ""}, documents=documents(is_full, False))
        await asyncio.sleep(fake.first_seconds * (5 if is_full else 1))
        for i, word in enumerate(fake.answer.split(" ")):
            if i == 4 and trouble == "late":
                late = errors.TooSlow()
                yield f"data: {json.dumps(late.body())}\n\n"
                is_whole = True
                return
            if i == 4 and trouble == "cut":
                is_whole = True
                return
            if i == 4 and trouble == "odd":
                yield "data: {not json\n\n"
            yield event({"content": word if i == 0 else f" {word}"})
            await asyncio.sleep(fake.token_seconds)
        yield event(
            {},
            finish_reason="stop",
            documents=documents(is_full, True),
            hypic={
                **figures(is_full, n_turns),
                "answered": is_answer(fake.answer),
                **({} if fake.n_computed is None else {"computed_tokens": fake.n_computed}),
            },
        )
        yield "data: [DONE]\n\n"
        is_whole = True
    finally:
        fake.closed += not is_whole
