"""How modes are written, and what they ask of the engine."""

import pytest
from hypic_eval.modes import Mode, parse_mode, parse_modes

from hypic_rag.engine import Policy
from hypic_rag.errors import BadInput
from hypic_rag.prompt import Prompt

WRITTEN = {  # text, how it is shown, policy
    "full": ("full", "full", Policy(mode="full")),
    "hypic": ("hypic", "hypic:w=8", Policy()),
    "no seam": ("hypic:w=0", "hypic:w=0", Policy(seam_tokens=0)),
    "spaces around": (" last_state:w=16 ", "last_state:w=16", Policy(seam_tokens=16, compose="last_state")),
    "add": ("add", "add:w=8", Policy(compose="add")),
    "no documents": ("none", "none", Policy(mode="full")),
    "a prefix cache": ("prefix", "prefix", Policy()),
    "selective": (" selective", "selective:p=15", Policy(seam_tokens=0)),
    "much of it": ("selective:p=100", "selective:p=100", Policy(seam_tokens=0)),
    "keys and values alone": ("kv_only", "kv_only", Policy(seam_tokens=0, compose="add")),
}


@pytest.mark.parametrize("text, shown, policy", WRITTEN.values(), ids=WRITTEN)
def test_a_mode_and_its_policy(text: str, shown: str, policy: Policy) -> None:
    mode = parse_mode(text)
    assert str(mode) == shown
    assert parse_mode(shown) == mode
    assert mode.policy == policy


def test_modes_keep_their_order_and_come_once() -> None:
    assert parse_modes("add,full,add:w=8") == (Mode("add", 8), Mode("full"))


@pytest.mark.parametrize(
    "text, told",
    [
        ("hypik", "hypic"),
        ("last-state", "last_state"),
        ("hypic:w=-1", "hypic"),
        ("full:w=8", "no seam"),
        ("kv_only:w=8", "no seam"),
        ("selective:w=8", "0 to 100 percent"),
        ("selective:p=101", "0 to 100 percent"),
        ("hypic:p=8", "so many tokens"),
        ("prefiks", "prefix"),
        ("", "full"),
    ],
)
def test_other_spellings_are_refused_with_a_hint(text: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        parse_mode(text)


def test_what_of_a_prompt_each_mode_asks() -> None:
    whole = Prompt.build((1, 2), [(3, 4), (5,)], (6, 7))
    assert parse_mode("none").prompt(whole) == Prompt.build((1, 2), (), (6, 7))
    assert parse_mode("prefix").prompt(whole) == Prompt.build((1, 2), (), (3, 4, 5, 6, 7))
    assert all(parse_mode(name).prompt(whole) == whole for name in ("full", "kv_only", "hypic", "add"))
