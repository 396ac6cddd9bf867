"""The model's chat template: what it writes around texts, what it looks for in them, and what identifies it."""

import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any, Literal

from jinja2 import nodes

from hypic_rag.errors import ModelNotReady

# Numbers that no chat template contains, and that stay as they are whatever it does with a text. One stands for each
# piece of a text, a fence is drawn around what the template sees of it; others are where documents and an answer go.
MARK = "59170346285917"
STAND_IN = f"{MARK}[0-9]{{8}}"


def stand_in(i: int) -> str:
    return f"{MARK}{i:08}"


FENCE, DOCUMENTS, ANSWER = (stand_in(99_999_990 + i) for i in range(3))
OPTIONS: dict[str, bool] = {"add_generation_prompt": True, "enable_thinking": False}
MOST_SEEN = 1000  # switches that are heeded in a text
KEPT_CHARACTERS = 2000  # of a rendering's input, up to which it is remembered

# A piece of a message. hidden: a stand-in is rendered in its place. seen: what the template looks for; rendered itself.
# ours: not of any text, or blank.
Piece = tuple[str, Literal["hidden", "seen", "ours"]]
Turn = tuple[str, tuple[Piece, ...]]  # role and content
Shape = tuple[tuple[str, tuple[tuple[str | None, str], ...]], ...]  # turns without the texts that are hidden


