"""Pools, kernels and the runner against the engine's own way in torch: the same logits, whatever shares the pools.

On a CPU the kernels run in Triton's interpreter: TRITON_INTERPRET=1 pytest tests/engine/on_device (needs triton).
On a GPU: HYPIC_TEST_DEVICE=cuda pytest tests/engine/on_device
"""

import os
from functools import cache
from typing import Any

import cases
import pytest
import tiny
import torch

pytest.importorskip("triton", reason="pip install triton==3.7.1")
DEVICE = os.environ.get("HYPIC_TEST_DEVICE", "cpu")
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("on a CPU the kernels need TRITON_INTERPRET=1", allow_module_level=True)

from hypic_rag import Policy, Sampling, SegmentEngine  # noqa: E402
from hypic_rag.cache import Entry, Hit, LayerEntry  # noqa: E402
from hypic_rag.cache.tiers.device import DevicePool  # noqa: E402
from hypic_rag.engine.backends.base import SequenceRequest  # noqa: E402
from hypic_rag.errors import RequestTooLarge  # noqa: E402
from hypic_rag.prompt import Part, Prompt  # noqa: E402

KINDS = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
FAMILIES: dict[str, dict[str, Any]] = {  # the others that run here, and their layers in the interpreter
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention"], "num_hidden_layers": 3},
    "falcon_h1": {"num_hidden_layers": 1},
    "zamba2 two blocks, adapters, rotary": {
        "layers_block_type": ["hybrid"], "num_hidden_layers": 1, "num_mem_blocks": 1,
    },
    "mamba2": {"num_hidden_layers": 1},  # keeps nothing a token
    "lfm2_bias": {"layer_types": ["conv", "full_attention"]},
    "llama_one_key_head": {"num_hidden_layers": 1},  # no linear layer
    "minimax": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba dense": {
        "attn_layer_period": 2, "attn_layer_offset": 1, "hidden_size": 16, "num_attention_heads": 1,
        "num_key_value_heads": 1, "mamba_expand": 1,
    },
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {kind: {"linear_value_head_dim": 16} for kind in KINDS}
SEAM, SHORT, LONG, N_NEW = 8, (70, 5, 33), 300, 4
FEW, TIMES = SHORT, 3  # a pass, its capture as a graph, a replay
if DEVICE == "cpu":  # the interpreter takes 20 ms a program: three a row in a linear layer, five in the other
    two_layers = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    CHANGES = {kind: {**changes, **two_layers} for kind, changes in CHANGES.items()}
    CHANGES |= {kind: {"num_hidden_layers": 2, **changes} for kind, changes in FAMILIES.items()}
    SEAM, SHORT, LONG, N_NEW = 4, (9, 3, 7), 20, 3
    FEW, TIMES = (6,), 1
MEMORY, SCARCE = 64 << 20, 1 << 20
TOLERANCE = 1e-4 if DEVICE == "cpu" else 2e-4
"""Of logits with a spread of about one: float32 sums in another order."""
LEADING = tiny.ids(5, 1)
EXACT, FULL = Policy(seam_tokens=SEAM), Policy("full")
POLICIES = {
    "exact": EXACT,
    "last_state": Policy(seam_tokens=SEAM, compose="last_state"),
    "add": Policy(seam_tokens=SEAM, compose="add"),
    "full": FULL,  # more rows than a run of the recurrence has
}


def prompt(*lengths: int, question: int = 2) -> Prompt:
    return Prompt.build(LEADING, [tiny.ids(n, n) for n in lengths], tiny.ids(4, question))


def new_engine(kind: str, memory: int = MEMORY, **options: Any) -> SegmentEngine:
    model = cases.all_cases()[kind].build("hypic", **CHANGES.get(kind, {}))
    options = {"name": kind, "fingerprint": kind, "device_memory": memory, **options}
    return SegmentEngine(model, tiny.tokenizer(), **options)


@cache
def pooled(kind: str) -> SegmentEngine:
    engine = new_engine(kind)
    assert engine.pool is not None
    return engine


@cache
def in_torch(kind: str) -> SegmentEngine:
    engine = new_engine(kind, memory=0)
    assert engine.pool is None
    return engine


def logits(engine: SegmentEngine, ask: Prompt, policy: Policy, resume: bool = False) -> torch.Tensor:
    """Of all active rows, on the CPU."""
    [one] = engine.backend.start([SequenceRequest(ask, policy, 1, engine.segments, resumes=resume)])
    active = one.scheduled
    made = engine.backend.run([active], [range(len(active.ids))])[0].float().cpu()
    active.state.release()
    return made


def assert_equals_torch(kind: str, ask: Prompt, policy: Policy) -> None:
    ours, theirs = (logits(engine, ask, policy) for engine in (pooled(kind), in_torch(kind)))
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < TOLERANCE


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS if DEVICE == "cuda" else KINDS[:1])
def test_equals_torch(kind: str, policy: str) -> None:
    assert_equals_torch(kind, prompt(*SHORT), POLICIES[policy])


