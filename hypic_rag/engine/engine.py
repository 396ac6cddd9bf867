"""SegmentEngine: from prompts to tokens, over cached segments, for any number of requests at once."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from numbers import Integral
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from hypic_rag.cache import SegmentCache, SegmentKey, codec_named
from hypic_rag.cache.tiers.device import Resident
from hypic_rag.config import format_bytes
from hypic_rag.engine import assemble, load, models
from hypic_rag.engine.calibration.in_force import policy_in_force
from hypic_rag.engine.conversations import Conversations, merge_live
from hypic_rag.engine.detokenizer import Detokenizer
from hypic_rag.engine.device import runner_for
from hypic_rag.engine.device.held import Held
from hypic_rag.engine.policy import Policy, Sampling
from hypic_rag.engine.prefill import MAX_ROWS, PrefillPasses
from hypic_rag.engine.report import (
    Generation,
    PrefillReport,
    Report,
    Score,
    SegmentUse,
    StepOutput,
    StreamEvent,
)
from hypic_rag.engine.request import Request
from hypic_rag.engine.rotary import context_length
from hypic_rag.engine.sampler import draw_each
from hypic_rag.engine.segments import Fetched, GivenUp, Segments
from hypic_rag.engine.state import SequenceState
from hypic_rag.errors import BadInput, ContextTooLong, PassInterrupted
from hypic_rag.locks import FairLock
from hypic_rag.prompt import Ids, Kind, Part, Prompt, PromptFormat

if TYPE_CHECKING:
    from hypic_rag.engine.device.runner import Runner

DEFAULT_CONVERSATION_BYTES = 512 << 20


class NeverFits(BadInput):
    """A request is larger than the device's pools. It alone has ended."""

    def __init__(self, request_id: int, message: str):
        super().__init__(message)
        self.request_id = request_id


@dataclass(frozen=True)
class Wanted:
    """A prompt to be begun. limit: tokens that may follow it. namespace: whose entries and conversations it may use.
    stop: set once nobody waits for it."""

    prompt: Prompt
    policy: Policy
    limit: int
    namespace: str
    stop: Event = field(default_factory=Event)


