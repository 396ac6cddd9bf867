"""Whether something outside this process works: said once a spell of trouble, and left alone where failing is slow."""

import logging
import time

SLOW_SECONDS = 1.0  # a failure that took so long would cost every request as much
REST_SECONDS = 30.0


class CircuitBreaker:
    """What failed of late of one thing, by what is done with it ("read", "write", ...), which may fail
    apart: a full disk can be read.

    rest_after: a failure that took so many seconds is not tried again for REST_SECONDS; 0: none is.
    """

    def __init__(self, log: logging.Logger, rest_after: float = SLOW_SECONDS):
        self._log, self._rest_after = log, rest_after
        self._troubles: dict[str, str] = {}
        self._rests_until: dict[str, float] = {}

    @property
    def trouble(self) -> str:
        """Why the last attempts failed; empty where they did not."""
        return "; ".join(list(self._troubles.values()))

    def of(self, doing: str) -> str:
        """Say why the last attempt at one thing failed; empty where it did not."""
        return self._troubles.get(doing, "")

    def rests(self, doing: str) -> bool:
        """Return whether it failed slowly not long ago: then do as if it failed again."""
        return time.monotonic() < self._rests_until.get(doing, 0.0)

    def failed(self, doing: str, message: str, seconds: float = 0.0) -> None:
        """Note a failed attempt. message: whole, with the cause. seconds: that the attempt took."""
        self._log.log(logging.DEBUG if doing in self._troubles else logging.WARNING, "%s", message)
        self._troubles[doing] = message
        if seconds >= self._rest_after:
            self._rests_until[doing] = time.monotonic() + REST_SECONDS

    def worked(self, doing: str) -> None:
        if self._troubles.pop(doing, ""):
            self._rests_until.pop(doing, None)
            self._log.info("works again: %s", doing)
