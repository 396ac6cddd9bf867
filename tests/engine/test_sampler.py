"""Drawing tokens."""

import torch

from hypic_rag.engine import Sampling
from hypic_rag.engine.sampler import draw, draw_each


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