@pytest.mark.parametrize("kind", KINDS[1:])
def test_other_kinds_equal_torch(kind: str) -> None:
    assert_equals_torch(kind, prompt(SHORT[-1]), EXACT)


@pytest.mark.parametrize("kind", FAMILIES)
def test_other_families_equal_torch(kind: str) -> None:
    for _ in range(TIMES):
        assert_equals_torch(kind, prompt(*FEW), EXACT)


@pytest.mark.parametrize("policy", ["last_state", "add"])
@pytest.mark.parametrize("kind", ["mamba2", "minimax", "jamba dense"] if DEVICE == "cuda" else ["mamba2"])
def test_other_families_compose(kind: str, policy: str) -> None:
    assert_equals_torch(kind, prompt(*FEW), POLICIES[policy])


EDGES = {
    "no document": (),
    "one token": (1,),
    "two runs before a cached interior": (SEAM - 1, SEAM, SEAM, SEAM, SEAM + 1, 3),
    "interiors of one token": (SEAM + 1,) * 3,
    "a long one": (LONG,),
}


@pytest.mark.parametrize("lengths", EDGES.values(), ids=EDGES)
def test_edge_lengths(lengths: tuple[int, ...]) -> None:
    assert_equals_torch(KINDS[0], prompt(*lengths), EXACT)


@pytest.mark.parametrize("kind", [KINDS[0], "mamba2"])
def test_more_rows_than_a_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hypic_rag.engine.device.model_runner.MAX_ROWS", 6)
    assert_equals_torch(kind, prompt(*SHORT), EXACT)


@pytest.mark.parametrize("kind", [KINDS[0], "mamba2"])
def test_requests_together_equal_each_alone(kind: str) -> None:
    asked = [
        (prompt(*SHORT), EXACT),
        (prompt(2), FULL),
        (prompt(), EXACT),
        (prompt(SHORT[0], question=3), POLICIES["last_state"]),
    ]
    sampling = Sampling(max_new_tokens=N_NEW)
    alone = [in_torch(kind).generate(p, sampling, policy).token_ids for p, policy in asked]
    engine, ids, together = pooled(kind), [], {}
    for p, policy in asked:
        ids.append(engine.add_request(p, sampling, policy))
        for output in engine.step():  # the earlier ones are decoding when this one joins
            together[output.request_id] = output
    while engine.has_work:
        together |= {output.request_id: output for output in engine.step()}
    assert [together[i].generation.token_ids for i in ids] == alone


@pytest.mark.parametrize("kind", [KINDS[0], "mamba2"])
def test_a_conversation_resumes_where_it_ended(kind: str) -> None:
    first, sampling, seen = prompt(SHORT[0]), Sampling(max_new_tokens=N_NEW), []
    for engine in (pooled(kind), in_torch(kind)):
        said = engine.generate(first, sampling, EXACT).token_ids
        second = Prompt((*first.parts[:-1], Part("live", first.parts[-1].ids + said + tiny.ids(4, 7))))
        resumed = logits(engine, second, EXACT, resume=True)
        assert len(resumed) == 1 + 4  # the last drawn token was never run
        again = engine.generate(second, sampling, EXACT)
        assert again.report.resumed_tokens == second.n_tokens - len(resumed)
        while engine.conversations.drop():
            pass
        seen += [resumed, logits(engine, second, EXACT, resume=True)[-len(resumed) :]]
    for other in seen[1:]:
        assert (other - seen[0]).abs().max() < TOLERANCE
    assert seen[0][-1].argmax() == again.token_ids[0]


def test_warm_segments_come_from_the_device() -> None:
    engine = new_engine(KINDS[0])
    cold, warm = (engine.generate(prompt(*SHORT), Sampling(max_new_tokens=2), EXACT) for _ in range(2))
    assert [use.tier for use in cold.report.segments] == [None, "live", None]
    assert [use.tier for use in warm.report.segments] == ["device", "live", "device"]
    assert warm.token_ids == cold.token_ids


def test_what_is_discarded_leaves_the_device() -> None:
    engine, ask = new_engine(KINDS[0]), prompt(SHORT[0])
    engine.generate(ask, Sampling(max_new_tokens=1), EXACT)
    n_before = engine.cache.stats().tiers["device"].n_entries
    assert n_before == 2  # the leading segment and the document
    assert engine.cache.discard([engine.segment_key(ask.documents[0], policy=EXACT).digest]) == 1
    assert engine.cache.stats().tiers["device"].n_entries == 1
    again = engine.generate(ask, Sampling(max_new_tokens=1), POLICIES["last_state"])
    assert [use.tier for use in again.report.segments] == [None]


