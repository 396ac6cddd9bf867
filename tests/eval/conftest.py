"""A small engine without a model, over a real cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hypic_rag.cache import Entry, Hit, LayerEntry, SegmentCache, SegmentKey
from hypic_rag.engine import Generation, Policy, PrefillReport, Report, Sampling, Score, SegmentUse
from hypic_rag.prompt import Prompt, PromptFormat

ROOT = Path(__file__).parents[2]


class FakeEngine:
    """Answers at once and notes what was asked. ``answers``: mode of the policy -> text."""

    model_name = "fake"
    fingerprint = "fake weights"
    policy = Policy()

    def __init__(self, form: PromptFormat, cache: SegmentCache, context_length: int = 8192):
        self.format, self.cache, self.context_length = form, cache, context_length
        self.answers = {"full": "Paris\nThe end", "hypic": "the Paris"}
        self.device = torch.device("cpu")
        self.nlls = {"none": 3.0, "full": 1.0, "hypic": 1.5}
        self.calls: list[tuple[str, str, int]] = []  # what, mode, seam
        self.fails_after: int | None = None

    def segment_key(self, ids: Any, kind: Any = "document", policy: Policy | None = None) -> SegmentKey:
        seam = 0 if kind == "leading" else (policy or self.policy).seam_tokens
        assert len(ids) > seam, "a segment that is all seam has no key"
        return SegmentKey(self.fingerprint, "tokenizer", tuple(ids), kind, seam, "float32", "rope")

    def prefill(self, segments: Any, kind: str = "document", policy: Policy | None = None) -> PrefillReport:
        uses = [self._fetch(self.segment_key(ids, kind=kind, policy=policy)) for ids in segments]
        n_hits = sum(use.tier is not None for use in uses)
        n_tokens = sum(use.n_tokens for use in uses if use.tier is None)
        return PrefillReport(len(uses), n_hits, len(uses) - n_hits, n_tokens, 0, 0.01)

    def generate(self, prompt: Prompt, sampling: Sampling, policy: Policy) -> Generation:
        self._note("generate", policy)
        text = self.answers[policy.mode]
        return Generation(text, (1,), "stop", self._report(prompt, policy))

    def score(self, prompt: Prompt, answer: Any, policy: Policy) -> Score:
        self._note("score", policy)
        odds = [4.0, 2.0, 2.0] if policy.mode == "full" else [2.0, 4.0, 2.0]
        nll = self.nlls[policy.mode if prompt.documents or policy.mode != "full" else "none"]
        logprobs = (torch.tensor(odds) / sum(odds)).log()
        return Score(nll, len(answer), logprobs[None], self._report(prompt, policy))

    def _note(self, what: str, policy: Policy) -> None:
        if self.fails_after is not None and len(self.calls) >= self.fails_after:
            raise KeyboardInterrupt
        self.calls.append((what, policy.mode, policy.seam_tokens))

    def _report(self, prompt: Prompt, policy: Policy) -> Report:
        if policy.mode == "full":
            uses = tuple(SegmentUse(len(ids), "live") for ids in prompt.documents)
            return Report(policy, prompt.n_tokens, prompt.n_tokens, 0, uses, 0.0, 1.0, ttft_ms=100.0)
        for part in prompt.parts:
            if part.kind == "leading":
                self._fetch(self.segment_key(part.ids, kind="leading"))
        uses = tuple(self._fetch(self.segment_key(ids, policy=policy)) for ids in prompt.documents)
        computed = sum(use.n_tokens for use in uses if use.tier is None) + len(prompt.parts[-1].ids)
        return Report(policy, prompt.n_tokens, computed, 0, uses, 0.0, 1.0, ttft_ms=4.0)

    def _fetch(self, key: SegmentKey) -> SegmentUse:
        found = self.cache.lookup(key)
        if isinstance(found, Hit):
            return SegmentUse(key.n_tokens, found.tier)
        layers = (LayerEntry("gdn", {"S": torch.zeros(1)}),)
        self.cache.put(key, Entry(key.n_tokens, key.seam_tokens, layers))
        return SegmentUse(key.n_tokens, None, found.reason)


@pytest.fixture
def make_engine(form: PromptFormat) -> Callable[..., FakeEngine]:
    """Engines with a cache of their own, in memory or in a folder."""

    def make(folder: Path | None = None, **options: Any) -> FakeEngine:
        return FakeEngine(form, SegmentCache.open(folder), **options)

    return make


@pytest.fixture
def reference_few() -> Path:
    """The independent implementation's answers to them."""
    return ROOT / "tests" / "data" / "reference_few.jsonl"
