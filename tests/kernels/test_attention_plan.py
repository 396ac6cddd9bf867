"""Plans of pieces: every row sees each of its keys once, and a bucket's limits hold."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypic_kernels.attention_plan import AttentionBucket, SequenceRows, view_plan, write_plan

SEQUENCES = [
    SequenceRows(0, 20, 0, 5000, [(0, 100, 300, -1), (4, 600, 65, 0), (12, 700, 64, 1), (20, 800, 10, 2)]),
    SequenceRows(20, 21, 130, 6000, np.array([(8, 900, 129, 3), (131, 1100, 50, 3), (130, 1200, 7, 4)])),
    SequenceRows(21, 30, 2, 7000, []),
]


def plan_of(bucket, sequences=SEQUENCES):
    flat = np.full(bucket.plan_size, 10**8, dtype=np.int32)
    write_plan(flat, sequences, bucket)
    return view_plan(torch.from_numpy(flat), bucket)


@pytest.mark.parametrize("split", [1, 7, 64, 100, 128, 1024])
def test_every_row_sees_each_of_its_keys_once(split):
    bucket = AttentionBucket(n_rows=32, n_pieces=900, n_partial_rows=12000, max_rows=20, split=split)
    plan = plan_of(bucket)
    for s in SEQUENCES:
        for i in range(s.start, s.stop):
            number = s.past + i - s.start
            expected = Counter((s.own_at + j, -1) for j in range(number + 1))
            expected.update((at + j, turn) for first, at, n, turn in s.interiors if first <= number for j in range(n))
            seen = Counter()
            for p in range(int(plan.row_first[i]), int(plan.row_last[i]) + 1):
                q_start, q_end, kv, n, turn, own = (
                    int(x[p]) for x in (plan.q_start, plan.q_end, plan.kv, plan.n, plan.turn, plan.own)
                )
                assert 1 <= n <= split
                if q_start <= i < q_end:
                    seen.update((kv + j, turn) for j in range(n) if own < 0 or own + j <= plan.row_own[i])
            assert seen == expected
            assert plan.row_own[i] == number and plan.kv_at[i] == s.own_at + number


def test_pieces_share_no_partial_row_and_what_is_not_used_is_marked():
    bucket = AttentionBucket(n_rows=32, n_pieces=40, n_partial_rows=200, max_rows=20, split=64)
    plan = plan_of(bucket)
    used = int((plan.q_end > plan.q_start).sum())
    assert (plan.q_end > plan.q_start)[:used].all() and (plan.q_end == plan.q_start)[used:].all()
    places = [int(plan.out[p]) + r for p in range(used) for r in range(int(plan.q_end[p] - plan.q_start[p]))]
    assert len(set(places)) == len(places) and max(places) < bucket.n_partial_rows
    assert plan.kv_at[30:].tolist() == [-1, -1]
    assert (plan.row_last[30:] < plan.row_first[30:]).all()


def test_long_stretches_are_cut_into_equal_blocks():
    bucket = AttentionBucket(n_rows=8, n_pieces=8, n_partial_rows=8, max_rows=1, split=512)
    plan = plan_of(bucket, [SequenceRows(0, 1, 0, 0, [(0, 10, 1100, 0)])])
    assert plan.n.tolist() == [384, 384, 332, 1, 0, 0, 0, 0]
    assert plan.kv[:3].tolist() == [10, 394, 778]


def test_no_sequence_is_a_plan_that_does_nothing():
    plan = plan_of(AttentionBucket(8, 4, 8, 1, 512), [])
    assert (plan.q_start == plan.q_end).all() and (plan.row_last < plan.row_first).all() and (plan.kv_at == -1).all()


@pytest.mark.parametrize(
    "limit, error",
    [
        ({"n_rows": 29}, "needs 30 rows, its bucket has 29"),
        ({"n_pieces": 11}, "needs 12 pieces, its bucket has 11"),
        ({"n_partial_rows": 117}, "needs 118 partial rows, its bucket has 117"),
        ({"max_rows": 19}, "needs 20 rows of one piece, its bucket has 19"),
    ],
)
def test_a_pass_larger_than_its_bucket_is_refused(limit, error):
    enough = {"n_rows": 30, "n_pieces": 12, "n_partial_rows": 118, "max_rows": 20, "split": 128}
    plan_of(AttentionBucket(**enough))
    with pytest.raises(ValueError, match=error):
        plan_of(AttentionBucket(**(enough | limit)))
