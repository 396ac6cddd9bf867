"""The host tier keeps what is used, within its budget, and never drops what is pinned."""

import pytest
from cache_samples import sample_entry

from hypic_rag.cache import HostTier

ONE = sample_entry().nbytes

CASES = {  # budget in entries, what is done (put, get, pin, unpin), what is left
    "unlimited": (None, "put a, put b, put c", "abc"),
    "the oldest goes": (2, "put a, put b, put c", "bc"),
    "what was looked up stays": (2, "put a, put b, get a, put c", "ac"),
    "what was put again stays": (2, "put a, put b, put a, put c", "ac"),
    "what is pinned stays": (2, "put a, pin a, put b, put c", "ac"),
    "pinned before it came": (2, "pin a, put a, put b, put c", "ac"),
    "pins nest": (2, "put a, pin a, pin a, unpin a, put b, put c", "ac"),
    "unpinned goes": (2, "put a, pin a, unpin a, put b, put c", "bc"),
    "no room beside the pinned": (2, "put a, put b, pin a, pin b, put c", "ab"),
    "no room at all": (0, "put a", ""),
}


@pytest.mark.parametrize("budget, steps, left", CASES.values(), ids=CASES)
def test_what_is_left(budget, steps, left):
    tier = HostTier(None if budget is None else budget * ONE)
    for step in steps.split(", "):
        verb, digest = step.split()
        getattr(tier, verb)(*(digest, sample_entry()) if verb == "put" else (digest,))
    assert [digest for digest in "abc" if digest in tier] == list(left)
    assert len(tier) == len(left)
    assert tier.nbytes == len(left) * ONE


def test_the_first_copy_stays():
    tier, first = HostTier(), sample_entry(1)
    assert tier.put("a", first) is first
    assert tier.put("a", sample_entry(2)) is first


def test_an_entry_one_byte_too_large_drops_nothing():
    tier = HostTier(ONE)
    tier.put("a", sample_entry())
    large = sample_entry(width=17)
    assert tier.put("b", large) is large
    assert "a" in tier and "b" not in tier
    assert tier.why_absent("b").reason == "not_stored"
    assert tier.why_absent("c").reason == "never_seen"


def test_digests_gone_are_remembered_up_to_a_number(monkeypatch):
    monkeypatch.setattr("hypic_rag.cache.tiers.host.MAX_REMEMBERED", 2)
    tier = HostTier(0)
    for digest in "abc":
        tier.put(digest, sample_entry())
    assert [tier.why_absent(digest).reason for digest in "abc"] == ["never_seen", "not_stored", "not_stored"]
