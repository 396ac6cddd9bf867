"""Clients that leave, a busy engine, limits of time and number."""

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypic_apps.server.app_state import Service
from hypic_apps.server.chat import rag_chat
from tiny_server import Running, running, turns, watched_health

PATH = "/v1/chat/completions"
LONG: Any = {"messages": turns("Go on."), "max_tokens": 8000}


def test_who_leaves_a_stream_stops_it(server: Running) -> None:
    with httpx.stream("POST", server.url + PATH, json={**LONG, "stream": True}, timeout=30) as response:
        lines = response.iter_lines()
        for _ in range(8):
            next(lines)
        assert server.engine.has_work
    assert server.idle(2)


def test_who_leaves_before_the_first_token_stops_it(server: Running) -> None:
    slow = {**LONG, "messages": turns("word " * 4000), "max_tokens": 3000, "mode": "full", "stream": True}
    with httpx.stream("POST", server.url + PATH, json=slow, timeout=30) as response:
        assert '"role":"assistant"' in next(response.iter_lines())
    assert server.idle(20)  # the pass under way is finished


def test_who_leaves_an_answer_stops_it(server: Running) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + PATH, json=LONG, timeout=0.6)
    assert server.idle(2)


def test_who_leaves_the_queue_leaves_room(make_service: Callable[..., Service]) -> None:
    with running(make_service(max_running=1, max_waiting=1)) as server, httpx.Client(timeout=30) as client:
        loop = server.service.loop
        with client.stream("POST", server.url + PATH, json={**LONG, "stream": True}) as response:
            lines = response.iter_lines()  # kept: httpx closes the connection with it
            next(lines)
            with client.stream("POST", server.url + PATH, json={**LONG, "stream": True}) as waiting:
                more = waiting.iter_lines()
                next(more)
                assert loop.n_waiting == 1
                refused = server.post(PATH, **LONG)
                assert refused.status_code == 503
                assert refused.json()["error"]["code"] == "overloaded"
                assert int(refused.headers["Retry-After"]) >= 1
            assert waits_for(lambda: loop.n_waiting == 0)
            assert loop.n_running == 1
        assert server.idle(5)


def test_a_request_past_its_time(make_service: Callable[..., Service]) -> None:
    with running(make_service(request_seconds=0.5)) as server:
        response = server.post(PATH, **LONG)
        assert response.status_code == 504 and response.json()["error"]["code"] == "timeout"
        with httpx.stream("POST", server.url + PATH, json={**LONG, "stream": True}, timeout=30) as streamed:
            last = [line for line in streamed.iter_lines() if line][-1]
        assert streamed.status_code == 200 and '"code":"timeout"' in last
        assert server.idle(2)


def test_past_its_time_while_its_prompt_is_made(
    make_service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that makes it goes on, and queues it for nobody: what it queued is dropped."""
    prepare, finish, made = rag_chat.prepare, threading.Event(), threading.Event()

    def slowly(*given: Any) -> Any:
        finish.wait(10)
        made.set()
        return prepare(*given)

    monkeypatch.setattr(rag_chat, "prepare", slowly)
    with running(make_service(request_seconds=0.3)) as server:
        response = server.post(PATH, **LONG)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
        finish.set()
        assert made.wait(5)
        time.sleep(0.3)  # it is queued, and its answer would take seconds
        assert server.idle(1)
        monkeypatch.undo()
        assert server.post(PATH, messages=turns("Hi"), max_tokens=1).status_code == 200  # its place is free


def test_health_answers_while_the_engine_prefills(server: Running) -> None:
    documents = ["word " * 1500 for _ in range(5)]
    slow = {**LONG, "documents": documents, "max_tokens": 1, "mode": "full"}

    def longest_wait() -> float:
        asking = threading.Thread(target=lambda: httpx.post(server.url + PATH, json=slow, timeout=120))
        asking.start()
        assert waits_for(lambda: server.service.loop.n_running == 1)
        with watched_health(server) as waits:
            asking.join()
        assert len(waits) >= 3
        return max(waits)

    # A machine with much else to do may hold up one round; an event loop that waits for the engine, every one.
    assert any(longest_wait() < 0.5 for _ in range(3))


def waits_for(condition: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
