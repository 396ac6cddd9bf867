"""Who waits, who runs: every pass advances all requests under way by one token, and admits new ones as there is room.

``advance`` reads from top to bottom what becomes of a request: it is started (its cached parts found or made, its rows
laid out), run together with the others, given its token, handed its output, and retired.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from hypic_rag.engine.assemble import ScheduledSequence
from hypic_rag.engine.backends.base import Backend, SequenceRequest
from hypic_rag.engine.cache_spec import CacheSpec
from hypic_rag.engine.outputs import StepOutput
from hypic_rag.engine.request import Request
from hypic_rag.engine.sampler import draw_each, logprobs_of
from hypic_rag.engine.session_cache import SessionCache, merge_live
from hypic_rag.errors import GrammarTooComplex, PassInterrupted, RequestTooLarge
from hypic_rag.locks import FairLock

Result = TypeVar("Result")


class Scheduler:
    """For any number of threads, which take turns at ``lock``.

    Whatever changes requests' states or a device's pools is noted in ``_unfinished`` first, and struck out once all
    outputs are handed over. A note that is still there when the next thread comes was left by an interrupt, wherever
    that came, and those states may be half advanced: ``_recover`` ends their requests. Nothing depends on a handler
    that ran.
    """

    def __init__(self, lock: FairLock, cache_spec: CacheSpec, backend: Backend[Any], conversations: SessionCache[Any]):
        self.lock, self.cache_spec, self.backend, self.conversations = lock, cache_spec, backend, conversations
        self._requests: dict[int, Request] = {}
        self._unfinished: list[Sequence[Request]] = []

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has anything to do or to tell."""
        return bool(self._requests)

    def add(self, request: Request) -> None:
        with self.lock:
            self._requests[request.id] = request

    def step(self) -> list[StepOutput]:
        """Run one pass, for whoever drives all requests. A request that never fits is among the outputs.

        Raises what failed a pass for all its requests, also one that ``wait_for`` ran in another thread.
        """
        self._check_outside()
        with self.lock:
            self._recover()
            outputs = [] if self._untold() else self._pass()
            for request in self._untold():
                assert request.error is not None
                if not isinstance(request.error, RequestTooLarge | GrammarTooComplex):
                    error = request.error
                    for other in [other for other in self._untold() if other.error is error]:
                        self._drop(other)
                    raise error
                outputs.append(StepOutput(request.id, "", error=request.error))
                self._drop(request)
            return outputs

    def wait_for(self, request: Request) -> None:
        """Return once the request has outputs or an error, running passes where nobody else does."""
        self._check_outside()
        with self.lock:
            self._recover()
            if not request.outputs and request.error is None:
                self._pass()

    def cancel(self, request_id: int) -> None:
        """Stop a request; unknown and finished ones are left alone. From inside a pass (a finalizer or a signal handler
        may come then) it stops with that."""
        request = self._requests.get(request_id)
        if request is None or not self.lock.is_here:
            return
        request.stop.set()
        if not self.lock.is_mine:
            with self.lock:
                self._recover()
                self._end_stopped()

    def alone(self, work: Callable[[], Result]) -> Result:
        """Return what ``work`` does, which may change states and pools; what is cut off there is not kept."""
        self._check_outside()
        with self.lock:
            self._recover()
            self._unfinished.append(())
            try:
                result = work()
            except Exception as error:
                self._recover(error)
                raise
            self._unfinished.clear()
            return result

    def _check_outside(self) -> None:
        """Raise RuntimeError inside a pass of this very thread, whose requests are half advanced."""
        if self._unfinished and self.lock.is_mine:
            raise RuntimeError(
                "the engine was called from inside one of its own passes, by a signal handler or a finalizer: "
                "ask from the thread's own code, or from another thread"
            )

    def _pass(self) -> list[StepOutput]:
        """Run one pass over all requests, and hand its outputs over. What fails it becomes the error of its requests,
        and what interrupts it is raised as well."""
        self._end_stopped()
        requests = [request for request in self._requests.values() if request.error is None]
        if not requests:
            return []
        self._unfinished.append(requests)
        try:
            outputs = self._advance(requests)
            for output in outputs:
                request = self._requests[output.request_id]
                request.outputs.append(output)
                if output.generation:
                    self._retire(request)
        except BaseException as error:
            self._recover(error)
            if isinstance(error, Exception):
                return []
            raise
        self._unfinished.clear()
        self._end_stopped()
        return outputs

    def _advance(self, requests: Sequence[Request]) -> list[StepOutput]:
        """Start those that wait, run all, draw a token each."""
        waiting = [request for request in requests if request.state is None and not self._shares(request)]
        running = [request for request in requests if request.state is not None]
        wanted = [SequenceRequest(r.prompt, r.policy, r.limit, r.segments, r.stop) for r in waiting]
        started = self.backend.start(wanted)
        batch: list[tuple[Request, ScheduledSequence[Any]]] = []
        for request, one in zip(waiting, started, strict=False):  # the last may have to wait for room
            if one is not None:
                request.state, request.report = one.scheduled.state, one.report
                batch.append((request, one.scheduled))
        n_new = len(batch)
        if not batch and not running:
            if len(started) < len(waiting):  # nothing else is there, and yet the first does not fit
                alone = waiting[len(started)]
                self._fail(alone, RequestTooLarge(self.backend.too_large(alone.prompt.n_tokens)))
            return []
        batch += [(request, self._continued(request)) for request in running]
        began = time.perf_counter()
        scheduled = [one for _, one in batch]
        logits = self.backend.run(scheduled, [[len(one.ids) - 1] for one in scheduled])
        assemble_ms = 1e3 * (time.perf_counter() - began)
        for request, _ in batch[:n_new]:
            request.report = replace(request.report, assemble_ms=assemble_ms)
        rows = [(request, last[0]) for (request, _), last in zip(batch, logits, strict=True)]
        return self._drawn([*rows, *self._branched(requests, dict(rows[:n_new]))])

    def _shares(self, request: Request) -> bool:
        """Return whether a request waits for another's prefill, which is still to come."""
        first = request.first
        return first is not None and first.state is None and first.id in self._requests and first.error is None

    def _branched(self, requests: Sequence[Request], started: Mapping[Request, Tensor]) -> list[tuple[Request, Tensor]]:
        """Let requests go on from the prompt that another has just run, where there is room; else they start alone.

        started: logits (vocabulary,) after the prompt. Returns the requests with theirs.
        """
        branched = []
        for request in requests:
            first = request.first
            if request.state is None and first is not None and first in started:
                assert first.state is not None
                request.state = self.backend.branch(first.state, request.limit)
                if request.state is not None:
                    request.report = first.report
                    branched.append((request, started[first]))
        return branched

    def _drawn(self, batch: Sequence[tuple[Request, Tensor]]) -> list[StepOutput]:
        """Draw a token for each request that has logits (vocabulary,); end those that none can follow."""
        rows: list[tuple[Request, Tensor, Tensor]] = []
        for request, logits in batch:
            try:
                rows.append((request, logits, request.adjusted(logits)))
            except GrammarTooComplex as error:
                self._give_up(request, error)
        tokens = draw_each([row for _, _, row in rows], [(one.sampling, one.generator) for one, _, _ in rows])
        outputs = []
        for (request, logits, _), token in zip(rows, tokens, strict=True):
            n_top = request.sampling.logprobs
            told = None if n_top is None else logprobs_of(logits, token, n_top)
            try:
                outputs.append(request.take(token, told))
            except GrammarTooComplex as error:
                self._give_up(request, error)
        return outputs

    def _continued(self, request: Request) -> ScheduledSequence[Any]:
        """Schedule the rows of a request under way: its last token, or all where that
        makes its keys' rotation another."""
        assert request.state is not None
        before, ids = request.state.position, tuple(request.tokens[-1:])
        if self.cache_spec.switches(before + 1) and not self.cache_spec.switches(before):  # in full mode only
            request.state, ids = request.state.restarted(), (*request.prompt.token_ids, *request.tokens)
        scheduled = ScheduledSequence(request.state, request.policy.compose)
        scheduled.rows(ids)
        return scheduled

    def _retire(self, request: Request) -> None:
        """Remove a request. A finished one's state is held for the next turn of its conversation."""
        self._requests.pop(request.id, None)
        if request.state is None:
            return
        if request.error is None and not self.cache_spec.switches(request.state.position):
            request.state.parts = merge_live(request.parts_run, request.policy.mode)
            self.conversations.hold(request.segments.namespace, request.policy, request.state)
        else:
            request.state.release()

    def _drop(self, request: Request) -> None:
        self._requests.pop(request.id, None)
        if request.state is not None:
            request.state.release()

    def _end_stopped(self) -> None:
        for request in [request for request in self._requests.values() if request.stop.is_set()]:
            self._unfinished.append(())
            if request.error is None:
                request.outputs.append(request.cancelled())
            self._drop(request)
            self._unfinished.clear()

    def _give_up(self, request: Request, error: Exception) -> None:
        """End one request alone, of those that a pass has run."""
        if request.state is not None:
            request.state.release()
        self._fail(request, error)

    def _fail(self, request: Request, error: Exception) -> None:
        """End a request with an error. It stays until ``step`` has told, where no stream does."""
        request.error, request.state = request.error or error, None
        if request.is_read:
            self._requests.pop(request.id, None)

    def _untold(self) -> list[Request]:
        """List the requests that failed and that no stream tells of."""
        return [request for request in self._requests.values() if request.error is not None and not request.is_read]

    def _recover(self, cause: BaseException | None = None) -> None:
        """End what an unfinished pass has left, under the lock and before anything else is done there. This may itself
        be interrupted, and done again."""
        if not self._unfinished and self.backend.is_whole:
            return
        error = cause
        if not isinstance(error, Exception):
            error = PassInterrupted(
                "a pass of the engine was interrupted, by Ctrl-C or the end of the thread that ran it, and with it the "
                "requests that shared it: ask again"
            )
        lost = [request for note in self._unfinished for request in note]
        if self.backend.reset():
            lost = [request for request in self._requests.values() if request.state is not None or request in lost]
        for request in lost:
            if request.id in self._requests:  # else it had ended before
                self._fail(request, error)
        self._unfinished.clear()
