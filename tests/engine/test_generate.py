"""Drawing tokens, and text that never splits a character or shows a stop string."""

import pytest
import tiny
import torch

from hypic_rag.engine import Sampling
from hypic_rag.engine.generate import TextStream, draw, draw_each

TEXTS = {
    "plain": "The quick brown fox.",
    "two-byte characters": "naïve café — Gödel",
    "four-byte characters": "a 🦊 and a 🐢‍",
    "no spaces": "東京は日本の首都です。",
}


def tokens(text: str) -> list[int]:
    return tiny.tokenizer()(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_stream_is_the_text_and_never_splits_a_character(text: str) -> None:
    stream = TextStream(tiny.tokenizer())
    pieces = [stream.push(token) for token in tokens(text)]
    assert all("�" not in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == text == stream.text


def test_an_incomplete_character_at_the_end_is_not_lost() -> None:
    stream = TextStream(tiny.tokenizer())
    pieces = [stream.push(token) for token in tokens("a🦊")[:-1]]
    assert "".join(pieces) == "a"
    assert "�" in stream.finish()


STOPS = {  # text, stop strings, what is shown
    "inside one token": ("one two three", ("wo",), "one t"),
    "across tokens": ("The answer is 42. And more", ("42. And",), "The answer is "),
    "the first of two": ("a b c d", ("c", "b"), "a "),
    "only its beginning": ("a fine end", ("ends",), "a fine end"),
    "at the very start": ("stop here", ("stop",), ""),
    "a newline": ("Paris\nis it", ("\n",), "Paris"),
}


@pytest.mark.parametrize("text, stop, shown", STOPS.values(), ids=STOPS)
def test_stop_strings_are_never_shown(text: str, stop: tuple[str, ...], shown: str) -> None:
    stream = TextStream(tiny.tokenizer(), stop)
    seen = ""
    for token in tokens(text):
        seen += stream.push(token)
        assert shown.startswith(seen)  # nothing of a stop string leaks on the way
        if stream.stopped:
            break
    seen += stream.finish()
    assert seen == shown == stream.text
    assert stream.stopped == (shown != text)


def test_drawing_follows_the_distribution() -> None:
    """20,000 draws at temperature 2 and top-p 0.8: frequencies within 4 standard errors (0.0142) of the exact ones."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    tempered = (logits / 2).softmax(-1)  # 0.455, 0.276, 0.167, 0.102: the first three reach 0.8
    want = torch.cat((tempered[:3] / tempered[:3].sum(), torch.zeros(1)))
    sampling = Sampling(temperature=2.0, top_p=0.8)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.tensor([draw(logits, sampling, generator) for _ in range(20_000)])
    found = torch.bincount(drawn, minlength=4) / 20_000
    assert (found - want).abs().max() < 0.0142
    assert found[3] == 0
    assert draw(logits, Sampling(), None) == 0
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    how = [(Sampling(), None), (sampling, generators[0]), (Sampling(), None)]
    expected = [0, draw(logits, sampling, generators[1]), len(logits) - 1]
    assert draw_each([logits, logits, logits.flip(0)], how) == expected
    assert draw(100 * logits, Sampling(temperature=1e-40), generator) == 0  # no overflow, no NaN
