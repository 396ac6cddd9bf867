"""What is asked of the model: a leading segment, documents, and live text, as token ids.

Each segment is tokenized on its own, so that its ids (and its cached state) do not depend on its neighbours.
Control tokens (``<|im_end|>`` and the like) come from the model's chat template alone: written inside a
document, a question or a system text they stay plain text.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, Literal

from hypic_rag.chat_template import ANSWER, DOCUMENTS, OPTIONS, STAND_IN, ChatTemplate, Piece, Turn
from hypic_rag.errors import BadInput
from hypic_rag.plain_text import Ids as Ids
from hypic_rag.plain_text import PlainText

Kind = Literal["leading", "document", "live"]

DEFAULT_SYSTEM = "Answer the question using the documents."
HEEDED = ("system", "developer", "user")  # roles in whose texts a template's switches count
QUESTION = "Question: "
NO_TEXT: tuple[Piece, ...] = (("", "hidden"),)
OPENING: tuple[Piece, ...] = ((DOCUMENTS, "ours"), (QUESTION, "ours"))
BEFORE: tuple[Turn, ...] = (("system", NO_TEXT), ("user", (*OPENING, *NO_TEXT)))  # an answer, where nothing was heeded
FORMER = "chat-template:"  # of versions that were digests of what the template writes


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
    """Parts in their order. The last is live: its last row gives the first token of the answer.

    said: its messages as far as the chat template heeds them, where it does; for the next turn.
    """

    parts: tuple[Part, ...]
    said: tuple[Turn, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.parts or self.parts[-1].kind != "live" or not self.parts[-1].ids:
            raise BadInput("a prompt must end with live text (the question), and it is empty: ask something")
        if any(part.kind == "leading" for part in self.parts[1:]):
            raise BadInput("a leading segment can only come first in a prompt")

    @classmethod
    def build(cls, leading: Iterable[int], documents: Iterable[Iterable[int]], question: Iterable[int]) -> "Prompt":
        """Build ``[leading][document ...][question]``; an empty leading segment or document is left out."""
        parts = [Part("leading", tuple(leading)), *(Part("document", tuple(ids)) for ids in documents)]
        return cls((*(part for part in parts if part.ids), Part("live", tuple(question))))

    def extend(self, live: Iterable[int], documents: Iterable[Iterable[int]], question: Iterable[int]) -> "Prompt":
        """Add the next turn: ``live`` (the answer and what stands between turns), new documents, the next question."""
        following = Prompt.build((), documents, question).parts
        return replace(self, parts=(*self.parts, Part("live", tuple(live)), *following))

    def with_documents(self, documents: Iterable[Iterable[int]]) -> "Prompt":
        """Put documents before the last part, behind those that are there."""
        parts = [Part("document", tuple(ids)) for ids in documents]
        return replace(self, parts=(*self.parts[:-1], *(part for part in parts if part.ids), self.parts[-1]))

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
    return (replace(prompt, parts=tuple(parts)) if dropped else prompt), dropped


class PromptFormat:
    """Turns text into token ids in the model's own chat format.

    ``Document: TITLE\\nTEXT\\n\\n`` is a document segment and ``Question: ...`` the question, inside one user
    message of the chat template; a tokenizer without a template gets the same text without roles.
    """

    def __init__(self, tokenizer: Any, system: str | None = None):
        self.tokenizer = tokenizer
        self.system = DEFAULT_SYSTEM if system is None else system
        self._text = PlainText(tokenizer)
        self._template = ChatTemplate(tokenizer, self._text.control_ids)
        self._split = re.compile(f"({STAND_IN}|{self._template.control.pattern})").split
        # What lies between texts is the same each time.
        self._encode_again: Callable[[str], Ids] = lru_cache(maxsize=64)(self.encode)
        self.version = f"template:{self._digest()}"

    def made(self, version: str) -> bool:
        """Return whether this format's ``version`` is or was that one: it was a digest of what the template writes, of
        which nothing can be told where that depends on the day."""
        if version == self.version:
            return True
        return version.startswith(FORMER) and (self._template.varies or version == self._former_version)

    def leading(self, system: str | None = None) -> Ids:
        before, _, texts = self._around_documents(self._first_turns(system, ""))
        return self._fill(before, texts)

    def document(self, text: str, title: str = "") -> Ids:
        return self.encode(_document(text, title))

    def question(self, text: str, system: str | None = None) -> Ids:
        """Tokenize what follows the documents, under this system text."""
        _, after, texts = self._around_documents(self._first_turns(system, asked_question(text)))
        return self._fill(after, texts)

    @property
    def between_turns(self) -> Ids:
        """What follows an answer in a conversation: the end of the turn and the opening of the next question."""
        return self._next((), self._user("", documents=True))[0]

    @property
    def answer_end(self) -> Ids:
        """The control token that closes an answer, or nothing where the template has none."""
        following = self.between_turns[:1]
        return following if {*following} <= {*self._text.control_ids.values()} else ()

    def prompt(
        self,
        question: str,
        documents: Sequence[Sequence[int]] | Sequence[tuple[str, str]] = (),
        system: str | None = None,
    ) -> Prompt:
        """Build a prompt; ``documents`` are token ids made by ``document``, or pairs of title and text."""
        segments: list[Any] = [self.document(str(d[1]), d[0]) if d and isinstance(d[0], str) else d for d in documents]
        turns = self._first_turns(system, asked_question(question))
        before, after, texts = self._around_documents(turns)
        return replace(Prompt.build(self._fill(before, texts), segments, self._fill(after, texts)), said=_heeded(turns))

    def follow_up(
        self,
        prompt: Prompt,
        answer_ids: Sequence[int],
        question: str,
        documents: Sequence[Sequence[int]] = (),
    ) -> Prompt:
        """Build the next turn of a conversation whose last prompt and answer are given."""
        between, asking, said = self._next(prompt.said, self._user(asked_question(question), documents=True))
        return replace(prompt.extend((*answer_ids, *between), documents, asking), said=said)

    def chat(self, messages: Sequence[tuple[str, str]]) -> Prompt:
        """Build a plain conversation of (role, text), without documents, open for the assistant's turn."""
        if not messages or not any(text.strip() for _, text in messages):
            raise BadInput("the conversation is empty: give at least one message with text")
        turns = [(role, self._template.pieces(text, role in HEEDED)) for role, text in messages]
        try:
            rendered, texts = self._template.render(turns)
        except Exception as error:
            raise BadInput(
                f"the model's chat template refuses these messages: {error}. Most want a user's message first, then "
                "the assistant's and the user's in turn"
            ) from error
        cut = self._template.start(rendered, turns)
        leading, live = self._fill(rendered[:cut], texts), self._fill(rendered[cut:], texts)
        return replace(Prompt.build(leading, (), live), said=_heeded(turns))

    def chat_follow_up(self, prompt: Prompt, answer_ids: Sequence[int], text: str) -> Prompt:
        """Build the next turn of a plain conversation whose last prompt and answer are
        given: the user says ``text``."""
        between, _, said = self._next(prompt.said, self._user(text, documents=False))
        return replace(prompt.extend(answer_ids, (), between), said=said)

    def count(self, text: str) -> int:
        """Count the model's tokens of a plain text."""
        return len(self.encode(text))

    def encode(self, text: str) -> Ids:
        """Tokenize plain text; control tokens in it are spelled out, never obeyed.

        What is no character (a lone surrogate, from bytes that were not UTF-8) becomes U+FFFD.
        """
        return self._text.encode(text)

    def _first_turns(self, system: str | None, question: str) -> list[Turn]:
        about = self._template.pieces(self.system if system is None else system, True)
        return [("system", about), self._user(question, documents=True)]

    def _around_documents(self, turns: Sequence[Turn]) -> tuple[str, str, dict[str, str]]:
        """Return what is written before and behind the documents of these messages, and the texts in it."""
        rendered, texts = self._template.render(turns)
        before, _, after = rendered.partition(DOCUMENTS)
        return before, after, texts

    def _next(self, said: tuple[Turn, ...], asking: Turn) -> tuple[Ids, Ids, tuple[Turn, ...]]:
        """Return what stands between an answer and the next documents (all that follows it where there are none), and
        behind them; also what is said then."""
        turns = (*(said or BEFORE), ("assistant", ((ANSWER, "ours"),)), asking)
        rendered, texts = self._template.render(turns)
        between, _, after = rendered.rpartition(ANSWER)[2].partition(DOCUMENTS)
        return self._fill(between, texts), self._fill(after, texts), _heeded(turns)

    def _user(self, question: str, documents: bool) -> Turn:
        pieces = self._template.pieces(question, True) if question else NO_TEXT
        return "user", (*OPENING, *pieces) if documents else pieces

    def _fill(self, rendered: str, texts: dict[str, str]) -> Ids:
        """Tokenize what the template writes, whose control tokens count, with the texts in it, whose do not."""
        ids: list[int] = []
        plain, encode = "", self._encode_again
        for i, piece in enumerate(self._split(rendered)):
            if i % 2 == 0:
                plain += piece
            elif (control_id := self._text.control_ids.get(piece)) is not None:
                ids += (*encode(plain), control_id)
                plain, encode = "", self._encode_again
            elif text := texts.get(piece):
                plain, encode = plain + text, self.encode
        return (*ids, *encode(plain))

    def _digest(self) -> str:
        """Hash all that decides a prompt beside its texts: the same on every day and in every process."""
        template, tokens = self._template, self.tokenizer.special_tokens_map
        read = {name: str(token) for name, token in tokens.items() if name in template.variables}
        forms = [_document("TEXT", "TITLE"), _document("TEXT", ""), QUESTION]
        whole = json.dumps([template.source, read, OPTIONS, forms], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:16]

    @cached_property
    def _former_version(self) -> str:
        system, documents, question, answer, following = (f"HYPIC0SLOT{i}0END" for i in range(5))
        first = [("system", system), ("user", f"{documents}{QUESTION}{question}")]
        both = [*first, ("assistant", answer), ("user", f"{following}{QUESTION}{question}")]
        written = "|".join(map(self._template.write, (first, both)))
        return FORMER + hashlib.sha256(written.encode()).hexdigest()[:16]


def _document(text: str, title: str) -> str:
    return f"Document: {title}\n{text}\n\n" if title else f"Document: {text}\n\n"


def asked_question(question: str) -> str:
    """Return the question. Raises BadInput for one of blanks."""
    if not question.strip():
        raise BadInput('the question is empty: ask something, such as "Who signed the treaty?"')
    return question


def _heeded(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Keep what the next turn has to know of these: nothing where the template sees nothing of their texts."""
    if not any(kind == "seen" for _, pieces in turns for _, kind in pieces):
        return ()
    return tuple((role, tuple(("" if kind == "hidden" else text, kind) for text, kind in of)) for role, of in turns)