def test_what_never_fits_is_refused_and_others_go_on() -> None:
    engine = new_engine(KINDS[0], memory=SCARCE)
    huge = Prompt.build(LEADING, [tiny.ids(1500, n) for n in range(5)], tiny.ids(4, 2))
    with pytest.raises(RequestTooLarge, match="--device-memory"):
        engine.generate(huge, Sampling(max_new_tokens=2))
    with pytest.raises(RequestTooLarge, match="--device-memory"):
        engine.score(huge, (3,))
    number = engine.add_request(huge, Sampling(max_new_tokens=2))
    [output] = engine.step()
    assert output.request_id == number and "--device-memory" in str(output.error) and not engine.has_work
    small, sampling = prompt(SHORT[1]), Sampling(max_new_tokens=2)
    expected = in_torch(KINDS[0]).generate(small, sampling, EXACT).token_ids
    assert engine.generate(small, sampling, EXACT).token_ids == expected
    assert not engine.has_work


def in_host_memory(entry: Entry) -> Entry:
    """The same entry as a kernel can read it from there: pinned, and keys and values token by token."""
    layers = []
    for layer in entry.layers:
        made = {}
        for name, t in layer.tensors.items():
            lies = t.transpose(0, 1) if name in ("K", "V") else t
            pinned = torch.empty(lies.shape, dtype=t.dtype, pin_memory=DEVICE == "cuda").copy_(lies)
            made[name] = pinned.transpose(0, 1) if name in ("K", "V") else pinned
        layers.append(LayerEntry(layer.family, made))
    return Entry(entry.n_tokens, entry.seam_tokens, tuple(layers))


def from_the_host(engine: SegmentEngine, ask: Prompt, n_cycles: int) -> torch.Tensor:
    """Logits where all entries are on their way when the pass begins, ``n_cycles`` of the GPU late."""
    assert engine.pool is not None
    pool = engine.pool
    pool.clear()
    for layer in pool.layers:
        for t in (*layer.slots.values(), *layer.tokens.values(), layer.matrices):
            if t is not None:
                t.fill_(float("nan"))
    for kind, ids in (("leading", LEADING), *(("document", ids) for ids in ask.documents if len(ids) > SEAM)):
        key = engine.segment_key(ids, kind, EXACT)  # type: ignore[arg-type]
        found = engine.cache.lookup(key)
        assert isinstance(found, Hit)
        entry = in_host_memory(found.entry)
        assert pool.put(key.digest, entry) is not None
        if DEVICE == "cuda":
            assert not any(pool._arrivals.outlines.of(entry, 0.0).others)
    if n_cycles:
        with torch.cuda.stream(pool._arrivals.stream):
            torch.cuda._sleep(n_cycles)
    return logits(engine, ask, EXACT)


def test_entries_on_their_way_from_host_memory_give_the_same_bits() -> None:
    engine, ask = new_engine(KINDS[0]), prompt(*SHORT)
    logits(engine, ask, EXACT)
    assert torch.equal(from_the_host(engine, ask, 0), logits(engine, ask, EXACT))


LATE = 200_000_000
"""Cycles: a tenth of a second, where a pass takes a hundredth."""


@pytest.mark.skipif(DEVICE != "cuda", reason="streams are CUDA's: HYPIC_TEST_DEVICE=cuda")
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "kernel by kernel"])
def test_a_pass_waits_for_entries_however_late(graphs: bool) -> None:
    engine, ask = new_engine(KINDS[0], graphs=graphs), prompt(*SHORT)
    warm = [logits(engine, ask, EXACT) for _ in range(3)]  # launched, captured, replayed
    assert all(torch.equal(other, warm[0]) for other in warm)
    for _ in range(3):
        assert torch.equal(from_the_host(engine, ask, LATE), warm[0])
    assert torch.equal(logits(engine, ask, EXACT), warm[0])
    first = new_engine(KINDS[0], graphs=graphs, cache=engine.cache)  # its first passes have entries on their way
    for _ in range(3):
        assert torch.equal(from_the_host(first, ask, LATE), warm[0])


@pytest.mark.skipif(DEVICE != "cuda", reason="streams are CUDA's: HYPIC_TEST_DEVICE=cuda")
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "kernel by kernel"])
def test_a_pass_that_did_not_wait_would_differ(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DevicePool, "wait", lambda *_: None)
    engine, ask = new_engine(KINDS[0], graphs=graphs), prompt(*SHORT)
    warm = [logits(engine, ask, EXACT) for _ in range(3)][-1]
    assert warm.isfinite().all()
    assert not torch.equal(from_the_host(engine, ask, LATE), warm)


@pytest.mark.skipif(DEVICE != "cuda", reason="on a CPU nothing is behind: HYPIC_TEST_DEVICE=cuda")
def test_a_prompt_of_several_passes_while_the_device_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share a bucket, whose arrays on the host must not be filled for the next pass before they have been sent."""
    monkeypatch.setattr("hypic_rag.engine.device.model_runner.MAX_ROWS", 32)
    engine, ask = new_engine(KINDS[0]), prompt(LONG)
    want = logits(in_torch(KINDS[0]), ask, FULL)
    for _ in range(3):  # launched, captured, replayed
        assert (logits(engine, ask, FULL) - want).abs().max() < TOLERANCE
    torch.cuda._sleep(LATE)
    assert (logits(engine, ask, FULL) - want).abs().max() < TOLERANCE
