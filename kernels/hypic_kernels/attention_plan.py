"""An AttentionPlan from what each sequence of a pass sees: written on the host, before every pass.

The plan is one flat int32 array (a single copy to the device), of which ``view_plan`` names the parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hypic_kernels.plan import AttentionPlan

BLOCK = 64  # keys: pieces are cut at multiples of the kernel's largest block of keys


@dataclass(frozen=True)
class AttentionBucket:
    """Sizes that a captured graph is made for: most rows of a pass, pieces, partial rows (the rows of all pieces
    together), rows of one piece, and keys of one piece (``split``).

    More keys a piece means fewer partial rows; fewer keys means more programs, which decoding needs.
    Multiples of 4 in n_rows and n_pieces keep every part of the flat plan aligned to 16 bytes.
    """

    n_rows: int
    n_pieces: int
    n_partial_rows: int
    max_rows: int
    split: int

    @property
    def plan_size(self) -> int:
        """Length of the flat plan."""
        return 7 * self.n_pieces + 4 * self.n_rows


@dataclass(frozen=True)
class SequenceRows:
    """A sequence's rows in the pass, ``start`` to ``stop``, and the keys that it sees.

    past: its own rows that are in the pools already; row ``start`` is own row number ``past``. own_at: token slot of
    own row 0; the others follow it. interiors: (I, 4) integers, an interior each: the first own row that sees it, its
    first token slot, its number of keys, its row of the turn tables (-1: not turned).
    """

    start: int
    stop: int
    past: int
    own_at: int
    interiors: ArrayLike


def view_plan(flat: Tensor, bucket: AttentionBucket) -> AttentionPlan:
    """View a flat plan, ``(bucket.plan_size,)`` int32 on any device, as its parts."""
    sizes = [bucket.n_pieces] * 7 + [bucket.n_rows] * 4
    return AttentionPlan(**dict(zip((f.name for f in fields(AttentionPlan)), flat.split(sizes), strict=True)))


def write_plan(flat: NDArray[np.int32], sequences: Sequence[SequenceRows], bucket: AttentionBucket) -> None:
    """Write the plan of a pass into ``flat``, (bucket.plan_size,) int32, whole: what the pass does not use is marked.

    A sequence's pieces stand one behind the other: its interiors', then its own keys'. Stretches that no row sees give
    none; longer ones than ``split`` are cut into equal pieces, but for rounding up to blocks.

    Raises ValueError if the pass is larger than the bucket in any of its sizes; flat is then not a plan.
    """
    P, N = bucket.n_pieces, bucket.n_rows
    pieces, rows = flat[: 7 * P].reshape(7, P), flat[7 * P :].reshape(4, N)
    pieces[:] = 0  # row0 == q_end: not used
    pieces[4:6] = -1
    rows[:2] = 0
    rows[2:] = -1  # row_last < row_first: no piece; kv_at: nowhere
    if not sequences:
        return

    start, stop, past, own_at = np.array([(s.start, s.stop, s.past, s.own_at) for s in sequences]).T
    _check("rows", int(stop.max()), N)
    n_own = stop - start + past  # own rows up to the pass's last

    # Stretches of keys, sequence after sequence: a line (first own row that sees it, slot, keys, turn) for every
    # interior, and one for the own keys.
    tables = [np.asarray(s.interiors, dtype=np.int64).reshape(-1, 4) for s in sequences]
    lengths = np.array([len(table) + 1 for table in tables])
    last_stretch = np.cumsum(lengths) - 1  # of each sequence: its own keys
    stretches = np.empty((last_stretch[-1] + 1, 4), dtype=np.int64)
    is_own = np.zeros(len(stretches), dtype=bool)
    is_own[last_stretch] = True
    stretches[~is_own] = np.concatenate(tables)
    stretches[last_stretch] = np.stack([np.zeros_like(past), own_at, n_own, np.full_like(past, -1)], 1)
    first, slot, n_keys, turn = stretches.T
    sequence = np.repeat(np.arange(len(sequences)), lengths)

    counts = np.where(first < n_own[sequence], -(-n_keys // bucket.split), 0)
    size = -(-n_keys // np.maximum(counts, 1))
    size = np.minimum(-(-size // BLOCK) * BLOCK, bucket.split)
    behind = np.cumsum(counts)  # pieces of the stretches up to each
    n_pieces = int(behind[-1])
    _check("pieces", n_pieces, P)

    of = np.repeat(np.arange(len(stretches)), counts)  # a piece's stretch
    offset = (np.arange(n_pieces) - (behind - counts)[of]) * size[of]  # of its first key in it
    own = np.where(is_own[of], offset, -1)
    # A piece of own keys is seen from its first key's row on.
    of_sequence = sequence[of]
    q_start = start[of_sequence] + np.maximum(np.maximum(first[of], own) - past[of_sequence], 0)
    q_end = stop[of_sequence]
    heights = q_end - q_start
    out = np.cumsum(heights) - heights
    _check("partial rows", int(heights.sum()), bucket.n_partial_rows)
    _check("rows of one piece", int(heights.max(initial=0)), bucket.max_rows)
    n = np.minimum(size[of], n_keys[of] - offset)
    for part, values in zip(pieces, (q_start, q_end, slot[of] + offset, n, turn[of], own, out), strict=True):
        part[:n_pieces] = values

    last_piece = behind[last_stretch] - 1
    first_piece = np.concatenate([[0], last_piece[:-1] + 1])
    row_sequence = np.repeat(np.arange(len(sequences)), stop - start)
    height = np.cumsum(stop - start)
    within = np.arange(height[-1]) - (height - (stop - start))[row_sequence]
    row = start[row_sequence] + within
    row_own = past[row_sequence] + within
    rows[:, row] = row_own, first_piece[row_sequence], last_piece[row_sequence], own_at[row_sequence] + row_own


def _check(what: str, needed: int, limit: int) -> None:
    if needed > limit:
        raise ValueError(
            f"the pass needs {needed} {what}, its bucket has {limit}: use a larger bucket or fewer sequences"
        )
