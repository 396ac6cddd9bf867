"""From logits to the next token of each request."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hypic_rag.engine.outputs import TokenLogprobs
from hypic_rag.engine.policy import Sampling


def draw_each(logits: Sequence[Tensor], how: Sequence[tuple[Sampling, torch.Generator | None]]) -> list[int]:
    """Draw of each row (vocabulary,) as ``draw`` does; greedy ones together, since a GPU is waited for each time."""
    greedy = [i for i, (one, _) in enumerate(how) if one.temperature == 0 and one.takes_logits_as_they_are]
    tokens: dict[int, int] = {}
    if greedy:
        likeliest = torch.stack([logits[i] for i in greedy]).argmax(-1).tolist()
        tokens = dict(zip(greedy, likeliest, strict=True))
    return [tokens[i] if i in tokens else draw(row, *how[i]) for i, row in enumerate(logits)]


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator | None) -> int:
    """Draw a token's id. logits: (vocabulary,). Greedy at temperature 0, else among the likeliest: ``top_k`` of them,
    then a nucleus (arXiv 1904.09751), then those that ``min_p`` leaves (arXiv 2407.01082)."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(probabilities(logits, sampling), 1, generator=generator))


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return (vocabulary,) float64 on the CPU, what is drawn from; they need not add up to 1."""
    logits = logits.double().cpu()
    found = ((logits - logits.max()) / sampling.temperature).softmax(-1)  # a tiny temperature stays finite
    if 0 < sampling.top_k < len(found):
        found[found < found.topk(sampling.top_k).values[-1]] = 0  # equals of the last one stay
        found /= found.sum()
    if sampling.top_p < 1:
        ordered, index = found.sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered >= sampling.top_p  # the first token always stays
        found[index[beyond]] = 0
    if sampling.min_p > 0:
        found[found < sampling.min_p * found.max()] = 0
    return found


def logprobs_of(logits: Tensor, token: int, n_top: int) -> TokenLogprobs:
    """Tell the log-probability of a token and of the ``n_top`` likeliest, the likeliest first. logits: (vocabulary,),
    as the model gives them."""
    logprobs = logits.float().log_softmax(-1)
    top = logprobs.topk(min(n_top, len(logprobs)))
    of_top = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return TokenLogprobs(token, float(logprobs[token]), of_top)
