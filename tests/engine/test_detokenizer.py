"""Text that never splits a character or shows a stop string."""

import pytest
import tiny

from hypic_rag.engine.detokenizer import Detokenizer

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
    stream = Detokenizer(tiny.tokenizer())
    pieces = [stream.push(token) for token in tokens(text)]
    assert all("�" not in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == text == stream.text


def test_an_incomplete_character_at_the_end_is_not_lost() -> None:
    stream = Detokenizer(tiny.tokenizer())
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
    stream = Detokenizer(tiny.tokenizer(), stop)
    seen = ""
    for token in tokens(text):
        seen += stream.push(token)
        assert shown.startswith(seen)  # nothing of a stop string leaks on the way
        if stream.stopped:
            break
    seen += stream.finish()
    assert seen == shown == stream.text
    assert stream.stopped == (shown != text)
