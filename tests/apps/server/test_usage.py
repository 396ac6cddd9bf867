"""Keys that expire, limits of keys, and what keys have used."""

import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypic_apps.server.auth import keys as keys_module
from hypic_apps.server.auth import usage as usage_module
from hypic_apps.server.auth.keys import FILE, Keys
from hypic_apps.server.auth.usage import DAY, KeyUsage, TooMuch
from operated import client, make_service

from hypic_rag.collections.database import CollectionDatabase

CHAT = "/v1/chat/completions"


class Clock:
    """Of both modules: days and monotonic seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 20_000.0 * DAY + 100
        both = SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now)
        monkeypatch.setattr(keys_module, "time", both)
        monkeypatch.setattr(usage_module, "time", both)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def usage_of(keys: Keys, clock: Clock) -> KeyUsage:
    return KeyUsage(keys, lambda: clock.now)


def test_a_key_expires(tmp_path: Path, clock: Clock) -> None:
    keys = Keys(tmp_path)
    key, secret = keys.add("acme", valid_seconds=60)
    assert keys.find(secret) == key
    clock.now += 60
    assert keys.find(secret) is None and keys.all() == [key]


def test_requests_a_minute_fill_evenly(tmp_path: Path, clock: Clock) -> None:
    keys = Keys(tmp_path)
    usage = usage_of(keys, clock)
    limited, free = keys.add("acme", requests_per_minute=3)[0], keys.add("acme")[0]
    for _ in range(3):
        usage.check(limited, CHAT)
    with pytest.raises(TooMuch) as told:
        usage.check(limited, CHAT + "/")
    assert (told.value.status, told.value.code, told.value.retry_after) == (429, "rate_limit_exceeded", 20)
    usage.check(limited, "/v1/collections")  # what asks no engine
    usage.check(free, CHAT)
    clock.now += 20
    usage.check(limited, CHAT)
    with pytest.raises(TooMuch):
        usage.check(limited, CHAT)


def test_tokens_a_day_are_counted_over_restarts_until_midnight(tmp_path: Path, clock: Clock) -> None:
    keys = Keys(tmp_path)
    usage = usage_of(keys, clock)
    key, _ = keys.add("acme", tokens_per_day=100)
    usage.add(key.id, 60, 39)
    usage.check(key, CHAT)
    usage.close()
    usage = usage_of(keys, clock)
    usage.check(key, CHAT)
    usage.add(key.id, 1, 0)
    with pytest.raises(TooMuch) as told:
        usage.check(key, CHAT)
    assert (told.value.code, told.value.retry_after) == ("insufficient_quota", DAY - 100)
    clock.now += DAY
    usage.check(key, CHAT)
    usage.write()
    (day,) = keys.used(since=0)
    assert (day.key_id, day.day, day.requests, day.prompt_tokens, day.generated_tokens) == (key.id, 20_000, 2, 61, 39)
    assert keys.used(since=20_001) == keys.used(since=0, key_id="other") == []


def test_the_server_refuses_and_names_the_key_in_its_log(tmp_path: Path) -> None:
    service = make_service(tmp_path)
    _, secret = service.keys.add("acme", requests_per_minute=1)
    with client(service, secret) as http:
        first, second = (http.post(CHAT, content=b"no JSON") for _ in "ab")
    assert (first.status_code, second.status_code) == (400, 429)
    assert second.json()["error"]["code"] == "rate_limit_exceeded" and 1 <= int(second.headers["Retry-After"]) <= 60


def test_a_file_of_an_older_version_gets_what_is_new(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    old, secret = keys.add("acme", "laptop")
    keys.close()
    with sqlite3.connect(tmp_path / FILE) as db:
        for column in ("expires", "requests_per_minute", "tokens_per_day"):
            db.execute(f"ALTER TABLE keys DROP COLUMN {column}")
        db.execute("DROP TABLE usage")
        db.execute("PRAGMA user_version = 2")
    db.close()
    assert keys.find(secret) == old
    keys.add("acme", tokens_per_day=5)
    keys.count([(old.id, int(time.time() // DAY), 1, 2, 3)])
    assert len(keys.all()) == 2 and len(keys.used(since=0)) == 1
    CollectionDatabase(tmp_path / FILE).close()
