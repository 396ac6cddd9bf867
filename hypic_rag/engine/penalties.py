"""What is done to logits before a token is drawn: biases, penalties for what was said, ends that come too early."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from hypic_rag.engine.policy import Sampling


def adjusted(logits: Tensor, sampling: Sampling, ends: Collection[int], seen: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return logits (vocabulary,) float64 on the CPU; ``logits``, those of the model, are not changed.

    ends: tokens that end the answer. seen: ids of the prompt, each once. tokens: of the answer so far.
    Oracles: transformers' LogitsProcessors, and the formula of OpenAI's documentation (test_penalties.py).
    """
    logits = logits.to("cpu", torch.float64, copy=True)
    said, counts = torch.tensor(tokens, dtype=torch.long).unique(return_counts=True)
    if sampling.repetition_penalty != 1:
        heard = torch.cat((seen, said)).unique()
        of_heard = logits[heard]
        logits[heard] = torch.where(
            of_heard > 0, of_heard / sampling.repetition_penalty, of_heard * sampling.repetition_penalty
        )
    logits[said] -= sampling.frequency_penalty * counts.double() + sampling.presence_penalty
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    if len(tokens) < sampling.min_tokens and ends:
        logits[list(ends)] = -torch.inf
    return logits
