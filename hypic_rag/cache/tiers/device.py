"""The device tier: entries in pools of slots, token slots and matrices, which running sequences share."""

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Self

import torch
from torch import Tensor

from hypic_rag.cache.entry import Entry
from hypic_rag.cache.report import TierStats
from hypic_rag.cache.tiers.device_tensors import DeviceTensors, LayerPools, LayerShapes, PoolPlace, dense, unit_bytes
from hypic_rag.cache.tiers.free_list import FreeList
from hypic_rag.cache.tiers.transfers import Transfers
from hypic_rag.config import format_bytes
from hypic_rag.errors import BadInput

TOKEN_ALIGN = 16  # token slots: what a stretch begins and ends at
MAX_WAITING = 1 / 32  # of the pool's bytes: entries made on the device that wait there to be copied
LEASE_SLOTS = 2  # a pass reads a sequence's state from one and writes it to the other


@dataclass(frozen=True, eq=False)
class DeviceEntry:
    """An entry on the device: its slot, and where its interior's tokens and its live matrices begin.

    n_tokens, seam_tokens: as the entry has them. nbytes: of its slot, its token slots (rounded up) and its matrices.
    namespace: of its key.
    """

    digest: str
    slot: int
    token_at: int
    matrix_at: int
    n_matrices: int
    n_tokens: int
    seam_tokens: int
    nbytes: int
    namespace: str = ""

    @property
    def n_interior(self) -> int:
        """Tokens that are in the tensors."""
        return self.n_tokens - self.seam_tokens


@dataclass(frozen=True, eq=False)
class Lease:
    """A running sequence's two slots, and room for the keys of ``n_tokens`` rows of its own from ``token_at`` on.

    Whatever lay there before still does: a new sequence starts from no slot (-1), not from one of these.
    """

    slots: tuple[int, int]
    token_at: int
    n_tokens: int


