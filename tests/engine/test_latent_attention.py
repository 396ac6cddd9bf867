"""An attention layer that reads latents keeps one latent and one shared key a token, not a key and a value a head."""

import cases
import pytest
import tiny

from hypic_rag import Policy, SegmentEngine
from hypic_rag.engine import assemble
from hypic_rag.engine.backends.base import SequenceRequest
from hypic_rag.engine.layers import AttentionLayer
from hypic_rag.prompt import Part, Prompt

SEAM = 8


@pytest.fixture(params=["kimi_linear", "bailing_hybrid"])
def engine(request: pytest.FixtureRequest) -> SegmentEngine:
    model = cases.all_cases()[request.param].build("hypic")
    return SegmentEngine(model, tiny.tokenizer(), name=request.param, fingerprint=request.param)


@pytest.mark.parametrize("n", [SEAM + 1, 50])
def test_an_entry_holds_the_latent_alone(engine: SegmentEngine, n: int) -> None:
    config = engine.model.config
    [entry] = engine.segments.fetch([(Part("document", tiny.ids(n, n)), SEAM)]).entries.values()
    latents = [layer for layer in entry.layers if layer.family == "latent_attention"]
    assert len(latents) == config.layer_types.count("full_attention") > 0
    for layer in latents:
        shapes = {name: tuple(tensor.shape) for name, tensor in layer.tensors.items()}
        assert shapes == {"latent": (1, n - SEAM, config.kv_lora_rank + config.qk_rope_head_dim)}
    assert engine.cache_spec.misfit(entry) is None
    assert entry.nbytes == engine.entry_bytes(n)


def test_a_sequence_holds_the_latent_alone(engine: SegmentEngine) -> None:
    """Its own rows, too: no values beside the keys."""
    ask = Prompt.build(tiny.ids(5, 1), [tiny.ids(20, 2)], tiny.ids(4, 3))
    [one] = engine.backend.start([SequenceRequest(ask, Policy(seam_tokens=SEAM), 1, engine.segments, resumes=False)])
    active = one.scheduled
    assemble.run(engine.model, engine.cache_spec, [active], [range(1)])
    slots = [i for i, layer in enumerate(engine.cache_spec.layers) if isinstance(layer, AttentionLayer)]
    assert sorted(active.state.kv) == slots
    for i in slots:
        kept, layer = active.state.kv[i], engine.cache_spec.layers[i]
        assert kept.n == len(active.ids) and kept.values is None
        assert kept.keys.shape[0] == 1 and kept.keys.shape[2] == layer.k_dim
