"""Stands in for SegmentEngine and Embedder: the real prompt format and cache, no model, all work counted."""

import re
import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import hypic_rag.default_model
from hypic_rag.cache import Entry, Hit, SegmentCache, SegmentKey
from hypic_rag.cache.entry import LayerEntry
from hypic_rag.engine import Generation, Policy, PrefillReport, Report, Sampling, SegmentUse, StreamEvent
from hypic_rag.engine.segment_manager import ColdSegment
from hypic_rag.errors import ContextTooLong
from hypic_rag.prompt import PromptFormat


@cache
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(hypic_rag.default_model.__file__).parent)


class FakeEngine:
    """Answers "ANSWER n documents: QUESTION" word by word, or ``answer``. ``prefilled`` lists the segments that were
    computed.
    """

    answer: str | None = None

    def __init__(self, cache=None, fingerprint="f" * 64, context_length=4096, policy=None, delay=0.0):
        self.model = SimpleNamespace(name_or_path="fake/model")
        self.model_name = "fake/model"
        self.fingerprint = fingerprint
        self.namespace = ""
        self.tokenizer = tokenizer()
        self.format = PromptFormat(self.tokenizer)
        self.context_length = context_length
        self.pass_tokens = 2048
        self.policy = policy or Policy()
        self.cache = cache if cache is not None else SegmentCache.open(None, None, None)
        self.delay = delay
        self.prefilled = []
        self.calls = []
        self.n_cancelled = 0

    def segment_key(self, ids, kind="document", policy=None):
        policy = policy or self.policy
        seam = policy.seam_tokens if kind == "document" else 0
        assert policy.mode == "hypic" and len(ids) > seam
        return SegmentKey(
            model=self.fingerprint,
            tokenizer="t",
            token_ids=tuple(ids),
            kind=kind,
            seam_tokens=seam,
            compute_dtype="float32",
            rope="none",
        )

    def entry_bytes(self, n_tokens):
        return 4 * 64 * max(0, n_tokens - self.policy.seam_tokens)

    @property
    def segments(self):
        return self

    def cold(self, keys):
        found = [(key, self.cache.standing(key)) for key in dict.fromkeys(keys)]
        return [
            ColdSegment(key, self.entry_bytes(key.n_tokens), standing == "in memory")
            for key, standing in found
            if standing != "kept"
        ]

    def prefill(self, segments, *, kind="document", policy=None, on_progress=None, stop=None):
        keys = [self.segment_key(ids, kind, policy) for ids in segments]
        made = self.make(self.cold(keys), stop=stop)
        return replace(made, n_segments=len(keys), n_hits=len(keys) - made.n_prefilled)

    def make(self, cold, on_progress=None, stop=None):
        self.calls.append(sum(segment.key.n_tokens for segment in cold))
        written = {segment.key: self.cache.write_down(segment.key) for segment in cold if segment.in_memory}
        lost = {key.digest for key, stored in written.items() if not stored.is_kept}
        missing = [segment.key for segment in cold if not segment.in_memory]
        for key in missing:
            time.sleep(self.delay)
            if stop is not None and stop.is_set():
                break
            if not self._make(key).is_kept:
                lost.add(key.digest)
        return PrefillReport(
            len(cold),
            len(written),
            len(missing),
            sum(k.n_tokens for k in missing),
            sum(self.entry_bytes(k.n_tokens) for k in missing),
            0.0,
            frozenset(lost),
        )

    def generate(self, prompt, sampling=None, policy=None, stop=None):
        time.sleep(self.delay)
        return list(self.stream(prompt, sampling, policy, stop))[-1].generation

    def stream(self, prompt, sampling=None, policy=None, stop=None):
        if prompt.n_tokens + 1 > self.context_length:
            raise ContextTooLong(f"{prompt.n_tokens} tokens do not fit")
        return self._stream(prompt, sampling or Sampling(), policy or self.policy, stop or threading.Event())

    def _stream(self, prompt, sampling, policy, stop):
        uses = tuple(self._use(ids, policy) for ids in prompt.documents)
        question = self.tokenizer.decode(prompt.parts[-1].ids)
        question = re.sub(r"<\|im_\w+\|>|user|assistant|Question:", " ", question).split()
        words = self.answer.split() if self.answer else ["ANSWER", str(len(uses)), "documents:", *question]
        words = words[: sampling.max_new_tokens]
        finished = False
        try:
            for i, word in enumerate(words):
                time.sleep(self.delay)
                if stop.is_set():
                    return
                delta = word if i == 0 else f" {word}"
                if i + 1 < len(words):
                    yield StreamEvent(delta)
                    continue
                finished = True
                computed = prompt.n_tokens - sum(use.n_tokens for use in uses if use.tier == "host")
                report = Report(policy, prompt.n_tokens, computed, 0, uses, 0.0, 1.0, 2.0, 3.0)
                yield StreamEvent(delta, Generation(" ".join(words), tuple(range(len(words))), "stop", report))
        finally:
            self.n_cancelled += not finished

    def _use(self, ids, policy):
        if policy.mode == "full" or len(ids) <= policy.seam_tokens:
            return SegmentUse(len(ids), "live")
        key = self.segment_key(ids, policy=policy)
        found = self.cache.lookup(key)
        if isinstance(found, Hit):
            return SegmentUse(len(ids), found.tier)
        self._make(key)
        return SegmentUse(len(ids), None, found.reason)

    def _make(self, key):
        self.prefilled.append(key.token_ids)
        tensor = torch.full((self.entry_bytes(key.n_tokens) // 4,), float(key.n_tokens))
        return self.cache.store(key, Entry(key.n_tokens, key.seam_tokens, (LayerEntry("attention", {"K": tensor}),)))


class FakeEmbedder:
    """A bag of hashed words; ``embedded`` lists what was embedded."""

    dimension = 64
    min_similarity = -1.0

    def __init__(self, name="fake-embedder"):
        self.name = name
        self.fingerprint = (name * 64)[:64]
        self.embedded = []

    def embed(self, texts, on_progress=None):
        self.embedded += texts
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                vectors[row, sum(map(ord, word)) * 31 % self.dimension] += 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)

    def embed_query(self, text):
        return self.embed([text])[0]

    def n_tokens(self, texts):
        return sum(len(text.split()) for text in texts)


def in_mode(engine, **changes):
    engine.policy = replace(engine.policy, **changes)
    return engine
