"""What a sequence under way holds in the device's pools."""

from dataclasses import dataclass, field

from hypic_rag.cache.tiers.device import DevicePool, Lease


@dataclass
class SequenceSlots:
    """Two slots, of which one has the state and the convolution's tail and the other takes the next, token slots for
    the sequence's own keys, and pins on the cached interiors it reads.

    A pass reads and writes the tail in different programs of one launch: hence two slots.
    """

    pool: DevicePool
    lease: Lease
    is_fresh: bool = True
    turn: int = 0
    pinned: list[str] = field(default_factory=list)
    is_released: bool = False

    @classmethod
    def take(cls, pool: DevicePool, n_tokens: int) -> "SequenceSlots | None":
        """Lease room for a new sequence of at most ``n_tokens`` own rows; None where there is none."""
        lease = pool.lease(n_tokens)
        return None if lease is None else cls(pool, lease)

    @property
    def slot(self) -> int:
        return self.lease.slots[self.turn]

    @property
    def next_slot(self) -> int:
        return self.lease.slots[1 - self.turn]

    @property
    def token_at(self) -> int:
        return self.lease.token_at

    @property
    def nbytes(self) -> int:
        return self.pool.lease_bytes(self.lease)

    def advance(self) -> None:
        """Make what a pass wrote what the next reads."""
        self.turn, self.is_fresh = 1 - self.turn, False

    def copy(self, n_rows: int, n_tokens: int) -> "SequenceSlots | None":
        """Copy the state and the keys of ``n_rows`` own rows, with room for
        ``n_tokens``; None where there is no room."""
        copied = SequenceSlots.take(self.pool, n_tokens)
        if copied is None:
            return None
        if not self.is_fresh:
            copied.is_fresh = False
            self.pool.copy_state(self.slot, copied.slot)
            self.pool.copy_tokens(self.token_at, copied.token_at, n_rows)
        for digest in self.pinned:
            self.pool.pin(digest)
        copied.pinned = list(self.pinned)
        return copied

    def release(self) -> None:
        """Give everything back. A second time does nothing."""
        if self.is_released:
            return
        self.is_released = True
        self.pool.free(self.lease)
        for digest in self.pinned:
            self.pool.unpin(digest)
        self.pinned.clear()