class DevicePool:
    """Entries by digest, and leases of running sequences, in memory taken once. ``layers[i]``: what kernels read.

    The least recently used entries make room; pinned ones never do, and leases stay until freed. Not thread-safe by
    itself: the engine's lock covers it. On a GPU the current stream is taken to be the one that reads; what is dropped
    or freed may be overwritten by whatever is queued there later.

    ``put`` gives an entry its place at once, but only ``flush`` copies what was put, and who reads must ``wait``.
    """

    def __init__(
        self,
        layers: Sequence[LayerShapes],
        device: torch.device | str,
        n_slots: int,
        n_tokens: int,
        n_matrices: int | None = None,
    ):
        """n_slots: of entries, and two a running sequence. n_tokens: token slots, those of entries and sequences.
        n_matrices: of all layers with a dense T together, (K, K) each; None: enough for n_slots entries."""
        n_dense, n_heads, _ = dense(layers)
        n_matrices = n_slots * n_dense * n_heads if n_matrices is None else n_matrices
        self._has_tokens = any(layer.tokens for layer in layers)
        self._unit = unit_bytes(layers)
        self._slabs = DeviceTensors(layers, torch.device(device), n_slots, n_tokens, n_matrices)
        self._arrivals = Transfers(self._slabs)
        self._sizes = n_slots, n_tokens, n_matrices
        self._n_hits = self._n_evicted = 0
        self.reset()

    @classmethod
    def within(
        cls,
        budget_bytes: int,
        layers: Sequence[LayerShapes],
        device: torch.device | str,
        tokens_a_segment: int = 1024,
        n_sequences: int = 64,
        tokens_a_sequence: int = 512,
        live_share: float = 1.0,
    ) -> Self:
        """Make the pool that holds most segments in ``budget_bytes``, beside ``n_sequences`` leases.

        tokens_a_segment, tokens_a_sequence: usual numbers of an interior's tokens and of a sequence's own rows. Where
        segments are longer, token slots run out before slots do; where they are shorter little is wasted, since states
        and transitions weigh more (Qwen3.5-35B-A3B: 20 MiB of 1,024 tokens beside 105 MiB).
        live_share: of the heads with a dense T, how many are expected to be alive (see ``put``).
        Raises BadInput where not one segment fits.
        """
        n_dense, n_heads, _ = dense(layers)
        has_tokens = any(layer.tokens for layer in layers)

        def sizes(n_segments: int) -> tuple[int, int, int]:
            """Return slots, token slots, matrices: whole, and of matrices enough for
            one segment whose heads all live."""
            a_segment, a_sequence = (-(-n // TOKEN_ALIGN) * TOKEN_ALIGN for n in (tokens_a_segment, tokens_a_sequence))
            n_tokens = n_segments * a_segment + n_sequences * a_sequence if has_tokens else 0
            n_matrices = max(ceil(n_segments * live_share), 1 if n_segments else 0) * n_dense * n_heads
            return n_segments + LEASE_SLOTS * n_sequences, n_tokens, n_matrices

        def nbytes(n_segments: int) -> int:
            return unit_bytes(layers).of(*sizes(n_segments))

        n_segments = bisect_right(range(1, budget_bytes + 1), budget_bytes, key=nbytes)
        if not n_segments:
            raise BadInput(
                f"a device budget of {format_bytes(budget_bytes)} is too small: {n_sequences} running sequences take "
                f"{format_bytes(nbytes(0))}, and a segment of {tokens_a_segment} tokens "
                f"{format_bytes(nbytes(1) - nbytes(0))}. Give at least {format_bytes(nbytes(1))} "
                "(--device-memory), or 0 to run in torch without pools"
            )
        return cls(layers, device, *sizes(n_segments))

    def reset(self) -> None:
        """Forget all entries, leases and pins, in whatever state an interrupted change has left them. Who holds any has
        to forget them too."""
        n_slots, n_tokens, n_matrices = self._sizes
        self._arrivals.clear()
        self._free_slots = list(reversed(range(n_slots)))
        self._tokens, self._matrices = FreeList(n_tokens, TOKEN_ALIGN), FreeList(n_matrices)
        self._residents: OrderedDict[str, DeviceEntry] = OrderedDict()  # least recently used first
        self._leases: set[Lease] = set()
        self._pins: Counter[str] = Counter()
        self._leaving: dict[str, list[DeviceEntry]] = {}  # discarded while pinned
        self.nbytes = 0
        """In use, by entries and leases."""
        self.is_whole = True
        """False where ``discard``, which others than the engine call, was interrupted."""

    @property
    def layers(self) -> tuple[LayerPools, ...]:
        return self._slabs.layers

    @property
    def budget(self) -> int:
        """Bytes taken from the device, used or not."""
        return self._slabs.nbytes

    def __len__(self) -> int:
        return len(self._residents)

    def __contains__(self, digest: str) -> bool:
        return digest in self._residents

    def stats(self) -> TierStats:
        return TierStats(len(self), self.nbytes, self.budget, self._n_hits, self._n_evicted)

    def get(self, digest: str) -> DeviceEntry | None:
        """Return the entry, which is now the most recently used."""
        found = self._touched(digest)
        self._n_hits += found is not None
        return found

    def put(self, digest: str, entry: Entry, dead_below: float = 0.0, namespace: str = "") -> DeviceEntry | None:
        """Keep an entry under the digest: the one already here, else the one given, which ``flush``
        copies and which must not change until then; None where there is no room beside what is pinned or
        leased, and then nothing is dropped.

        dead_below: heads whose dense T has a smaller Frobenius norm are not stored, which takes their T as zero.
        Raises ValueError if it is not of the pool's shapes.
        """
        kept = self._touched(digest)
        if kept is not None:
            return kept
        outline = self._arrivals.outlines.of(entry, dead_below)
        n_tokens, n_matrices = self._places(entry.n_tokens - entry.seam_tokens), int(outline.live.sum())
        found = self._take(1, n_tokens, n_matrices)
        if found is None:
            return None
        [slot], token_at, matrix_at = found
        nbytes = self._unit.of(1, self._tokens.rounded(n_tokens), n_matrices)
        place = PoolPlace(slot, token_at, matrix_at)
        resident = DeviceEntry(digest, *place, n_matrices, entry.n_tokens, entry.seam_tokens, nbytes, namespace)
        self.nbytes += nbytes
        self._arrivals.add(entry, outline, place)
        self._residents[digest] = resident
        if self._arrivals.bytes_on_device > MAX_WAITING * self.budget:
            self.flush()
        return resident

    def flush(self) -> None:
        """Queue the copies of all that was put since the last time, layer by layer, on a stream of their own (on a CPU
        they are made now). No pass may be under way that waits for a layer. Entries of copies that fail are dropped."""
        slots = self._arrivals.waiting
        try:
            self._arrivals.flush()
        except BaseException:  # no memory for what is copied by way of another tensor, say
            for resident in [one for one in self._residents.values() if one.slot in slots]:
                self.discard(resident.digest)
            raise

    def wait(self, layer: int | None = None) -> None:
        """Let the current stream wait for what was flushed of a layer, None: of all. A CUDA graph waits at each
        replay, for the last flush before it."""
        self._arrivals.wait(layer)

    def views(self, resident: DeviceEntry) -> tuple[Mapping[str, Tensor], ...]:
        """Return, for each layer, the tensors in an entry's names and shapes, for code without kernels:
        views of the pools, but a dense T is a copy (dead heads are zero). Valid while the entry is here.
        Flushes, and the current stream waits."""
        self.flush()
        self.wait()
        return self._slabs.read(resident.slot, resident.token_at, self._places(resident.n_interior))

    def discard(self, digest: str) -> bool:
        """Drop an entry; what a pin holds is no longer found, and its memory is free with the last unpin.
        False if it was not here."""
        if digest not in self._residents:
            return False
        self.is_whole = False
        resident = self._residents.pop(digest)
        if digest in self._pins:
            self._leaving.setdefault(digest, []).append(resident)
        else:
            self._release(resident)
        self.is_whole = True
        return True

    def of_namespace(self, namespace: str) -> set[str]:
        """Return the digests of the entries here whose keys have it."""
        return {digest for digest, resident in self._residents.items() if resident.namespace == namespace}

    def pin(self, digest: str) -> None:
        """Keep an entry from eviction. Pins nest; a digest may be pinned before its entry is here."""
        self._pins[digest] += 1

    def unpin(self, digest: str) -> None:
        """Undo one pin, on the current stream, whose kernels may still be reading the entry."""
        assert self._pins[digest] > 0, f"unpin without pin: {digest}"
        self._pins[digest] -= 1
        if not self._pins[digest]:
            del self._pins[digest]
            for resident in self._leaving.pop(digest, ()):
                self._release(resident)

    def clear(self) -> None:
        """Drop all entries; leases stay."""
        for digest in list(self._residents):
            self.discard(digest)

    def lease(self, n_tokens: int) -> Lease | None:
        """Lease two slots and ``n_tokens`` token slots in a row for a running sequence; None where there is no room."""
        found = self._take(LEASE_SLOTS, self._places(n_tokens), 0)
        if found is None:
            return None
        (a, b), token_at, _ = found
        lease = Lease((a, b), token_at, n_tokens)
        self._leases.add(lease)
        self.nbytes += self.lease_bytes(lease)
        return lease

    def free(self, lease: Lease) -> None:
        """Give a lease back, once."""
        assert lease in self._leases, f"not leased: {lease}"
        self._leases.remove(lease)
        self._free_slots += lease.slots
        self._tokens.give(lease.token_at, self._places(lease.n_tokens))
        self.nbytes -= self.lease_bytes(lease)

    def lease_bytes(self, lease: Lease) -> int:
        return self._unit.of(LEASE_SLOTS, self._tokens.rounded(self._places(lease.n_tokens)), 0)

    def copy_state(self, source: int, to: int) -> None:
        """Copy a slot's tensors (a sequence's state and tail), on the current stream."""
        self._slabs.copy_state(source, to)

    def copy_tokens(self, source: int, to: int, n_tokens: int) -> None:
        """Copy what is kept of ``n_tokens`` tokens, from one token slot to another, on the current stream."""
        self._slabs.copy_tokens(source, to, n_tokens)

    def _places(self, n_tokens: int) -> int:
        """Return the token slots that ``n_tokens`` need: none where no layer keeps anything a token."""
        return n_tokens if self._has_tokens else 0

    def _touched(self, digest: str) -> DeviceEntry | None:
        found = self._residents.get(digest)
        if found is not None:
            self._residents.move_to_end(digest)
        return found

    def _take(self, n_slots: int, n_tokens: int, n_matrices: int) -> tuple[list[int], int, int] | None:
        """Take slots, the first token slot and the first matrix, after dropping what must go; None, and nothing
        dropped, where that is not enough."""
        victims = self._victims(n_slots, n_tokens, n_matrices)
        if victims is None:
            return None
        for victim in victims:
            self.discard(victim.digest)
        self._n_evicted += len(victims)
        token_at, matrix_at = self._tokens.take(n_tokens), self._matrices.take(n_matrices)
        assert token_at is not None and matrix_at is not None
        return [self._free_slots.pop() for _ in range(n_slots)], token_at, matrix_at

    def _victims(self, n_slots: int, n_tokens: int, n_matrices: int) -> list[DeviceEntry] | None:
        """Choose what to drop so that all fit; None if they cannot.

        Entries are dropped in thought, least recently used first, until there is room; then those are spared, most
        recently used first, without which there is room as well: they do not lie in the stretch that came free.
        """
        n_free, tokens, matrices = len(self._free_slots), self._tokens.copy(), self._matrices.copy()

        def enough() -> bool:
            return n_free >= n_slots and tokens.fits(n_tokens) and matrices.fits(n_matrices)

        victims: list[DeviceEntry] = []
        unpinned = (resident for digest, resident in self._residents.items() if digest not in self._pins)
        while not enough():
            victim = next(unpinned, None)
            if victim is None:
                return None
            victims.append(victim)
            n_free += 1
            tokens.give(victim.token_at, self._places(victim.n_interior))
            matrices.give(victim.matrix_at, victim.n_matrices)
        needed = []
        for victim in reversed(victims):
            n_free -= 1
            tokens.claim(victim.token_at, self._places(victim.n_interior))
            matrices.claim(victim.matrix_at, victim.n_matrices)
            if not enough():
                needed.append(victim)
                n_free += 1
                tokens.give(victim.token_at, self._places(victim.n_interior))
                matrices.give(victim.matrix_at, victim.n_matrices)
        return needed

    def _release(self, resident: DeviceEntry) -> None:
        """Free its memory for what is queued on the current stream from now on."""
        self._arrivals.drop(resident.slot)
        self._free_slots.append(resident.slot)
        self._tokens.give(resident.token_at, self._places(resident.n_interior))
        self._matrices.give(resident.matrix_at, resident.n_matrices)
        self.nbytes -= resident.nbytes
