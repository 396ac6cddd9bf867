"""From logits to the next token of each request."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hypic_rag.engine.policy import Sampling


def draw_each(logits: Sequence[Tensor], how: Sequence[tuple[Sampling, torch.Generator | None]]) -> list[int]:
    """Draw of each row (vocabulary,) as ``draw`` does; greedy ones together, since a GPU is waited for each time."""
    greedy = [i for i, (sampling, _) in enumerate(how) if sampling.temperature == 0]
    tokens: dict[int, int] = {}
    if greedy:
        likeliest = torch.stack([logits[i] for i in greedy]).argmax(-1).tolist()
        tokens = dict(zip(greedy, likeliest, strict=True))
    return [tokens[i] if i in tokens else draw(row, *how[i]) for i, row in enumerate(logits)]


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator | None) -> int:
    """Draw a token's id. logits: (vocabulary,). Greedy at temperature 0, else nucleus sampling (arXiv 1904.09751)."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    logits = logits.double().cpu()
    probabilities = ((logits - logits.max()) / sampling.temperature).softmax(-1)  # a tiny temperature stays finite
    if sampling.top_p < 1:
        ordered, index = probabilities.sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered >= sampling.top_p  # the first token always stays
        probabilities[index[beyond]] = 0
    return int(torch.multinomial(probabilities, 1, generator=generator))
