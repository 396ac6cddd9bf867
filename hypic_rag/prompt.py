"""What is asked of the model: a leading segment, documents, and live text, as token ids.

Each segment is tokenized on its own, so that its ids (and its cached state) do not depend on its neighbours.
Control tokens (``<|im_end|>`` and the like) come from the model's chat template alone: written inside a
document, a question or a system text they stay plain text.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, Literal

from hypic_rag.errors import BadInput

Ids = tuple[int, ...]
Kind = Literal["leading", "document", "live"]

DEFAULT_SYSTEM = "Answer the question using the documents."
# Words that no chat template contains; they mark where the variable text goes.
SLOT_SYSTEM, SLOT_DOCUMENTS, SLOT_QUESTION, SLOT_ANSWER, SLOT_NEXT = (f"HYPIC0SLOT{i}0END" for i in range(5))


@dataclass(frozen=True)
class Part:
    """A run of token ids. ``leading`` is cached as an exact prefix, ``document`` as a segment, ``live`` never."""

    kind: Kind
    ids: Ids

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Parts are keys in a dozen places, and a thousand ids take 5 microseconds each time. Of the ids alone: a
        string's hash is another in every process, and this one is kept with the part."""
        return hash(self.ids)


@dataclass(frozen=True)
class Prompt:
    """Parts in their order. The last is live: its last row gives the first token of the answer."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts or self.parts[-1].kind != "live" or not self.parts[-1].ids:
            raise BadInput("a prompt must end with live text (the question), and it is empty: ask something")
        if any(part.kind == "leading" for part in self.parts[1:]):
            raise BadInput("a leading segment can only come first in a prompt")

    @classmethod
    def build(cls, leading: Iterable[int], documents: Iterable[Iterable[int]], question: Iterable[int]) -> "Prompt":
        """``[leading][document ...][question]``; an empty leading segment or document is left out."""
        parts = [Part("leading", tuple(leading)), *(Part("document", tuple(ids)) for ids in documents)]
        return cls((*(part for part in parts if part.ids), Part("live", tuple(question))))

    def extend(self, live: Iterable[int], documents: Iterable[Iterable[int]], question: Iterable[int]) -> "Prompt":
        """The next turn: ``live`` (the answer and what stands between turns), new documents, the next question."""
        following = Prompt.build((), documents, question).parts
        return Prompt((*self.parts, Part("live", tuple(live)), *following))

    @property
    def documents(self) -> tuple[Ids, ...]:
        return tuple(part.ids for part in self.parts if part.kind == "document")

    @property
    def token_ids(self) -> Ids:
        """The concatenation that full recompute runs on."""
        return tuple(chain.from_iterable(part.ids for part in self.parts))

    @property
    def n_tokens(self) -> int:
        return sum(len(part.ids) for part in self.parts)


def fit_documents(prompt: Prompt, max_tokens: int) -> tuple[Prompt, int]:
    """Drop whole documents, the last first, until the prompt has at most ``max_tokens``; also how many went."""
    parts, excess, dropped = list(prompt.parts), prompt.n_tokens - max_tokens, 0
    for i in range(len(parts) - 1, -1, -1):
        if excess > 0 and parts[i].kind == "document":
            excess -= len(parts.pop(i).ids)
            dropped += 1
    return (Prompt(tuple(parts)) if dropped else prompt), dropped


class PromptFormat:
    """Turns text into token ids in the model's own chat format.

    ``Document: TITLE\\nTEXT\\n\\n`` is a document segment and ``Question: ...`` the question, inside one user
    message of the chat template; a tokenizer without a template gets the same text without roles.
    """

    def __init__(self, tokenizer: Any, system: str | None = None):
        self.tokenizer = tokenizer
        self.system = DEFAULT_SYSTEM if system is None else system
        added = tokenizer.added_tokens_decoder
        # Runs of spaces are ordinary text in some vocabularies; everything else that is added is a control token.
        self._control_ids = {t.content: i for i, t in added.items() if t.special or t.content.strip()}
        by_length = sorted(self._control_ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, by_length)) or r"(?!)")
        slots = f"{SLOT_DOCUMENTS}Question: {SLOT_QUESTION}"
        turns = [
            ("user", slots),
            ("assistant", SLOT_ANSWER),
            ("user", f"{SLOT_NEXT}Question: {SLOT_QUESTION}"),
        ]
        first = self._render([("system", SLOT_SYSTEM), turns[0]])
        both = self._render([("system", SLOT_SYSTEM), *turns])
        self._before, self._after = first.split(SLOT_DOCUMENTS)
        self._between = both.split(SLOT_ANSWER)[-1].split(SLOT_NEXT)[0]
        # What lies between slots is the same each time.
        self._encode_again: Callable[[str], Ids] = lru_cache(maxsize=64)(self.encode)
        self.version = "chat-template:" + hashlib.sha256(f"{first}|{both}".encode()).hexdigest()[:16]

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, system: str | None = None) -> "PromptFormat":
        return cls(tokenizer, system)

    def leading(self, system: str | None = None) -> Ids:
        return self._fill(self._before, {SLOT_SYSTEM: self.system if system is None else system})

    def document(self, text: str, title: str = "") -> Ids:
        return self.encode(f"Document: {title}\n{text}\n\n" if title else f"Document: {text}\n\n")

    def question(self, text: str) -> Ids:
        if not text.strip():
            raise BadInput('the question is empty: ask something, such as "Who signed the treaty?"')
        return self._fill(self._after, {SLOT_QUESTION: text})

    @property
    def between_turns(self) -> Ids:
        """What follows an answer in a conversation: the end of the turn and the opening of the next question."""
        return self._fill(self._between, {})

    @property
    def answer_end(self) -> Ids:
        """The control token that closes an answer, or nothing where the template has none."""
        return self.between_turns[:1] if self._control.match(self._between) else ()

    def prompt(
        self,
        question: str,
        documents: Sequence[Sequence[int]] | Sequence[tuple[str, str]] = (),
        system: str | None = None,
    ) -> Prompt:
        """``documents`` are token ids made by ``document``, or pairs of title and text."""
        segments: list[Any] = [self.document(str(d[1]), d[0]) if d and isinstance(d[0], str) else d for d in documents]
        return Prompt.build(self.leading(system), segments, self.question(question))

    def follow_up(
        self,
        prompt: Prompt,
        answer_ids: Sequence[int],
        question: str,
        documents: Sequence[Sequence[int]] = (),
    ) -> Prompt:
        """The next turn of a conversation whose last prompt and answer are given."""
        return prompt.extend((*answer_ids, *self.between_turns), documents, self.question(question))

    def chat(self, messages: Sequence[tuple[str, str]]) -> Prompt:
        """A plain conversation of (role, text), without documents, open for the assistant's turn."""
        if not messages or not any(text.strip() for _, text in messages):
            raise BadInput("the conversation is empty: give at least one message with text")
        slots = {f"HYPIC0TURN{i}0END": text for i, (_, text) in enumerate(messages)}
        try:
            rendered = self._render([(role, slot) for slot, (role, _) in zip(slots, messages, strict=True)])
        except Exception as error:
            raise BadInput(
                f"the model's chat template refuses these messages: {error}. Most want a user's message first, then "
                "the assistant's and the user's in turn"
            ) from error
        first_user = next((s for s, (role, _) in zip(slots, messages, strict=True) if role != "system"), None)
        cut = rendered.index(first_user) if first_user else 0
        return Prompt.build(self._fill(rendered[:cut], slots), (), self._fill(rendered[cut:], slots))

    def chat_follow_up(self, prompt: Prompt, answer_ids: Sequence[int], text: str) -> Prompt:
        """The next turn of a plain conversation whose last prompt and answer are given: the user says ``text``."""
        next_turn = self._between + self._after.removeprefix("Question: ")
        return prompt.extend(answer_ids, (), self._fill(next_turn, {SLOT_QUESTION: text}))

    def count(self, text: str) -> int:
        """Model tokens of a plain text."""
        return len(self.encode(text))

    def encode(self, text: str) -> Ids:
        """Token ids of plain text; control tokens in it are spelled out, never obeyed.

        What is no character (a lone surrogate, from bytes that were not UTF-8) becomes U+FFFD.
        """
        text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        ids: list[int] = []
        for piece in self._pieces(text):
            ids += self._ids_of(piece)
        return tuple(ids)

    def _ids_of(self, piece: str) -> list[int]:
        """What calling the tokenizer gives, without its detours where there is nothing to pad or to cut: those take
        0.15 ms a piece, ten times the work itself."""
        fast = getattr(self.tokenizer, "backend_tokenizer", None)
        if fast is None or fast.truncation or fast.padding or fast.encode_special_tokens:
            found: list[int] = self.tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
            return found
        return list(fast.encode(piece, add_special_tokens=False).ids)

    def _pieces(self, text: str) -> Iterable[str]:
        """Cut inside every control token, so that no piece contains one and none is matched."""
        at = 0
        while found := self._control.search(text, at):
            cut = found.start() + 1
            if len(found.group()) == 1:  # a one-character control token cannot be cut
                break
            yield text[at:cut]
            at = cut
        if at < len(text):
            yield text[at:]

    def _fill(self, template: str, texts: dict[str, str]) -> Ids:
        """Ids of template text, whose control tokens count, with variable texts in the slots, whose do not."""
        slots = "|".join(map(re.escape, texts)) or r"(?!)"
        ids: list[int] = []
        plain, encode = "", self._encode_again
        for piece in re.split(f"({slots}|{self._control.pattern})", template):
            if piece in texts:
                plain, encode = plain + texts[piece], self.encode
            elif piece in self._control_ids:
                ids += (*encode(plain), self._control_ids[piece])
                plain, encode = "", self._encode_again
            else:
                plain += piece
        return (*ids, *encode(plain))

    def _render(self, messages: list[tuple[str, str]]) -> str:
        if not self.tokenizer.chat_template:
            return "".join(f"{text}\n\n" for _, text in messages) + "Answer:"
        turns = [{"role": role, "content": text} for role, text in messages]
        options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
        try:
            rendered = self.tokenizer.apply_chat_template(turns, **options)
        except Exception:  # templates raise their own errors where they know no system role
            if turns[0]["role"] != "system" or len(turns) < 2:
                raise
            turns[1]["content"] = f"{turns[0]['content']}\n\n{turns[1]['content']}"
            rendered = self.tokenizer.apply_chat_template(turns[1:], **options)
        return str(rendered)
