"""The two-stream form: an oracle of the assembled forward, run by the plain Hugging Face model itself.

One stream holds every cached segment in isolation, all of its tokens; the other the active rows. Both go through
the plain model in one forward, where norms, experts and attention are Hugging Face's own: a 4-D mask lets an
isolated row see its own segment, and an active row the earlier interiors and active rows. All rows stand at their
global positions (attention only knows differences), so that no query is turned. Every linear mixer steps through
its own decoding path, token by token, over the whole prompt, with the active rows' inputs in place of the isolated
ones: nothing is composed, and no chunk is formed.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from hypic_rag.engine.assemble import cached_seam
from hypic_rag.engine.policy import Policy
from hypic_rag.prompt import Prompt


@dataclass(frozen=True)
class Piece:
    """A part of the prompt at its place in the rows of both streams. ``seam``: None where all rows are live.

    isolated, active: rows of the forward. prefix: how many isolated rows stand before the segment itself.
    """

    offset: int
    n: int
    seam: int | None
    isolated: range
    active: range
    prefix: int = 0

    @property
    def before(self) -> range:
        return self.isolated[: self.prefix + (self.seam or 0)]

    @property
    def interior(self) -> range:
        return self.isolated[self.prefix + (self.seam or 0) :]


@torch.no_grad()
def logits(
    plain: Any,
    prompt: Prompt,
    policy: Policy,
    mixers: Callable[[Any], dict[str, nn.Module]],
    stepped: "type[Stepped] | None" = None,
) -> Tensor:
    """Logits (n_active, vocabulary) of all active rows.

    mixers: of a model, the modules to step through, by their dotted names. stepped: how, Stepped unless given.
    """
    ids: list[int] = []
    positions: list[int] = []
    pieces: list[Piece] = []
    offset = 0
    for part in prompt.parts:
        seam = cached_seam(part, policy)
        n_active, n_isolated = (len(part.ids), 0) if seam is None else (seam, len(part.ids))
        prefix = policy.isolation_prefix if part.kind == "document" and n_isolated else ()
        first, middle = len(ids), len(ids) + len(prefix) + n_isolated
        ids += prefix + part.ids[:n_isolated] + part.ids[:n_active]
        positions += [*range(offset - len(prefix), offset + n_isolated), *range(offset, offset + n_active)]
        rows = range(first, middle), range(middle, middle + n_active)
        pieces.append(Piece(offset, len(part.ids), seam, *rows, len(prefix)))
        offset += len(part.ids)
    model = copy.deepcopy(plain)
    for name, module in mixers(model).items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, (stepped or Stepped)(module, pieces, policy, model.config))
    at = torch.tensor(positions, device=plain.device)
    seen = _seen(pieces, at)
    out = model(
        input_ids=torch.tensor([ids], device=plain.device),
        position_ids=at[None],
        attention_mask=_masks(model, seen, at),
        use_cache=False,
    )
    return out.logits[0, torch.tensor([row for piece in pieces for row in piece.active])]


def _seen(pieces: list[Piece], at: Tensor) -> Tensor:
    """(N, N), True where a row sees another."""
    owner = torch.full_like(at, -1)  # of isolated rows, their piece
    interior = torch.zeros_like(at, dtype=torch.bool)
    for i, piece in enumerate(pieces):
        owner[list(piece.isolated)] = i
        interior[list(piece.interior)] = True
    active = owner < 0
    same = (owner[:, None] == owner) & ~active
    return (at <= at[:, None]) & (same | (active[:, None] & (active | interior)))


def _masks(model: Any, seen: Tensor, at: Tensor) -> Any:
    """As the model's own forward makes them: one, or one a layer type."""
    config = model.config.get_text_config()

    def additive(seen: Tensor) -> Tensor:
        hidden = torch.finfo(torch.float32).min
        return torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, hidden)[None, None]

    window = getattr(config, "sliding_window", None) or None  # some have 0 for none
    near = seen if window is None else seen & (at[:, None] - at < window)
    kinds = set(getattr(config, "layer_types", None) or ())
    if {"full_attention", "sliding_attention"} <= kinds:  # what else there is needs none
        return dict.fromkeys(kinds) | {"full_attention": additive(seen), "sliding_attention": additive(near)}
    return additive(near)


class Stepped(nn.Module):
    """A Hugging Face mixer over both streams, one token at a time through its own cache."""

    def __init__(self, original: Any, pieces: list[Piece], policy: Policy, config: Any):
        super().__init__()
        self.original, self.pieces, self.policy, self.config = original, pieces, policy, config
        accepted = inspect.signature(original.forward).parameters
        self.keyword = next(n for n in ("cache", "cache_params", "past_key_values", "past_key_value") if n in accepted)
        self.returns = 1

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        x = hidden_states[0]
        out = torch.zeros_like(x)
        live = self.fresh()
        for piece in self.pieces:
            self.run(live, x, piece.active, out)
            if piece.seam is None:
                continue
            alone = self.fresh()
            self.run(alone, x, piece.before, out)
            self.compose(live, alone, x, piece)
            self.run(alone, x, piece.interior, out)
            self.set_tail(live, self.tail(alone))
        result = out[None]
        return result if self.returns == 1 else (result, *[None] * (self.returns - 1))

    def compose(self, live: Any, alone: Any, x: Tensor, piece: Piece) -> None:
        """Move the live state over an interior; ``alone`` stands at its beginning."""
        before = copy.deepcopy(live)
        moved = live if self.policy.compose == "exact" else self.fresh()
        if self.started(alone):
            if not self.started(moved):
                moved = copy.deepcopy(alone)
                self.set_state(moved, None)
            self.set_tail(moved, self.tail(alone))
        elif self.started(moved):
            self.set_tail(moved, None)
        self.run(moved, x, piece.interior, torch.zeros_like(x))
        added = self.state(before) if self.policy.compose == "add" and self.started(before) else None
        if added is not None:
            self.set_state(moved, self.state(moved) + added)
        if moved is not live:
            live.layers = moved.layers

    def run(self, cache: Any, x: Tensor, rows: range, out: Tensor) -> None:
        for row in rows:
            y = self.original(x[row][None, None], **{self.keyword: cache})
            if isinstance(y, tuple):
                self.returns, y = len(y), y[0]
            out[row] = y[0, 0]

    # The one place that knows how Hugging Face keeps a mixer's state; None stands for zeros.

    def fresh(self) -> Any:
        return DynamicCache(config=self.config)

    def of(self, cache: Any) -> Any:
        return cache.layers[self.original.layer_idx]

    def started(self, cache: Any) -> bool:
        return any(self.of(cache).has_previous_state.values())

    def state(self, cache: Any) -> Tensor | None:
        return self.of(cache).recurrent_states[0]

    def set_state(self, cache: Any, state: Tensor | None) -> None:
        kept = self.of(cache).recurrent_states
        if kept[0] is not None:
            kept[0] = torch.zeros_like(kept[0]) if state is None else state

    def tail(self, cache: Any) -> Any:
        return {i: None if t is None else t.clone() for i, t in self.of(cache).conv_states.items()}

    def set_tail(self, cache: Any, tail: Any) -> None:
        kept = self.of(cache).conv_states
        for i, t in kept.items():
            if t is not None:
                kept[i] = torch.zeros_like(t) if tail is None or tail[i] is None else tail[i].clone()
