"""A server over a tiny engine in a thread of this process, and short ways to ask it."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from hypic_apps.server.app import create_app
from hypic_apps.server.app_state import Service
from hypic_apps.server.listening import bound_socket

from hypic_rag import SegmentEngine


@dataclass
class Running:
    url: str
    service: Service
    server: uvicorn.Server

    @property
    def engine(self) -> SegmentEngine:
        return self.service.engine

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60)

    def chat(self, *texts: str, **fields: Any) -> Any:
        """texts: the user's and the assistant's in turn. The answer's JSON."""
        body = {"messages": turns(*texts), "max_tokens": 6, **fields}
        response = self.post("/v1/chat/completions", **body)
        assert response.status_code == 200, response.text
        return response.json()

    def idle(self, seconds: float = 10) -> bool:
        """Whether the engine has nothing left to do, at the latest after so long."""
        deadline = time.monotonic() + seconds
        while self.engine.has_work or self.service.loop.n_waiting:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


@contextlib.contextmanager
def watched_health(server: Running) -> Iterator[list[float]]:
    """Seconds that /health took, asked again and again until the block ends."""
    waits: list[float] = []
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=60) as client:
            while not ended.is_set() or not waits:
                began = time.perf_counter()
                assert client.get(server.url + "/health").json() == {"status": "ok"}
                waits.append(time.perf_counter() - began)
                ended.wait(0.02)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield waits
    finally:
        ended.set()
        asking.join()


@contextlib.contextmanager
def running(service: Service) -> Iterator[Running]:
    listener = bound_socket("127.0.0.1", 0)
    ready = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            ready.set()

    server = Server(uvicorn.Config(create_app(service), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread.start()
    assert ready.wait(20)
    try:
        yield Running(url, service, server)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
