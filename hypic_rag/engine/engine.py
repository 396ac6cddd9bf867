"""SegmentEngine: from prompts to tokens, over cached segments, for any number of requests at once."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from hypic_rag.cache import SegmentCache, SegmentKey, codec_named
from hypic_rag.engine import assemble, load, models
from hypic_rag.engine.backends.base import SequenceRequest
from hypic_rag.engine.backends.choice import backend_for
from hypic_rag.engine.calibration.active_policy import policy_in_force
from hypic_rag.engine.detokenizer import Detokenizer
from hypic_rag.engine.grammar import GrammarCompiler
from hypic_rag.engine.limits import PromptLimits
from hypic_rag.engine.outputs import Generation, PrefillReport, Score, StepOutput, StreamEvent
from hypic_rag.engine.policy import Policy, Sampling
from hypic_rag.engine.prefill import MAX_ROWS
from hypic_rag.engine.request import Request
from hypic_rag.engine.rotary import context_length
from hypic_rag.engine.scheduler import Scheduler
from hypic_rag.engine.segment_manager import ColdSegment, SegmentManager
from hypic_rag.engine.session_cache import SessionCache
from hypic_rag.errors import BadInput, RequestTooLarge
from hypic_rag.locks import FairLock
from hypic_rag.prompt import Ids, Kind, Part, Prompt, PromptFormat

if TYPE_CHECKING:
    from hypic_rag.cache.tiers.device import DevicePool

DEFAULT_CONVERSATION_BYTES = 512 << 20
CACHED = Policy(mode="hypic")


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
        self.cache_spec = models.prepare(model)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.model_name = name
        self.fingerprint = fingerprint
        self.format = PromptFormat(tokenizer, system)
        self.policy = policy or Policy()
        self.cache = SegmentCache.open(None, None, None) if cache is None else cache
        self.context_length = context_length(model.config.get_text_config())
        self.device = model.device
        vocabulary = int(model.get_input_embeddings().num_embeddings)
        self._limits = PromptLimits(name, self.cache_spec, self.context_length, vocabulary)
        self._ends = load.end_tokens(model, tokenizer, self.format)
        self._grammars = GrammarCompiler(tokenizer, vocabulary, self._ends)
        dtype = str(model.dtype).removeprefix("torch.")
        template = SegmentKey(
            model=fingerprint,
            tokenizer=tokenizer_fingerprint or fingerprint,
            token_ids=(),
            kind="document",
            seam_tokens=0,
            compute_dtype=dtype,
            rope=self.cache_spec.rope_settings,
            isolation_prefix=(),
            codec=codec,
        )
        self.namespace = namespace
        self.conversations: SessionCache[Any] = SessionCache(conversation_budget)
        self.backend = backend_for(self.model, self.cache_spec, self.conversations, device_memory, graphs)
        self._lock = FairLock(f"this SegmentEngine of {name}")
        self._scheduler = Scheduler(self._lock, self.cache_spec, self.backend, self.conversations)
        if self.pool is not None:
            self.cache.attach(self.pool, self._lock)
            if self.device.type == "cuda":
                self.cache.page_lock()
        passes = self.backend.prefill_passes
        whole = SegmentManager(self.model, self.cache_spec, self.cache, template, deterministic, passes)
        self._segments_of = lru_cache(maxsize=128)(whole.within)
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
        """Load a model and make an engine of it.

        ``model``: "default", a local folder, or a name on the Hugging Face hub.

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
        """Return the same engine for another tenant: it finds and makes entries, and resumes conversations, of this
        namespace alone. Model, memory, budgets and the requests under way are shared."""
        view = object.__new__(type(self))
        view.__dict__ = self.__dict__ | {"namespace": namespace}
        return view

    def __getstate__(self) -> NoReturn:
        raise BadInput(
            "a SegmentEngine holds a model and can be neither copied nor sent to another process: make another one "
            "there with SegmentEngine.from_pretrained"
        )

    def with_segments(self, segments: SegmentManager) -> "SegmentEngine":
        """Return the same engine with these entries in place of its own: of another codec, say."""
        view = object.__new__(type(self))
        view.__dict__ = self.__dict__ | {"_segments_of": lru_cache(maxsize=128)(segments.within)}
        return view

    @property
    def pool(self) -> "DevicePool | None":
        """The device's pools, where its kernels run this model."""
        return self.backend.pool

    @property
    def segments(self) -> SegmentManager:
        """The segments of this namespace."""
        return self._segments_of(self.namespace)

    @property
    def families(self) -> dict[str, int]:
        """How many layers of each family the model has."""
        names = [layer.name for layer in self.cache_spec.layers]
        return {name: names.count(name) for name in sorted(set(names))}

    @property
    def pass_tokens(self) -> int:
        """Most tokens that a prefill takes at once."""
        return max(MAX_ROWS, self.segments.passes.max_rows)

    def segment_key(self, ids: Sequence[int], kind: Kind = "document", policy: Policy | None = None) -> SegmentKey:
        """Return the key under which the segment is cached. Raises BadInput for a segment that is all seam."""
        part, policy = Part(kind, tuple(ids)), policy or self.policy
        seam = assemble.cached_seam(part, policy)
        if seam is None:
            raise BadInput(f"a {kind} segment of {len(part.ids)} tokens is not cached under {policy}")
        return self.segments.key(part, seam, policy.isolation_prefix)

    def entry_bytes(self, n_tokens: int) -> int:
        """Count the bytes of the stored entry of a document segment of ``n_tokens``; 0 where it is all seam.

        With a codec that drops dead heads, the most that it can be.
        """
        interior = n_tokens - self.policy.seam_tokens
        return self.cache_spec.entry_bytes(interior, self.model.dtype.itemsize, self.codec) if interior > 0 else 0

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
        parts = dict.fromkeys(Part(kind, tuple(ids)) for ids in segments)
        keys = [
            self.segments.key(part, seam, policy.isolation_prefix)
            for part in parts
            if (seam := assemble.cached_seam(part, policy)) is not None
        ]
        cold = self.segments.cold(keys)
        n_kept = len(keys) - len(cold)
        tell = on_progress and (lambda done, total: on_progress(n_kept + done, n_kept + total))
        made = self.make(cold, tell, stop)
        return replace(made, n_segments=len(keys), n_hits=n_kept + made.n_hits)

    def make(
        self,
        cold: Sequence[ColdSegment],
        on_progress: Callable[[int, int], None] | None = None,
        stop: Event | None = None,
    ) -> PrefillReport:
        """Make and store what ``segments.cold`` found, without asking again. Raises ContextTooLong, BadInput."""
        for key in [segment.key for segment in cold]:
            self._limits.check_ids(key.isolation_prefix, "the isolation prefix", self.namespace)
            self._limits.check_length(key.n_tokens, "a segment")
            self._limits.check_rotation(key.n_tokens, CACHED, "a segment")
        # On a GPU, what is written has to be copied from there first, which no other pass may cut into.
        with nullcontext() if self.device.type == "cpu" else self._lock:
            return self.segments.make(cold, on_progress, self._lock, stop)

    def forget(self, digests: Iterable[str] | None = None) -> None:
        """Drop these entries of the namespace (None: all that it has) from every tier, and the conversations that it
        holds. Requests under way keep what they use until they end; what they hold or make then is not dropped."""
        if digests is None:
            self.cache.discard_namespace(self.namespace)
        else:
            self.cache.discard(digests)
        self._scheduler.alone(lambda: self.conversations.forget(self.namespace))
        self.segments.key.cache_clear()  # its keys hold token ids

    def add_request(self, prompt: Prompt, sampling: Sampling | None = None, policy: Policy | None = None) -> int:
        """Queue a prompt; ``step`` runs it. Returns its id. Raises ContextTooLong."""
        return self.add_requests(prompt, [sampling or Sampling()], policy)[0]

    def add_requests(self, prompt: Prompt, samplings: Sequence[Sampling], policy: Policy | None = None) -> list[int]:
        """Queue one prompt for several answers, which is run once, as far as there is room. Returns an id for each.

        Raises ContextTooLong.
        """
        for sampling in samplings:
            self.check_prompt(prompt, policy or self.policy, sampling)
        requests = [self._request(prompt, sampling, policy, None, is_read=False) for sampling in samplings]
        for request in requests:
            request.first = None if request is requests[0] else requests[0]
            self._scheduler.add(request)
        return [request.id for request in requests]

    def check_prompt(self, prompt: Prompt, policy: Policy, sampling: Sampling | None = None) -> None:
        """Raise what ``add_request`` would: ContextTooLong, BadInput."""
        self._limits.check_prompt(prompt, policy, self.namespace)
        if sampling is not None:
            self._limits.check_sampling(sampling)
            if sampling.grammar is not None:
                self._grammars.matcher(sampling.grammar, self.namespace)

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has anything to do or to tell."""
        return self._scheduler.has_work

    def step(self) -> list[StepOutput]:
        """Advance every request by one token, in one pass: new ones from their prompt, the others by their last.

        Raises what failed a pass, for all: then none is under way any more. What failed a pass that ``stream`` or
        ``generate`` ran in another thread is raised at the next call; PassInterrupted where that thread was.
        """
        return self._scheduler.step()

    def cancel(self, request_id: int) -> None:
        """Stop a request; unknown and finished ones are left alone."""
        self._scheduler.cancel(request_id)

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        policy: Policy | None = None,
        stop: Event | None = None,
    ) -> Generation:
        """Return the whole answer, or what there is of it when ``stop`` is set. Raises ContextTooLong."""
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
        """Yield the answer as it comes; leaving the loop early cancels the request. Raises ContextTooLong at once.

        stop: ends it, whichever thread sets it: while it waits, between two passes of a prefill or between two tokens.
        Then the finish reason is "cancelled".
        """
        self.check_prompt(prompt, policy or self.policy, sampling)
        return self._stream(self._request(prompt, sampling, policy, stop))

    def score(self, prompt: Prompt, answer: str | Sequence[int], policy: Policy | None = None) -> Score:
        """Measure how likely an answer is: a text with the token that ends it, ids as they are.

        Raises ContextTooLong, BadInput.
        """
        policy = policy or self.policy
        ids = (*self.format.encode(answer), *self.format.answer_end) if isinstance(answer, str) else tuple(answer)
        if not answer:
            raise BadInput("the answer to score is empty: give at least one token")
        self._limits.check_ids(ids, "the answer", self.namespace)
        self._limits.check_length(prompt.n_tokens + len(ids), "prompt and answer")
        self._limits.check_rotation(prompt.n_tokens + len(ids) - 1, policy, "prompt and answer")
        self.check_prompt(prompt, policy)
        wanted = SequenceRequest(prompt, policy, len(ids), self.segments, resumes=False)
        score = self._scheduler.alone(lambda: self._score(wanted, ids))
        if score is None:
            raise RequestTooLarge(self.backend.too_large(prompt.n_tokens))
        return score

    def _score(self, wanted: SequenceRequest, ids: Ids) -> Score | None:
        """Score an answer's ids, or return None where it does not fit."""
        began = time.perf_counter()
        started = self.backend.start([wanted])
        if not started:
            return None
        [one] = started
        assert one is not None  # nobody can stop it
        n = len(one.scheduled.ids)
        one.scheduled.rows(ids[:-1])
        [logits] = self.backend.run([one.scheduled], [range(n - 1, n + len(ids) - 1)])
        logprobs = logits.float().log_softmax(-1).cpu()
        one.scheduled.state.release()
        nll = -logprobs.gather(1, torch.tensor(ids)[:, None]).mean()
        ms = 1e3 * (time.perf_counter() - began)
        report = replace(one.report, assemble_ms=ms - one.report.prefill_ms)
        return Score(float(nll), len(ids), logprobs, report)

    def _stream(self, request: Request) -> Iterator[StreamEvent]:
        try:
            self._scheduler.add(request)
            while True:
                self._scheduler.wait_for(request)
                if request.error is not None:
                    raise request.error
                while request.outputs:
                    output = request.outputs.popleft()
                    yield StreamEvent(output.text, output.generation, output.logprobs)
                    if output.generation:
                        return
        finally:
            self.cancel(request.id)

    def _request(
        self, prompt: Prompt, sampling: Sampling | None, policy: Policy | None, stop: Event | None, is_read: bool = True
    ) -> Request:
        """Make the request of a prompt that was checked; it is not yet queued. is_read: by a
        stream, which tells of its error."""
        policy, sampling = policy or self.policy, sampling or Sampling()
        limit = self._limits.answer_tokens(prompt.n_tokens, policy, sampling.max_new_tokens)
        stream = Detokenizer(self.tokenizer, sampling.stop)
        ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._ends)
        return Request(
            next(self._ids),
            prompt,
            sampling,
            policy,
            limit,
            stream,
            ends,
            self.segments,
            stop or Event(),
            is_read,
            grammar=None if sampling.grammar is None else self._grammars.matcher(sampling.grammar, self.namespace),
        )
