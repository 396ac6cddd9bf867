"""What every figure is measured with: the two models, the engine, prompts of random tokens, and how a row is made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import AutoTokenizer

from hypic_eval.gpu import shape
from hypic_eval.gpu.clock import device_bandwidth, host_to_device_bandwidth
from hypic_eval.gpu.plain import PlainCopy
from hypic_eval.intervals import median
from hypic_eval.machine import commit
from hypic_eval.results import ResultRow
from hypic_eval.ttft import WrongPath
from hypic_rag import default_model
from hypic_rag.cache import Hit, SegmentCache
from hypic_rag.engine import Report, Sampling, SegmentEngine
from hypic_rag.prompt import Ids, Prompt

VERSION = 1
WARM_UPS = 3
ONE_TOKEN = Sampling(max_new_tokens=1)


@dataclass(frozen=True)
class WorkloadSizes:
    """The workload's sizes. segments: how many a prompt, in the order in which they are
    measured. tokens: of a segment."""

    segments: tuple[int, ...] = (16, 32)
    tokens: int = 1024
    question: int = 64
    repetitions: int = 10
    requests: int = 32
    decoded: int = 32


@dataclass
class Bench:
    """``plain`` shares the engine's weights. ``counts``: whether figures are held to the goals, which are the full
    shape's on a GPU. ``say`` takes a line of progress; ``notes`` are printed below the table."""

    name: str
    engine: SegmentEngine
    plain: PlainCopy
    sizes: WorkloadSizes
    counts: bool
    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)
    _made: list[Ids] = field(default_factory=list)
    _bandwidth: dict[str, float] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.plain.device

    @property
    def seam(self) -> int:
        return self.engine.policy.seam_tokens

    @property
    def most_segments(self) -> int:
        return max(self.sizes.segments)

    @property
    def few_and_many(self) -> list[int]:
        """How many requests are decoded at once: one, and as many as come under load."""
        return sorted({1, self.sizes.requests})

    @property
    def nearest_tier(self) -> str:
        """Where a segment that was used before comes from."""
        return "host" if self.engine.pool is None else "device"

    @property
    def token_slots(self) -> int | None:
        """Token slots of the device's pools, for all keys of entries and requests; None where the engine has none."""
        if self.engine.pool is None:
            return None
        kept = (t for layer in self.engine.pool.layers for t in layer.tokens.values())
        return min((len(t) for t in kept), default=None)

    def absent(self, segments: Sequence[Ids]) -> int:
        """Count the segments whose entries are not on the device; 0 where there is no device tier."""
        if self.engine.pool is None:
            return 0
        pool = self.engine.pool
        return sum(self.engine.segment_key(ids).digest not in pool for ids in segments)

    def ids(self, n: int, seed: int) -> Ids:
        """Draw n random tokens, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randint(3, self.plain.model.config.vocab_size, (n,), generator=generator).tolist())

    def segments(self, n: int) -> list[Ids]:
        """Return the first n of one endless row of segments."""
        self._made += [self.ids(self.sizes.tokens, 1_000_000 + i) for i in range(len(self._made), n)]
        return self._made[:n]

    def prompt(self, n: int, turn: int) -> Prompt:
        """Build a prompt of the first n segments, beginning elsewhere each turn, and a
        question that no other turn has."""
        segments, first = self.segments(n), 5 * turn % n
        return Prompt.build((), (*segments[first:], *segments[:first]), self.ids(self.sizes.question, turn))

    def ingest(self, n: int) -> None:
        """Prefill the entries of the first n segments."""
        self.say(f"prefill of {n} segments")
        made = self.engine.prefill(self.segments(n))
        self.say(f"{made.n_prefilled} segments made in {made.seconds:.1f} s, {made.nbytes / 2**30:.2f} GiB of entries")

    def warm(self, prompt: Prompt, tier: str | None = None) -> float:
        """Time a prompt, in ms, from token ids on the host to the first token's id on the host; every segment must come
        from a cache, of this tier where one is given."""
        began = perf_counter()
        report = self.engine.generate(prompt, ONE_TOKEN).report
        ms = 1e3 * (perf_counter() - began)
        self.require_warm(prompt, report, tier)
        return ms

    def require_warm(self, prompt: Prompt, report: Report, tier: str | None = None) -> None:
        """Raise WrongPath if anything but seams and question was computed, or a segment came from another tier."""
        wanted = self.seam * len(prompt.documents) + len(prompt.parts[-1].ids)
        found = sorted({str(use.tier) for use in report.segments})
        if report.computed_tokens != wanted:
            raise WrongPath(
                f"a warm prompt should compute {wanted} rows, and {report.computed_tokens} were computed: its "
                f"segments came from {', '.join(found)}; the cache lacks room for them, or they were never prefilled"
            )
        if tier is not None and found != [tier]:
            raise WrongPath(f"every segment should have come from {tier}, and they came from {', '.join(found)}")

    def full(self, prompt: Prompt) -> float:
        """Time the plain model, in ms, likewise from host to host."""
        began = perf_counter()
        self.plain(prompt.token_ids)
        return 1e3 * (perf_counter() - began)

    def forget(self, segments: Sequence[Ids]) -> None:
        """Drop their entries wherever they are."""
        digests = [self.engine.segment_key(ids).digest for ids in segments]
        self.engine.cache.discard(digests)
        if self.engine.pool is not None:
            for digest in digests:
                self.engine.pool.discard(digest)

    def forget_device(self) -> bool:
        """Leave the entries to the cache's other tiers; whether there is a device tier at all."""
        if self.engine.pool is not None:
            self.engine.pool.clear()
        return self.engine.pool is not None

    def stored_bytes(self, ids: Ids) -> int:
        """Count the bytes of a document segment's entry as the cache has it, after any codec."""
        return self.stored(ids).nbytes

    def stored(self, ids: Ids) -> Hit:
        """Look up a document segment that was prefilled."""
        found = self.engine.cache.lookup(self.engine.segment_key(ids))
        assert isinstance(found, Hit), f"a segment that was prefilled is missing: {found}"
        return found

    def device_bandwidth(self) -> float:
        """Return bytes a second within the device's memory, measured once."""
        return self._measured("device to device", device_bandwidth)

    def host_bandwidth(self) -> float:
        return self._measured("host to device", host_to_device_bandwidth)

    def row(
        self,
        mode: str,
        metric: str,
        unit: str,
        values: Sequence[float] | float,
        how: str,
        *,
        data: str = "",
        arrow: str = "↓",
        goal: float | None = None,
        floor: float | None = None,
        void: str = "",
    ) -> ResultRow:
        """Make the row of a figure: the median of ``values`` with quartiles. how: in what way it was measured.

        floor: what the hardware alone would take, of the same unit. void: why the figure does not count.
        """
        estimate = median([values] if isinstance(values, int | float) else values)
        return ResultRow(
            task="gpu",
            version=VERSION,
            data=data,
            n=1 if isinstance(values, int | float) else len(values),
            mode=mode,
            metric=metric,
            arrow=arrow,
            unit=unit,
            value=estimate.value,
            interval=estimate.interval,
            model=self.name,
            commit=commit(),
            settings={"interval": "quartiles", "floor": floor, "how": how, "void": void if self.counts else ""},
            goal=goal if self.counts else None,
        )

    def _measured(self, name: str, measure: Callable[[torch.device], float]) -> float:
        if name not in self._bandwidth:
            self._bandwidth[name] = measure(self.device)
            self.say(f"bandwidth {name}: {self._bandwidth[name] / 1e9:.0f} GB/s")
            self.notes.append(f"Bandwidth {name}, measured in this run: {self._bandwidth[name] / 1e9:.0f} GB/s.")
        return self._bandwidth[name]


