"""One thread that runs the engine: requests join and leave between its steps, and the event loop never waits for it."""

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hypic_apps.server.errors import ApiError, Busy, ShuttingDown, TooSlow
from hypic_apps.server.observability.request_metrics import RequestMetrics, RequestTimer, outcome_of
from hypic_rag.engine import Generation, Policy, Sampling, SegmentEngine, StreamEvent
from hypic_rag.prompt import Prompt

log = logging.getLogger(__name__)
FAILURES = 3  # steps that fail in a row before the engine counts as broken


class EngineStopped(ApiError):
    """Nothing steps the engine any more."""

    def __init__(self) -> None:
        super().__init__(503, "the engine has stopped: the server has to be started again", "server_error",
                         "engine_stopped", retry_after=60)  # fmt: skip


@dataclass(eq=False)
class QueuedRequest:
    """A request and where its events go. owner: whose it is. queue_seconds: from its arrival to its admission.
    samplings: one an answer. numbers: the engine's, of the answers, once it is admitted."""

    prompt: Prompt
    samplings: Sequence[Sampling]
    policy: Policy
    namespace: str
    owner: str
    listener: asyncio.AbstractEventLoop
    watch: RequestTimer
    events: asyncio.Queue[StreamEvent | Exception] = field(default_factory=asyncio.Queue)
    numbers: list[int] = field(default_factory=list)
    queue_seconds: float = 0.0
    abandoned: bool = False

    @property
    def arrived(self) -> float:
        return self.watch.arrived

    def tell(self, event: StreamEvent | Exception) -> None:
        with contextlib.suppress(RuntimeError):  # its event loop has ended: nobody listens
            self.listener.call_soon_threadsafe(self.events.put_nowait, event)