class SegmentEngine:
    """Holds one model, its segment cache and the requests under way.

    ``generate``, ``stream``, ``score`` and ``prefill`` may be called from any thread; they take turns at the model,
    and requests under way share every pass. ``add_request``, ``step`` and ``cancel`` are the loop beneath.

    A pass that does not finish, be it for want of memory or by Ctrl-C in the thread that runs it, ends the requests
    that share it with an error, and the engine goes on. It lives in one process: in a forked child it refuses.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str,
        fingerprint: str,
        tokenizer_fingerprint: str = "",
        cache: SegmentCache | None = None,
        policy: Policy | None = None,
        system: str | None = None,
        namespace: str = "",
        codec: str = "none",
        deterministic: bool = False,
        conversation_budget: int = DEFAULT_CONVERSATION_BYTES,
        device_memory: int | None = None,
        graphs: bool = True,
    ):
        """model: loaded with ``attn_implementation="hypic"``; its linear mixers are swapped in place.

        namespace: a tenant's salt in every key (see ``within``). codec: how entries are stored, and so what answers are
        made of: "none" (as computed), "int8", "int8-kv8". deterministic: one segment a prefill pass, so that an entry's
        bits do not depend on what was prefilled beside it. conversation_budget: bytes of end states held for next
        turns. device_memory: bytes of the GPU for cached segments and running requests (None: most of what is free; 0:
        no pools there, and no kernels). graphs: whether passes on a GPU are captured as CUDA graphs.
        Raises BadInput for an unknown codec.
        """
        self.codec = codec_named(codec)
        self.layout = models.prepare(model)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.model_name = name
        self.fingerprint = fingerprint
        self.format = PromptFormat.from_tokenizer(tokenizer, system)
        self.policy = policy or Policy()
        self.cache = SegmentCache.open(None, None, None) if cache is None else cache
        self.context_length = context_length(model.config.get_text_config())
        self.device = model.device
        self._vocabulary = int(model.get_input_embeddings().num_embeddings)
        self._ends = load.end_tokens(model, tokenizer, self.format)
        dtype = str(model.dtype).removeprefix("torch.")
        template = SegmentKey(
            model=fingerprint,
            tokenizer=tokenizer_fingerprint or fingerprint,
            token_ids=(),
            kind="document",
            seam_tokens=0,
            compute_dtype=dtype,
            rope=self.layout.rope_settings,
            isolation_prefix=(),
            codec=codec,
        )
        self.namespace = namespace
        self.conversations = Conversations(conversation_budget)
        self._lock = FairLock(f"this SegmentEngine of {name}")
        self.runner = runner_for(self.model, self.layout, device_memory, graphs)
        if self.runner is not None:
            self.cache.attach(self.runner.pool, self._lock)
            if self.device.type == "cuda":
                self.cache.page_lock()
        passes = PrefillPasses.in_torch(self.device) if self.runner is None else self.runner.prefill_passes
        whole = Segments(self.model, self.layout, self.cache, template, deterministic, passes)
        self.use_segments(whole)
        self._requests: dict[int, Request] = {}
        self._unfinished: list[Sequence[Request]] = []  # see _recover
        self._ids = count()

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path = "default",
        *,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> "SegmentEngine":
        """``model``: "default", a local folder, or a name on the Hugging Face hub.

        dtype: float32 on a CPU, bfloat16 on a GPU unless given. device: a GPU where there is one. ``options``: as
        for the constructor, but a policy that is not given is the model's calibrated one, where it has one.
        Raises ModelNotReady, UnsupportedModel.
        """
        found = load.load(model, dtype, device)
        if options.get("policy") is None:
            options["policy"] = policy_in_force(found.fingerprint).policy
        return cls(
            found.model,
            found.tokenizer,
            name=found.name,
            fingerprint=found.fingerprint,
            tokenizer_fingerprint=found.tokenizer_fingerprint,
            **options,
        )

    def within(self, namespace: str) -> "SegmentEngine":
        """The same engine for another tenant: it finds and makes entries, and resumes conversations, of this namespace
        alone. Model, memory, budgets and the requests under way are shared."""
        view = object.__new__(type(self))
        view.__dict__ = self.__dict__ | {"namespace": namespace}
        return view

    def __getstate__(self) -> NoReturn:
        raise BadInput(
            "a SegmentEngine holds a model and can be neither copied nor sent to another process: make another one "
            "there with SegmentEngine.from_pretrained"
        )

    def use_segments(self, segments: Segments) -> None:
        """Find and make entries by these, in whatever namespace they are asked for."""
        self._segments_of = lru_cache(maxsize=128)(segments.within)

    @property
    def segments(self) -> Segments:
        """Of this namespace."""
        return self._segments_of(self.namespace)

    @property
    def families(self) -> dict[str, int]:
        """How many layers of each family the model has."""
        names = [layer.name for layer in self.layout.layers]
        return {name: names.count(name) for name in sorted(set(names))}

    @property
    def pass_tokens(self) -> int:
        """Most tokens that a prefill takes at once."""
        return max(MAX_ROWS, self.segments.passes.max_rows)

    def segment_key(self, ids: Sequence[int], kind: Kind = "document", policy: Policy | None = None) -> SegmentKey:
        """Under which key the segment is cached. Raises BadInput for a segment that is all seam."""
        part, policy = Part(kind, tuple(ids)), policy or self.policy
        seam = assemble.cached_seam(part, policy)
        if seam is None:
            raise BadInput(f"a {kind} segment of {len(part.ids)} tokens is not cached under {policy}")
        return self.segments.key(part, seam, policy.isolation_prefix)

    def entry_bytes(self, n_tokens: int) -> int:
        """Bytes of the stored entry of a document segment of ``n_tokens``; 0 where it is all seam.

        With a codec that drops dead heads, the most that it can be.
        """
        interior = n_tokens - self.policy.seam_tokens
        return self.layout.entry_bytes(interior, self.model.dtype.itemsize, self.codec) if interior > 0 else 0

    def prefill(
        self,
        segments: Sequence[Sequence[int]],
        *,
        kind: Kind = "document",
        policy: Policy | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        stop: Event | None = None,
    ) -> PrefillReport:
        """Make and store the entries that the cache lacks. Segments that are all seam are never cached.

        stop: once it is set no further pass is begun. Raises ContextTooLong, BadInput.
        """
        policy = policy or self.policy
        self._check_ids(policy.isolation_prefix, "the isolation prefix")
        parts = [Part(kind, tuple(ids)) for ids in segments]
        for part in parts:
            self._check_length(len(part.ids), "a segment")
            self._check_rotation(len(part.ids), policy, "a segment")
        # On a GPU, what is written has to be copied from there first, which no other pass may cut into.
        with nullcontext() if self.device.type == "cpu" else self._lock:
            return self.segments.ensure(
                [(part, seam) for part in parts if (seam := assemble.cached_seam(part, policy)) is not None],
                policy.isolation_prefix,
                on_progress,
                self._lock,
                stop,
            )

    def forget(self, digests: Iterable[str] | None = None) -> None:
        """Drop these entries of the namespace (None: all that it has) from every tier, and the conversations that it
        holds. Requests under way keep what they use until they end; what they hold or make then is not dropped."""
        if digests is None:
            self.cache.discard_namespace(self.namespace)
        else:
            self.cache.discard(digests)
        self._check_outside()
        with self._lock:
            self._recover()
            self._unfinished.append(())
            self.conversations.forget(self.namespace)
            self._unfinished.clear()
        self.segments.key.cache_clear()  # its keys hold token ids

    def add_request(self, prompt: Prompt, sampling: Sampling | None = None, policy: Policy | None = None) -> int:
        """Queue a prompt; ``step`` runs it. Returns its id. Raises ContextTooLong."""
        self.check_prompt(prompt, policy or self.policy)
        request = self._request(prompt, sampling, policy, None, is_read=False)
        self._enqueue(request)
        return request.id

    def check_prompt(self, prompt: Prompt, policy: Policy) -> None:
        """Raises what ``add_request`` would: ContextTooLong, BadInput."""
        for part in prompt.parts:
            self._check_ids(part.ids, "the prompt")
        self._check_ids(policy.isolation_prefix, "the isolation prefix")
        self._check_length(prompt.n_tokens + 1, "the prompt and one token of answer")
        self._check_rotation(prompt.n_tokens, policy, "the prompt")

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has anything to do or to tell."""
        return bool(self._requests)

    def step(self) -> list[StepOutput]:
        """Advance every request by one token, in one pass: new ones from their prompt, the others by their last.

        Raises NeverFits for one of them, and what failed a pass for all: then none is under way any more. What failed
        a pass that ``stream`` or ``generate`` ran in another thread is raised at the next call; PassInterrupted where
        that thread was.
        """
        self._check_outside()
        with self._lock:
            self._recover()
            outputs = [] if self._untold() else self._pass()
            if untold := self._untold():
                error = untold[0].error
                assert error is not None
                for request in [request for request in untold if request.error is error]:
                    self._drop(request)
                raise error
            return outputs

    def cancel(self, request_id: int) -> None:
        """Stop a request; unknown and finished ones are left alone. From inside a pass (a finalizer or a signal handler
        may come then) it stops with that."""
        request = self._requests.get(request_id)
        if request is None or not self._lock.is_here:
            return
        request.stop.set()
        if not self._lock.is_mine:
            with self._lock:
                self._recover()
                self._end_stopped()

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        policy: Policy | None = None,
        stop: Event | None = None,
    ) -> Generation:
        """The whole answer, or what there is of it when ``stop`` is set. Raises ContextTooLong."""
        for event in self.stream(prompt, sampling, policy, stop):
            if event.generation:
                return event.generation
        raise AssertionError("a stream ends with its generation")

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        policy: Policy | None = None,
        stop: Event | None = None,
    ) -> Iterator[StreamEvent]:
        """The answer as it comes; leaving the loop early cancels the request. Raises ContextTooLong at once.

        stop: ends it, whichever thread sets it: while it waits, between two passes of a prefill or between two tokens.
        Then the finish reason is "cancelled".
        """
        self.check_prompt(prompt, policy or self.policy)
        return self._stream(self._request(prompt, sampling, policy, stop))

    def score(self, prompt: Prompt, answer: str | Sequence[int], policy: Policy | None = None) -> Score:
        """How likely an answer is: of a text with the token that ends it, of ids as they are.

        Raises ContextTooLong, BadInput.
        """
        policy = policy or self.policy
        ids = (*self.format.encode(answer), *self.format.answer_end) if isinstance(answer, str) else tuple(answer)
        if not answer:
            raise BadInput("the answer to score is empty: give at least one token")
        self._check_ids(ids, "the answer")
        self._check_length(prompt.n_tokens + len(ids), "prompt and answer")
        self._check_rotation(prompt.n_tokens + len(ids) - 1, policy, "prompt and answer")
        self.check_prompt(prompt, policy)
        self._check_outside()
        with self._lock:
            self._recover()
            self._unfinished.append(())
            began = time.perf_counter()
            begun = self._begin([Wanted(prompt, policy, len(ids), self.namespace)], resume=False)
            if not begun:
                self._unfinished.clear()
                raise BadInput(self._too_large(prompt.n_tokens))
            assert begun[0] is not None  # nobody can stop it
            active, report = begun[0]
            n = len(active.ids)
            active.rows(ids[:-1])
            [logits] = self._run([active], [range(n - 1, n + len(ids) - 1)])
            logprobs = logits.float().log_softmax(-1).cpu()
            active.state.release()
            self._unfinished.clear()
            nll = -logprobs.gather(1, torch.tensor(ids)[:, None]).mean()
            seconds = time.perf_counter() - began
        report = replace(report, assemble_ms=1e3 * seconds - report.prefill_ms)
        return Score(float(nll), len(ids), logprobs, report)

    def _stream(self, request: Request) -> Iterator[StreamEvent]:
        try:
            self._enqueue(request)
            while True:
                self._check_outside()
                with self._lock:
                    self._recover()
                    if not request.outputs and request.error is None:
                        self._pass()
                if request.error is not None:
                    raise request.error
                while request.outputs:
                    output = request.outputs.popleft()
                    yield StreamEvent(output.text, output.generation)
                    if output.generation:
                        return
        finally:
            self.cancel(request.id)

    def _request(
        self, prompt: Prompt, sampling: Sampling | None, policy: Policy | None, stop: Event | None, is_read: bool = True
    ) -> Request:
        """Of a prompt that was checked; not yet queued. is_read: by a stream, which tells of its error."""
        policy, sampling = policy or self.policy, sampling or Sampling()
        limit = min(sampling.max_new_tokens, self.context_length - prompt.n_tokens)
        if policy.mode == "hypic" and self.layout.switch_at is not None:
            limit = min(limit, self.layout.switch_at - prompt.n_tokens + 1)  # the last drawn token is never run
        stream = Detokenizer(self.tokenizer, sampling.stop)
        return Request(
            next(self._ids),
            prompt,
            sampling,
            policy,
            limit,
            stream,
            self._ends,
            self.namespace,
            stop or Event(),
            is_read,
        )

    def _enqueue(self, request: Request) -> None:
        with self._lock:
            self._requests[request.id] = request

    def _check_outside(self) -> None:
        """Raises RuntimeError inside a pass of this very thread, whose requests are half advanced."""
        if self._unfinished and self._lock.is_mine:
            raise RuntimeError(
                "the engine was called from inside one of its own passes, by a signal handler or a finalizer: "
                "ask from the thread's own code, or from another thread"
            )

    def _recover(self, cause: BaseException | None = None) -> None:
        """End what an unfinished pass has left, under the lock and before anything else is done there.

        Whatever changes requests' states or a device's pools notes it in ``_unfinished`` first, and strikes it out once
        all outputs are handed over. A note that is still there was left by an interrupt, wherever that came, and those
        states may be half advanced: nothing depends on a handler that ran. This may itself be interrupted, and done
        again.
        """
        pool = None if self.runner is None else self.runner.pool
        if not self._unfinished and (pool is None or pool.is_whole):
            return
        error = cause
        if not isinstance(error, Exception):
            error = PassInterrupted(
                "a pass of the engine was interrupted, by Ctrl-C or the end of the thread that ran it, and with it the "
                "requests that shared it: ask again"
            )
        lost = [request for note in self._unfinished for request in note]
        if self.runner is not None:  # of its pools nothing is kept: they would leak what the interrupt cut off
            lost = [request for request in self._requests.values() if request.state is not None or request in lost]
            self.conversations.clear()
            self.runner.reset()
        for request in lost:
            if request.id in self._requests:  # else it had ended before
                self._fail(request, error)
        self._unfinished.clear()

    def _fail(self, request: Request, error: Exception) -> None:
        """It stays until ``step`` has told, where no stream does."""
        request.error, request.state = request.error or error, None
        if request.is_read:
            self._requests.pop(request.id, None)

    def _untold(self) -> list[Request]:
        """Those that failed and that no stream tells of."""
        return [request for request in self._requests.values() if request.error is not None and not request.is_read]

    def _pass(self) -> list[StepOutput]:
        """One pass over all requests, and its outputs handed over. What fails it becomes the error of its requests, and
        what interrupts it is raised as well."""
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

    def _end_stopped(self) -> None:
        for request in [request for request in self._requests.values() if request.stop.is_set()]:
            self._unfinished.append(())
            if request.error is None:
                request.outputs.append(request.cancelled())
            self._drop(request)
            self._unfinished.clear()

    def _advance(self, requests: Sequence[Request]) -> list[StepOutput]:
        batch, new = [], []
        waiting = [request for request in requests if request.state is None]
        begun = self._begin([Wanted(r.prompt, r.policy, r.limit, r.namespace, r.stop) for r in waiting])
        for request, started in zip(waiting, begun, strict=False):  # the last may have to wait for room
            if started is None:
                continue
            active, report = started
            request.state, request.report = active.state, report
            active.state.capacity = max(
                active.state.capacity, len(active.state.row_positions) + len(active.ids) + request.limit
            )
            batch.append((request, active))
            new.append(request)
        going = [request for request in requests if request.state is not None and request not in new]
        if not batch and not going:
            if len(begun) < len(waiting):
                self._never_fits(waiting[len(begun)])
            return []
        batch += [(request, self._continued(request)) for request in going]
        began = time.perf_counter()
        actives = [active for _, active in batch]
        logits = self._run(actives, [[len(a.ids) - 1] for a in actives])
        assemble_ms = 1e3 * (time.perf_counter() - began)
        for request in new:
            request.report = replace(request.report, assemble_ms=assemble_ms)
        how = [(request.sampling, request.generator) for request, _ in batch]
        tokens = draw_each([last[0] for last in logits], how)
        return [request.take(token) for (request, _), token in zip(batch, tokens, strict=True)]

    def _run(self, batch: Sequence[assemble.Active], keep: Sequence[Sequence[int]]) -> Sequence[torch.Tensor]:
        if self.runner is not None:
            return self.runner.run(batch, keep)
        return assemble.run(self.model, self.layout, batch, keep)

    def _begin(self, wanted: Sequence[Wanted], resume: bool = True) -> list[tuple[assemble.Active, Report] | None]:
        """Resume or start a state for each, with its cached parts placed and its rows laid out; where a device's pools
        have room for the first ones only, for those. None for one that was stopped before its parts were made."""
        started: list[tuple[SequenceState, list[Part]]] = []
        for one in wanted:
            parts = merge_live(one.prompt.parts, one.policy.mode)
            again = resume and not self.layout.switches(one.prompt.n_tokens)
            held = self.conversations.find(one.namespace, one.policy, parts) if again else None
            started.append(held or (SequenceState(), parts))
        laid_out: list[tuple[assemble.Active, Report] | None] = []
        if self.runner is None:
            fetched = self._fetch([(parts, one) for (_, parts), one in zip(started, wanted, strict=True)])
            ms = 1e3 * sum(found.seconds for found in fetched.values())
            for (state, parts), one in zip(started, wanted, strict=True):
                found = fetched[_shaped_by(one)]
                cached = [part for part in parts if assemble.cached_seam(part, one.policy) is not None]
                has_all = all(part in found.entries for part in cached)
                laid_out.append(self._lay_out(state.clone(), parts, found, one, ms) if has_all else None)
        else:
            for (state, parts), one in zip(started, wanted, strict=True):
                try:
                    placed = self._place(state, parts, one)
                except GivenUp:
                    laid_out.append(None)
                    continue
                if placed is None:
                    break
                state, parts, found = placed
                laid_out.append(self._lay_out(state, parts, found, one, 1e3 * found.seconds))
        return laid_out

    def _lay_out(
        self, state: SequenceState, parts: Sequence[Part], found: Fetched, wanted: Wanted, ms: float
    ) -> tuple[assemble.Active, Report]:
        prompt, policy = wanted.prompt, wanted.policy
        resumed = state.position
        active = assemble.lay_out(state, parts, found.entries, policy, self.device)
        state.parts = merge_live(prompt.parts, policy.mode)
        missed = {p for p in parts if p in found.uses and found.uses[p].tier is None}
        leading, uses = _uses(prompt, resumed, found.uses)
        computed = len(active.ids) + sum(len(part.ids) for part in missed)
        return active, Report(policy, prompt.n_tokens, computed, resumed, uses, ms, 0.0, leading=leading)

    def _place(
        self, state: SequenceState, parts: list[Part], wanted: Wanted
    ) -> tuple[SequenceState, list[Part], Fetched] | None:
        """A state like ``state`` with room for the rows of ``parts`` and those that may follow, what is left to run,
        and its cached parts, all in the device's pools. Held conversations give way; None where it still does not
        fit."""
        assert self.runner is not None
        while True:
            placed = self._try_to_place(state, parts, wanted, self.runner)
            if placed is not None:
                return placed[0], parts, placed[1]
            if not self.conversations.drop():
                return None
            if state.position and state.held is None:  # gave way itself
                state, parts = SequenceState(), merge_live(wanted.prompt.parts, wanted.policy.mode)

    def _try_to_place(
        self, state: SequenceState, parts: Sequence[Part], wanted: Wanted, runner: "Runner"
    ) -> tuple[SequenceState, Fetched] | None:
        own = len(state.row_positions)
        seams = [(part, assemble.cached_seam(part, wanted.policy)) for part in parts]
        n_tokens = own + wanted.limit + sum(len(part.ids) if seam is None else seam for part, seam in seams)
        held = Held.take(runner.pool, n_tokens) if state.held is None else state.held.copy(own, n_tokens)
        if held is None:
            return None
        cached = [(part, seam) for part, seam in seams if seam is not None]
        segments = self._segments_of(wanted.namespace)
        prefix, stop = wanted.policy.isolation_prefix, wanted.stop
        try:
            found = segments.place(cached, prefix, runner.pool, runner.dead_below, lambda part: not stop.is_set())
        except GivenUp:
            held.release()
            raise
        if found is None:
            held.release()
            return None
        held.pinned += [one.digest for one in found.entries.values() if isinstance(one, Resident)]
        taken = state.clone()
        taken.held = held
        return taken, found

    def _never_fits(self, request: Request) -> None:
        """Of a request that does not fit though nothing else is there; it alone has failed."""
        self._fail(request, NeverFits(request.id, self._too_large(request.prompt.n_tokens)))

    def _too_large(self, n_tokens: int) -> str:
        assert self.runner is not None
        return (
            f"a prompt of {n_tokens} tokens does not fit in the {format_bytes(self.runner.pool.budget)} of the "
            "device's pools. Give them more with --device-memory, or use fewer or shorter documents"
        )

    def _fetch(self, wanted: Sequence[tuple[Sequence[Part], Wanted]]) -> dict[tuple[int, Ids, str], Fetched]:
        """What the cached parts of several prompts became, by what shapes their entries."""
        groups: dict[tuple[int, Ids, str], list[tuple[Part, int]]] = {}
        stops: dict[Part, list[Event]] = {}
        for parts, one in wanted:
            group = groups.setdefault(_shaped_by(one), [])
            group += [(part, seam) for part in parts if (seam := assemble.cached_seam(part, one.policy)) is not None]
            for part in parts:
                stops.setdefault(part, []).append(one.stop)

        def is_wanted(part: Part) -> bool:
            return not all(stop.is_set() for stop in stops[part])

        return {shape: self._segments_of(shape[2]).fetch(group, shape[1], is_wanted) for shape, group in groups.items()}

    def _continued(self, request: Request) -> assemble.Active:
        """The rows of a request under way: its last token, or all where that makes its keys' rotation another."""
        assert request.state is not None
        before = request.state.position
        if self.layout.switches(before + 1) and not self.layout.switches(before):  # in full mode only
            request.state = SequenceState(parts=request.state.parts, capacity=request.state.capacity)
            active = assemble.Active(request.state, request.policy.compose)
            active.rows((*request.prompt.token_ids, *request.tokens))
        else:
            active = assemble.Active(request.state, request.policy.compose)
            active.rows(request.tokens[-1:])
        return active

    def _retire(self, request: Request) -> None:
        self._requests.pop(request.id, None)
        if request.state is None:
            return
        if request.error is None and not self.layout.switches(request.state.position):
            request.state.parts = merge_live(request.parts_run, request.policy.mode)
            self.conversations.hold(request.namespace, request.policy, request.state)
        else:
            request.state.release()

    def _drop(self, request: Request) -> None:
        self._requests.pop(request.id, None)
        if request.state is not None:
            request.state.release()

    def _check_ids(self, ids: Sequence[int], what: str) -> None:
        if not ids:
            return
        are_whole, least, greatest = _extremes(self.namespace, tuple(ids))
        if not are_whole or least < 0 or greatest >= self._vocabulary:
            raise BadInput(
                f"{what} has token ids outside the model's vocabulary of {self._vocabulary}: "
                "tokenize with the engine's own format"
            )

    def _check_rotation(self, n_tokens: int, policy: Policy, what: str) -> None:
        if policy.mode == "hypic" and self.layout.switches(n_tokens):
            raise ContextTooLong(
                f"{what} takes {n_tokens} tokens; beyond {self.layout.switch_at} this model rotates all keys by other "
                "frequencies, so cached segments do not hold. Ask with --mode full, or with fewer or shorter documents"
            )

    def _check_length(self, n_tokens: int, what: str) -> None:
        if n_tokens > self.context_length:
            raise ContextTooLong(
                f"{what} takes {n_tokens} tokens, but {self.model_name} has a context of {self.context_length}. "
                "Use fewer or shorter documents, or a shorter question"
            )


