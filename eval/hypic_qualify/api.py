"""What a client asks of a server, one thing after the other."""

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from hypic_rag.errors import HypicError


class Refused(HypicError):
    """The server's answer is an error, or none came."""


class Api:
    """One tenant's. key: of the API, or "" where none is asked for."""

    def __init__(self, url: str, key: str = "", seconds: float = 600):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.Client(base_url=url, headers=headers, timeout=seconds)

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Send a request and return the answer's JSON. Raises Refused."""
        try:
            answer = self.client.request(method, path, **options)
            content = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Refused(f"{method} {path}: {error!r}") from error
        if answer.is_error:
            raise Refused(f"{method} {path}: {answer.status_code}: {content['error']['message']}")
        return content

    def make(self, collection: str) -> None:
        self.ask("POST", "/v1/collections", json={"name": collection})

    def send(self, collection: str, files: Mapping[str, str | bytes]) -> list[str]:
        """Send files given as name -> content; return their ids."""
        parts = [("file", (name, content)) for name, content in files.items()]
        sent = self.ask("POST", f"/v1/collections/{collection}/files", files=parts)
        return [str(file["id"]) for file in sent["data"]]

    def files(self, collection: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", f"/v1/collections/{collection}/files")["data"]
        return found

    def wait(self, collection: str, seconds: float = 3600) -> list[dict[str, Any]]:
        """Wait until all of a collection's files are ready, and return them. Raises Refused where one fails."""
        deadline = time.monotonic() + seconds
        while True:
            files = self.files(collection)
            if failed := [file for file in files if file["status"] == "failed"]:
                raise Refused(f"{failed[0]['filename']} was not ingested: {failed[0]['error']}")
            if all(file["status"] == "ready" for file in files):
                return files
            if time.monotonic() > deadline:
                raise Refused(f"the collection {collection} is not ready after {seconds:.0f} s")
            time.sleep(0.1)

    def search(self, collection: str, question: str, k: int = 5) -> list[dict[str, Any]]:
        path = f"/v1/collections/{collection}/search"
        found: list[dict[str, Any]] = self.ask("GET", path, params={"q": question, "k": k})["data"]
        return found

    def chat(self, question: str, **fields: Any) -> dict[str, Any]:
        """Ask for the whole answer, greedy."""
        asked: dict[str, Any] = self.ask("POST", "/v1/chat/completions", json=chat_body(question, **fields))
        return asked

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def chat_body(question: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], "temperature": 0, **fields}


def documents_file(documents: Sequence[tuple[str, str]]) -> str:
    """Write a jsonl file of titles and texts."""
    import json

    return "".join(json.dumps({"title": title, "text": text}) + "\n" for title, text in documents)