class Stream:
    """The events of a request as they come, the last of each answer with its generation. ``close``, or leaving the
    ``with``, stops it.

    Iterating raises what ``SegmentEngine.add_request`` and ``step`` raise, and ShuttingDown; past the deadline TooSlow.
    """

    def __init__(self, loop: "EngineLoop", job: QueuedRequest, max_seconds: float):
        self._loop, self._job = loop, job
        self._deadline = job.arrived + max_seconds  # of time.monotonic, which is the event loop's clock
        self._ended = False
        self._generations: list[Generation] = []

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> StreamEvent:
        if self._ended:
            raise StopAsyncIteration
        try:
            async with asyncio.timeout_at(self._deadline):
                event = await self._job.events.get()
        except TimeoutError:
            self._job.watch.ended("timeout")
            self.close()
            raise TooSlow() from None
        if isinstance(event, Exception):
            self._ended = True
            # One that had been admitted when the server was told to stop was not refused, but cut off.
            is_cut_off = isinstance(event, ShuttingDown) and self._job.queue_seconds
            self._job.watch.ended("cancelled" if is_cut_off else outcome_of(event))
            raise event
        if event.generation is not None:
            self._generations.append(event.generation)
            if len(self._generations) == len(self._job.samplings):
                self._ended = True
                self._job.watch.ended("ok", *self._generations)
        return event

    @property
    def queue_ms(self) -> float:
        return 1e3 * self._job.queue_seconds

    @property
    def total_ms(self) -> float:
        """Since it arrived."""
        return 1e3 * (time.monotonic() - self._job.arrived)

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._job.watch.ended("cancelled")  # unless it was too slow
            self._loop.abandon(self._job)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EngineLoop:
    """Steps the engine in a thread of its own; nobody else may call ``step``, ``generate`` or ``stream`` of it.

    max_running: requests that share the engine's steps. max_waiting: those that wait beyond; one more is refused.
    Of those that wait, one whose owner has the fewest running is next, the oldest of them first.
    """

    def __init__(self, engine: SegmentEngine, max_running: int, max_waiting: int):
        self.engine = engine
        self.max_running, self.max_waiting = max_running, max_waiting
        self.requests = RequestMetrics()
        self._waiting: deque[QueuedRequest] = deque()
        self._running: dict[int, QueuedRequest] = {}  # by the engine's number; changed by the thread, under the lock
        self._places: list[RequestTimer] = []  # of requests that are still being prepared
        self._changed = threading.Condition()
        self._closing = self._stopping = self._ended = False
        self._failures = 0
        self._seconds_a_request = 1.0  # smoothed; what Retry-After is made of
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        return len(self._running)

    def serves(self, namespace: str, arrived_before: float) -> bool:
        """Return whether a request of this namespace that came before then (time.monotonic) waits or is under way; one
        that is still being prepared may be of any."""
        with self._changed:
            jobs = [*self._waiting, *self._running.copy().values()]
            if any(watch.arrived < arrived_before for watch in self._places):
                return True
        return any(job.namespace == namespace and job.arrived < arrived_before for job in jobs)

    @property
    def is_alive(self) -> bool:
        """Whether a request would be taken and run."""
        healthy = not self._ended and self._failures < FAILURES
        return self._thread.is_alive() and not self._closing and healthy

    @property
    def retry_after(self) -> int:
        """Seconds after which a refused request may find room."""
        rounds = 1 + len(self._waiting) / self.max_running
        return max(1, min(60, round(rounds * self._seconds_a_request)))

    @contextlib.contextmanager
    def place(self, namespace: str, arrived: float | None = None) -> Iterator[RequestTimer]:
        """Keep a place for a request while its prompt is made: one that would find none is refused before that work.

        arrived: of time.monotonic; None: now. Inside, give what this gives to ``stream``; an error there is how the
        request ended. Raises Busy, ShuttingDown, EngineStopped.
        """
        watch = self.requests.watch(namespace, arrived)
        with self._changed:
            refusal = self._refusal(len(self._places))
            if refusal is None:
                self._places.append(watch)
        try:
            if refusal is not None:
                raise refusal
            yield watch
        except BaseException as error:
            watch.ended(outcome_of(error))
            raise
        finally:
            with self._changed, contextlib.suppress(ValueError):
                self._places.remove(watch)

    def check_ready(self) -> None:
        """Raise what ``place`` would now: Busy, ShuttingDown, EngineStopped."""
        with self._changed:
            refusal = self._refusal(len(self._places))
        if refusal is None and not self.is_alive:
            refusal = EngineStopped()
        if refusal is not None:
            raise refusal

    def check_room(self, namespace: str) -> None:
        """Raise what ``place`` would now, counted alike; keeps none."""
        with self._changed:
            refusal = self._refusal(len(self._places))
        if refusal is not None:
            self.requests.watch(namespace).ended("refused")
            raise refusal

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling,
        policy: Policy,
        namespace: str,
        max_seconds: float,
        owner: str = "",
        watch: RequestTimer | None = None,
        listener: asyncio.AbstractEventLoop | None = None,
        n: int = 1,
    ) -> Stream:
        """Queue the request at once. watch: of ``place``; None: it arrives now. listener: where the
        stream will be read; None: here. n: answers, at most ``max_running``.

        max_seconds: from its arrival. Raises Busy, ShuttingDown, EngineStopped.
        """
        watch = watch or self.requests.watch(namespace)
        here = listener or asyncio.get_running_loop()
        job = QueuedRequest(prompt, sampling.several(n), policy, namespace, owner, here, watch)
        try:
            self._take(job)
        except ApiError:
            watch.ended("refused")
            raise
        return Stream(self, job, max_seconds)

    def _take(self, job: QueuedRequest) -> None:
        with self._changed:
            if refusal := self._refusal(0):
                raise refusal
            with contextlib.suppress(ValueError):  # its place is taken
                self._places.remove(job.watch)
            self._waiting.append(job)
            self._changed.notify()

    def _refusal(self, n_places: int) -> ApiError | None:
        """n_places: that are kept for others."""
        if self._ended and not self._closing:
            return EngineStopped()
        if self._closing:
            return ShuttingDown()
        if len(self._waiting) + len(self._running) + n_places >= self.max_running + self.max_waiting:
            return Busy(self.retry_after)
        return None

    def abandon(self, job: QueuedRequest) -> None:
        """Give up a request for which nobody waits any more: it leaves the queue now, or
        the engine before its next step."""
        with self._changed:
            job.abandoned = True
            if job in self._waiting:
                self._waiting.remove(job)

    def close(self, grace_seconds: float) -> None:
        """Refuse new requests, let those that were taken finish for as long, then end them. Blocks.

        A step that is under way then is waited for as long again.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(grace_seconds)
        with self._changed:
            self._stopping = True
            left = [*self._waiting, *self._running.values()]
        for job in left:  # now, not after the step
            job.tell(ShuttingDown())
        if self._thread.is_alive():
            self._thread.join(grace_seconds)

    def _run(self) -> None:
        reason: Exception = ShuttingDown()
        try:
            while self._wait_for_work():
                self._turn()
        except BaseException:
            log.exception("the engine's thread has ended")
            reason = EngineStopped()
        finally:
            with self._changed:
                self._ended = True
                left = [*self._waiting, *self._running.values()]
                self._waiting.clear()
            for job in left:
                job.tell(reason)
            for number in list(self._running):
                with contextlib.suppress(Exception):
                    self._end(number, None)

    def _wait_for_work(self) -> bool:
        """Wait for work; False once closed with nothing under way, or told to stop."""
        with self._changed:
            while not self._waiting and not self._running and not self._closing:
                self._changed.wait()
            return not self._stopping and bool(self._waiting or self._running)

    def _turn(self) -> None:
        for number in [number for number, job in self._running.items() if job.abandoned]:
            self._end(number, None)
        self._admit()
        if not self._running:
            return
        try:
            outputs = self.engine.step()
        except BaseException as error:  # the engine has dropped all; the next ones may do
            log.exception("a step of the engine failed, and with it %d requests", len(self._running))
            self._failures += 1
            for number in list(self._running):
                self._end(number, error if isinstance(error, Exception) else RuntimeError(repr(error)))
            return
        self._failures = 0
        for output in outputs:
            if output.error is not None:
                self._end(output.request_id, output.error)
            elif job := self._running.get(output.request_id):
                index = job.numbers.index(output.request_id)
                job.watch.token(index)
                job.tell(StreamEvent(output.text, output.generation, output.logprobs, index))
                if output.generation:
                    self._end(output.request_id, None)

    def _admit(self) -> None:
        while len(self._running) < self.max_running:
            with self._changed:
                if not self._waiting:
                    return
                load = Counter(job.owner for job in self._running.values())
                job = min(self._waiting, key=lambda job: load[job.owner])
                if len(self._running) + len(job.samplings) > self.max_running:
                    return
            job.queue_seconds = time.monotonic() - job.arrived
            try:
                job.numbers = self.engine.within(job.namespace).add_requests(job.prompt, job.samplings, job.policy)
            except Exception as error:
                job.tell(error)
                self.abandon(job)
                continue
            with self._changed:  # from one to the other at once, so that the limits count it
                if not job.abandoned:
                    self._waiting.remove(job)
                    self._running |= dict.fromkeys(job.numbers, job)
                    job.watch.admitted()
                    continue
            for number in job.numbers:
                self.engine.cancel(number)

    def _end(self, number: int, error: Exception | None) -> None:
        with self._changed:
            job = self._running.pop(number, None)
        if job is None:
            return
        self.engine.cancel(number)  # left alone where it has ended by itself
        taken = time.monotonic() - job.arrived - job.queue_seconds
        self._seconds_a_request += 0.2 * (taken - self._seconds_a_request)
        if error is not None:
            job.tell(error)
            job.abandoned = True  # its other answers end, too