@lru_cache(maxsize=512)  # documents come again and again, and a long prompt takes a millisecond
def _extremes(namespace: str, ids: Ids) -> tuple[bool, int, int]:
    """Whether all are whole numbers, the least and the greatest. namespace: so that the time that it takes tells no
    tenant what another has sent."""
    are_whole = all(issubclass(kind, Integral) for kind in set(map(type, ids)))
    return (True, min(ids), max(ids)) if are_whole else (False, 0, 0)


def _shaped_by(wanted: Wanted) -> tuple[int, Ids, str]:
    return wanted.policy.seam_tokens, wanted.policy.isolation_prefix, wanted.namespace


def _uses(
    prompt: Prompt, n_resumed: int, uses: dict[Part, SegmentUse]
) -> tuple[SegmentUse | None, tuple[SegmentUse, ...]]:
    """Of the leading segment, where there is one, and of each document of the prompt, in order.

    n_resumed: tokens that an earlier turn had run.
    """
    leading, documents, end = None, [], 0
    for part in prompt.parts:
        end += len(part.ids)
        use = uses.get(part, SegmentUse(len(part.ids), "live"))
        if end <= n_resumed:
            use = SegmentUse(len(part.ids), "conversation")
        if part.kind == "leading":
            leading = use
        elif part.kind == "document":
            documents.append(use)
    return leading, tuple(documents)
