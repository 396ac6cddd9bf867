"""Collections over a tiny engine and a bag of words as embedder, asked through HTTP; a request names its tenant."""

import contextlib
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from hypic_apps.server.app import create_app
from hypic_apps.server.app_state import Service
from hypic_apps.server.auth.tenants import tenant
from hypic_apps.server.chat.engine_loop import EngineLoop
from starlette.testclient import TestClient

from hypic_rag.cache import SegmentCache
from hypic_rag.collections.tenant import Tenant
from hypic_rag.config import Settings

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS / "engine"), str(TESTS / "retrieval")]
import tiny  # noqa: E402
from fake_engine import FakeEmbedder  # noqa: E402

SECRET = "The password of the harbour master of Vardal is quicksilver."


def text(name: str, n_sentences: int = 12) -> str:
    return " ".join(f"Sentence {i} of {name} tells of {name} matters and of nothing else." for i in range(n_sentences))


def make_service(folder: Path, delay: float = 0.0, **settings: Any) -> Service:
    """delay: seconds that embedding a text takes."""
    folder.mkdir(parents=True, exist_ok=True)
    cache = SegmentCache.open(folder / "segments", None, None)
    engine = tiny.engine("qwen3_5_text", cache=cache)
    embedder: Any = FakeEmbedder()
    if delay:
        embed = embedder.embed
        embedder.embed = lambda texts, *rest: (time.sleep(delay * len(texts)), embed(texts, *rest))[1]
    values = Settings(**{"chunk_tokens": 64, "max_new_tokens": 8, "min_similarity": -1.0, **settings})
    return Service(values, folder, engine, embedder, EngineLoop(engine, 8, 64))


class Api:
    """What a client of a tenant does."""

    def __init__(self, client: Any, tenant: str = "local"):
        self.client, self.tenant, self.headers = client, Tenant(tenant), {"x-tenant": tenant}

    def namespace(self, name: str = "notes") -> str:
        """Of the collection's segments."""
        return self.tenant.namespace(self.ask("GET", f"/{name}").json()["id"])

    def of(self, tenant: str) -> "Api":
        return Api(self.client, tenant)

    def ask(self, method: str, path: str, **options: Any) -> Any:
        return self.client.request(method, f"/v1/collections{path}", headers=self.headers, **options)

    def make(self, name: str = "notes") -> dict[str, Any]:
        made = self.ask("POST", "", json={"name": name})
        assert made.status_code == 201, made.text
        return made.json()

    def send(self, collection: str = "notes", /, **texts: str) -> list[str]:
        """Ids of the files NAME.txt."""
        sent = self.ask("POST", f"/{collection}/files", files=[("file", (f"{k}.txt", v)) for k, v in texts.items()])
        assert sent.status_code == 202, sent.text
        assert [file["filename"] for file in sent.json()["data"]] == [f"{name}.txt" for name in texts]
        return [file["id"] for file in sent.json()["data"]]

    def file(self, file_id: str, collection: str = "notes") -> dict[str, Any]:
        return self.ask("GET", f"/{collection}/files/{file_id}").json()

    def until(self, status: str, file_id: str, collection: str = "notes", seconds: float = 60) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while (file := self.file(file_id, collection)).get("status") != status:
            assert time.monotonic() < deadline, file
            assert file.get("status") not in {"ready", "failed"} - {status}, file
            time.sleep(0.02)
        return file

    def found(self, question: str, collection: str = "notes", k: int = 5) -> list[dict[str, Any]]:
        found = self.ask("GET", f"/{collection}/search", params={"q": question, "k": k})
        assert found.status_code == 200, found.text
        return found.json()["data"]

    def delete(self, path: str) -> Any:
        return self.ask("DELETE", path)


def app_of(service: Service) -> FastAPI:
    async def named(request: Request) -> Tenant:
        return Tenant(request.headers.get("x-tenant", "local"))

    app = create_app(service)
    app.dependency_overrides[tenant] = named
    return app


@contextlib.contextmanager
def serving(service: Service) -> Iterator[Api]:
    with TestClient(app_of(service), raise_server_exceptions=False) as client:
        yield Api(client)
    service.engine.cache.close()


def kept(folder: Path, needle: str) -> list[str]:
    """Files of the server in which the bytes of a text stand."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path.relative_to(folder)) for path in files if needle.encode() in path.read_bytes()]


def entries(service: Service, namespace: str) -> set[str]:
    """Digests in any tier."""
    cache = service.engine.cache
    assert cache.disk is not None
    return cache.host.of_namespace(namespace) | cache.disk.of_namespace(namespace)


def check_database(folder: Path) -> None:
    with contextlib.closing(sqlite3.connect(folder / "server.sqlite")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