def make(
    name: str,
    config: Any,
    sizes: WorkloadSizes,
    device: torch.device,
    dtype: torch.dtype,
    device_memory: int | None,
    counts: bool,
    say: Callable[[str], None],
) -> Bench:
    """Make both models over one set of random weights. device_memory: bytes of the
    engine's pools, None: its own choice."""
    say(f"building {name} in {dtype} on {device}")
    model = shape.build(config, device, dtype)
    plain = PlainCopy(model)  # before the engine takes the mixers out of the other
    engine = engine_of(model, name, device_memory)
    n_bytes = sum(weight.nbytes for weight in model.parameters())
    say(f"{n_bytes / 2**30:.1f} GiB of weights; the plain model's recurrence is {plain.recurrence}")
    return Bench(name, engine, plain, sizes, counts, say)


def engine_of(model: Any, name: str, device_memory: int | None) -> SegmentEngine:
    """Make an engine with entries in memory alone; no conversation is held, or the same prompt
    again would resume where it ended.

    The tokenizer is the default model's: prompts are ids, and what an answer's text would be does not matter.
    """
    tokenizer = AutoTokenizer.from_pretrained(Path(default_model.__file__).parent)
    cache = SegmentCache.open(None, None)
    return SegmentEngine(
        model,
        tokenizer,
        name=name,
        fingerprint=f"random {name}",
        cache=cache,
        conversation_budget=0,
        device_memory=device_memory,
    )
