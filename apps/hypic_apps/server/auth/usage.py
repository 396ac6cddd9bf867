"""What each key has asked for, by day, and what of it is too much."""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from hypic_apps.server.auth.keys import Key, Keys
from hypic_apps.server.errors import ApiError
from hypic_rag.errors import HypicError

log = logging.getLogger(__name__)
FLUSH_SECONDS = 5.0
DAY = 86_400  # seconds; days are of UTC
METERED = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


class TooMuch(ApiError):
    """A key has used what it may. retry_after: seconds."""

    def __init__(self, message: str, code: str, retry_after: float):
        super().__init__(429, message, "rate_limit_error", code, retry_after=math.ceil(retry_after))


@dataclass
class _Bucket:
    left: float
    filled: float  # at, of time.monotonic


class KeyUsage:
    """Counted in memory, written every few seconds: who kills the server loses so much. Safe for threads.

    A key's requests a minute are a bucket that fills evenly, and holds a minute's. Its tokens a day are those of
    requests that have ended, prompt and answer, so what is under way at the limit still ends.
    """

    def __init__(self, keys: Keys, clock: Callable[[], float] = time.time):
        self._keys, self._clock = keys, clock
        self._lock = threading.Lock()
        self._buckets: dict[str, _Bucket] = {}
        self._today: dict[str, int] = {}  # tokens by key
        self._day = 0
        self._new: dict[tuple[str, int], tuple[int, int, int]] = {}  # not written yet
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_always, name="usage", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self.write()

    def check(self, key: Key, path: str) -> None:
        """Take a request of a key, where its path is metered. Raises TooMuch."""
        if path.rstrip("/") not in METERED:
            return
        now = self._clock()
        if key.tokens_per_day is not None and self._tokens_today(key.id, int(now // DAY)) >= key.tokens_per_day:
            raise TooMuch(
                f"this key has used its {key.tokens_per_day:,} tokens of today (UTC): come again tomorrow, or ask "
                "whoever runs this server for more",
                "insufficient_quota",
                DAY - now % DAY,
            )
        if key.requests_per_minute is not None:
            self._take(key.id, key.requests_per_minute, time.monotonic())

    def add(self, key_id: str, prompt_tokens: int, generated_tokens: int) -> None:
        """Count a request that has ended."""
        day, n_tokens = int(self._clock() // DAY), prompt_tokens + generated_tokens
        self._tokens_today(key_id, day)
        with self._lock:
            before = self._new.get((key_id, day), (0, 0, 0))
            self._new[key_id, day] = (before[0] + 1, before[1] + prompt_tokens, before[2] + generated_tokens)
            self._today[key_id] = self._today.get(key_id, 0) + n_tokens

    def write(self) -> None:
        """Write what is new; what cannot be written is kept for the next time."""
        with self._lock:
            new, self._new = self._new, {}
        if not new:
            return
        try:
            self._keys.count([(key_id, day, *counts) for (key_id, day), counts in new.items()])
        except HypicError as error:
            log.warning("what keys have used cannot be written: %s", error)
            with self._lock:
                for at, counts in new.items():
                    there = self._new.get(at, (0, 0, 0))
                    self._new[at] = (there[0] + counts[0], there[1] + counts[1], there[2] + counts[2])

    def _tokens_today(self, key_id: str, day: int) -> int:
        with self._lock:
            if day != self._day:
                self._day, self._today = day, {}
            if key_id in self._today:
                return self._today[key_id]
        n_tokens = sum(one.prompt_tokens + one.generated_tokens for one in self._keys.used(since=day, key_id=key_id))
        with self._lock:
            return self._today.setdefault(key_id, n_tokens)

    def _take(self, key_id: str, most: int, now: float) -> None:
        with self._lock:
            bucket = self._buckets.setdefault(key_id, _Bucket(most, now))
            bucket.left = min(most, bucket.left + (now - bucket.filled) * most / 60)
            bucket.filled = now
            if bucket.left < 1:
                wait = (1 - bucket.left) * 60 / most
                raise TooMuch(
                    f"this key may ask {most} times a minute: try again in {math.ceil(wait)} s",
                    "rate_limit_exceeded",
                    wait,
                )
            bucket.left -= 1

    def _write_always(self) -> None:
        while not self._closing.wait(FLUSH_SECONDS):
            self.write()