class ChatTemplate:
    """source: None where the tokenizer has none; its texts are then separated by blank lines.

    varies: whether what it writes depends on the clock. variables: names that it reads.
    """

    def __init__(self, tokenizer: Any, control: Collection[str]):
        """control: tokens that it alone may write; what it looks for is no switch where one is in it."""
        self._tokenizer = tokenizer
        self.control = re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))) or r"(?!)")
        self._blank_is_control = any(map(str.isspace, "".join(control)))
        self.source = _source(tokenizer)
        self.variables: set[str] = set()
        self.varies = False
        self._switches: list[str] = []
        if self.source is not None:
            from transformers.utils.chat_template_utils import _compile_jinja_template  # loads torch

            tree = _compile_jinja_template(self.source).environment.parse(self.source)
            self.variables = {name.name for name in tree.find_all(nodes.Name)}
            by_chance = any(used.name == "random" for used in tree.find_all(nodes.Filter))
            self.varies = by_chance or bool(self.variables & {"strftime_now", "lipsum"})
            self._switches = sorted((s for s in _constants(tree) if not self.control.search(s)), key=len, reverse=True)
        # Longer ones first; of all, also those that overlap.
        self._switch = re.compile(f"(?=({'|'.join(map(re.escape, self._switches)) or '(?!)'}))", re.IGNORECASE)
        self._folded = [switch.lower() for switch in self._switches]
        self._of: Callable[[Shape], str] = self._rendered if self.varies else lru_cache(maxsize=256)(self._rendered)

    def pieces(self, text: str, heeded: bool) -> tuple[Piece, ...]:
        """Cut a text as the template gets it. heeded: whether switches in it count.

        Blanks around it are the template's to take away.
        """
        pieces: list[Piece] = []
        at = 0
        for start, end in [*(self._spans(text) if heeded else ()), (len(text), len(text))]:
            gap = text[at:start]
            core = gap if self._blank_is_control else gap.strip()
            before, _, after = gap.partition(core) if core else (gap, "", "")
            pieces += [(before, "ours"), (core, "hidden"), (after, "ours"), (text[start:end], "seen")]
            at = end
        return tuple(piece for piece in pieces if piece[0])

    def render(self, turns: Sequence[Turn]) -> tuple[str, dict[str, str]]:
        """Return what the template writes, with stand-ins, and the texts that these stand for.

        Characters of a text that are not behind a stand-in make no control token in it.
        """
        shape = tuple(
            (role, tuple((None if kind == "hidden" else text, kind) for text, kind in pieces)) for role, pieces in turns
        )
        texts = [text for _, pieces in turns for text, kind in pieces if kind != "ours"]
        length = sum(len(text or "") for _, pieces in shape for text, _ in pieces)
        rendered = self._of(shape) if length <= KEPT_CHARACTERS else self._rendered(shape)
        return rendered, {stand_in(i): text for i, text in enumerate(texts)}

    @staticmethod
    def start(rendered: str, turns: Sequence[Turn]) -> int:
        """Find where in it the first message that is not the system's begins; 0 where nothing of it can be found."""
        systems = list(takewhile(lambda turn: turn[0] == "system", turns))
        n = sum(kind != "ours" for _, pieces in systems for _, kind in pieces)
        own = turns[len(systems)][1] if len(systems) < len(turns) else ()
        blank = own[0][0] if own and own[0][1] == "ours" else ""
        for i, kind in enumerate(kind for _, kind in own if kind != "ours"):
            if kind == "hidden" and (at := rendered.find(stand_in(n + i))) >= 0:
                return at - len(blank) if rendered.endswith(blank, 0, at) else at
        return 0

    def write(self, messages: Sequence[tuple[str, str]]) -> str:
        """Write the template of plain (role, text)."""
        if self.source is None:
            return "".join(f"{text}\n\n" for _, text in messages) + "Answer:"
        turns = [{"role": role, "content": text} for role, text in messages]
        try:
            return str(self._tokenizer.apply_chat_template(turns, tokenize=False, **OPTIONS))
        except Exception:  # templates raise their own errors where they know no system role
            if turns[0]["role"] != "system" or len(turns) < 2:
                raise
            turns[1]["content"] = f"{turns[0]['content']}\n\n{turns[1]['content']}"
            return str(self._tokenizer.apply_chat_template(turns[1:], tokenize=False, **OPTIONS))

    def _rendered(self, shape: Shape) -> str:
        def written(show: Callable[[str, str], str]) -> str:
            messages, n = [], 0
            for role, pieces in shape:
                content = ""
                for text, kind in pieces:
                    content += text if text is not None and kind == "ours" else show(text or "", stand_in(n))
                    n += kind != "ours"
                messages.append((role, content))
            return self.write(messages)

        seen = {text for _, pieces in shape for text, kind in pieces if text is not None and kind == "seen"}
        unseen = written(lambda text, stand_in: stand_in)
        bare = written(lambda text, stand_in: text or stand_in) if seen else unseen
        # A template that cuts a text at a switch may lose what must be found again.
        if seen and all(bare.count(place) == unseen.count(place) for place in (DOCUMENTS, ANSWER)):
            fenced = written(lambda text, stand_in: f"{FENCE}{text}{FENCE}" if text else stand_in)
            if fenced.replace(FENCE, "") == bare:
                return fenced
            # The template asks how a text begins or ends, or cuts it. A control token in what it writes is its own
            # unless something of a text could be a part of it.
            if not any(_overlap(text, token) for text in seen for token in set(self.control.findall(bare))):
                return bare
        return unseen

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Find where the template's switches are in a text, those that touch as one."""
        folded = text.lower()
        if not any(switch in folded for switch in self._folded):
            return []
        spans: list[tuple[int, int]] = []
        for found in self._switch.finditer(text):
            start, end = found.span(1)
            if spans and start <= spans[-1][1]:
                spans[-1] = spans[-1][0], max(end, spans[-1][1])
            else:
                spans.append((start, end))
        harmless = len(spans) <= MOST_SEEN and not any(self.control.search(text, *span) for span in spans)
        return spans if harmless else []


def _source(tokenizer: Any) -> str | None:
    if not tokenizer.chat_template:
        return None
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:
        raise ModelNotReady(f"the model's tokenizer has no chat template that can be used: {error}") from error


def _constants(tree: nodes.Template) -> set[str]:
    """Collect the strings of a template's code that it may look for in a text: not keys, and
    not what a role is compared with."""
    of_keys = [found.arg for found in tree.find_all(nodes.Getitem)]
    of_roles = [operand.expr for one in tree.find_all(nodes.Compare) if _is_role(one.expr) for operand in one.ops]
    aside = {id(node) for node in (*of_keys, *of_roles)}
    constants = [found for found in tree.find_all(nodes.Const) if id(found) not in aside]
    return {found.value for found in constants if isinstance(found.value, str) and found.value.strip()}


def _is_role(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "role"
    return isinstance(node, nodes.Getattr) and node.attr == "role"


def _overlap(text: str, token: str) -> bool:
    """Return whether one is in the other, or one ends as the other begins."""
    short = range(1, min(len(text), len(token)))
    return text in token or token in text or any(text[-n:] == token[:n] or token[-n:] == text[:n] for n in short)
