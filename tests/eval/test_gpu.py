"""The GPU's figures in miniature on a CPU: every path runs, and what a figure rests on is checked."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypic_eval.cli import main
from hypic_eval.commands import gpu as command
from hypic_eval.gpu import page, shape
from hypic_eval.gpu.bench import Bench, WorkloadSizes, make
from hypic_eval.gpu.checks import Check
from hypic_eval.gpu.figures import decode, load, prefill, storage, ttft
from hypic_eval.gpu.plain import PlainCopy, Way, relative_error
from hypic_eval.gpu.roofline import active_rows, experts_touched, weight_bytes
from hypic_eval.gpu.run import FIGURES, void_where
from hypic_eval.gpu.trace import lines, read
from hypic_eval.results import Results
from hypic_eval.ttft import WrongPath

from hypic_rag.cache import Entry, LayerEntry, codec_named
from hypic_rag.prompt import Prompt

CPU = torch.device("cpu")
TINY = WorkloadSizes(segments=(2, 3), tokens=24, question=9, repetitions=1, requests=2, decoded=2)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return make("tiny", shape.config_of("tiny"), TINY, CPU, torch.float32, None, counts=False, say=lambda text: None)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hypic-eval", "gpu", *arguments])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_every_figure_runs_on_a_cpu_in_miniature(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "gpu.json"
    small = ["--segments", "2,3", "--tokens", "24", "--question", "9", "--n", "1", "--requests", "2"]
    code = run(monkeypatch, "--shape", "tiny", "--device", "cpu", *small, "--out", str(out))
    told = capsys.readouterr()
    assert code == 0, told.err
    results = Results.load(out)
    assert [row.goal for row in results.rows] == [None] * len(results.rows)  # no goal is met by a tiny model
    assert {row.settings["how"] for row in results.rows} >= {ttft.HOW_WARM}
    assert all(detail[""] == "holds" for detail in results.details) and len(results.details) == 7
    saved = json.loads(out.read_text())["rows"]
    assert {row["mode"] for row in saved} == {
        *("warm", "full", "half misses", "prefill", "spliced", "contiguous", "dead T"),
        *("codec none", "codec none, without dead T", "codec int8", "codec int8-kv8"),
    }
    kernels = results.samples["kernels of prefill"]
    assert list(kernels) == ["with (T, S)", "without, in the same passes"]
    assert all(0 < len(by_name) <= 25 for by_name in kernels.values())
    steps = [name for name in results.samples if name.startswith("kernels of a step: ")]
    assert [name.split()[4] for name in steps] == ["1", "2"]
    assert told.out.startswith("| figure | goal | value | floor | n | how it was measured |")
    assert "figure load: saved" in told.err
    assert main_table(monkeypatch, capsys, out) == told.out


def main_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], out: Path) -> str:
    monkeypatch.setattr(sys, "argv", ["hypic-eval", "table", str(out)])
    with pytest.raises(SystemExit):
        main()
    return capsys.readouterr().out


def test_the_command_knows_the_figures_without_torch() -> None:
    assert tuple(FIGURES) == command.FIGURES


REFUSED = {
    "no GPU": (["--out", "x.json"], "needs one of 100 GB"),
    "the full shape on a CPU": (["--device", "cpu"], "add --shape tiny"),
    "an unknown figure": (["--only", "ttft,speed"], "there is no figure speed"),
    "one segment": (["--segments", "1"], "numbers of 2 or more"),
    "no number": (["--segments", "many"], "numbers of 2 or more"),
}


@pytest.mark.parametrize("arguments, told", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_measured_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(monkeypatch, *arguments) == 1
    assert told in capsys.readouterr().err


def test_the_full_shape_is_the_one_of_the_defaults() -> None:
    config = shape.config_of("full")
    kinds = config.layer_types
    assert (len(kinds), kinds.count("linear_attention"), config.hidden_size, config.num_experts) == (40, 30, 2048, 256)
    assert config.max_position_embeddings > 32 * 1024 + 64
    assert shape.config_of("full", num_hidden_layers=8, hidden_size=None).num_hidden_layers == 8


def test_memory_lives_at_512_tokens(bench: Bench) -> None:
    """Half-lives are the shape's whatever the input; 40 to 65% of T are alive."""
    ids = bench.ids(512, 9)
    bench.engine.prefill([ids])
    found: Any = bench.engine.cache.lookup(bench.engine.segment_key(ids))
    norms = torch.cat(
        [layer.tensors["T"].flatten(1).norm(dim=1) for layer in found.entry.layers if layer.family == "gdn"]
    )
    assert 0.4 <= float((norms >= 1e-4).float().mean()) <= 0.65


def test_rotation_is_not_drawn(bench: Bench) -> None:
    model = bench.plain.model
    dims = int(model.config.head_dim * 0.25)
    wanted = model.config.rope_parameters["rope_theta"] ** (-torch.arange(0, dims, 2) / dims)
    assert torch.allclose(model.model.rotary_emb.inv_freq, wanted)


def test_the_plain_model_has_the_weights_once() -> None:
    model = shape.build(shape.config_of("tiny"), CPU, torch.float32)
    plain = PlainCopy(model)
    pairs = zip(model.parameters(), plain.model.parameters(), strict=True)
    assert all(a is b for a, b in pairs)
    assert model.config._attn_implementation == "hypic"
    assert (plain.model.config._attn_implementation, plain.uses_fla) == ("sdpa", False)


def test_chunks_give_the_same_logits(bench: Bench) -> None:
    ids, plain = bench.ids(50, 1), bench.plain
    whole = plain.logits(ids)
    plain.way = Way(chunk=16)
    chunked = plain.logits(ids)
    plain.way = Way()
    assert relative_error(chunked, whole) < 1e-5
    assert relative_error(plain.logits(bench.ids(50, 2)), whole) > 0.5


def test_a_way_that_computes_something_else_is_not_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    plain, ids = bench.plain, bench.ids(40, 1)
    tried = {Way(): 1e9}
    plain._try(Way(chunk=16), ids, -plain.logits(ids), tried, told.append)
    assert list(tried) == [Way()] and "not used" in told[0]
    plain._try(Way(fused=True), ids, plain.logits(ids), tried, told.append)  # there is no fla here
    assert list(tried) == [Way()] and "ModuleNotFoundError" in told[1]
    plain.way = Way()


def test_warm_is_timed_warm_only(bench: Bench) -> None:
    prompt = Prompt.build((), [bench.ids(24, 77)], bench.ids(9, 78))
    with pytest.raises(WrongPath, match=r"should compute 17 rows, and 41 were"):
        bench.warm(prompt)
    assert bench.warm(prompt) > 0
    with pytest.raises(WrongPath, match="should have come from device, and they came from host"):
        bench.warm(prompt, "device")


def test_floor_counts_what_is_read(bench: Bench) -> None:
    prompt = Prompt.build((1, 2, 3), [bench.ids(24, 1), bench.ids(5, 2)], bench.ids(2, 3))
    assert active_rows(prompt, 8) == [*range(3, 11), *range(27, 32), 32, 33]
    touched = experts_touched(bench.plain, prompt, 8)
    assert len(touched) == 4 and all(4 <= n <= 16 for n in touched)
    model = bench.plain.model
    everything = sum(weight.nbytes for weight in model.parameters()) - model.get_input_embeddings().weight.nbytes
    assert weight_bytes(model, [16] * 4) == everything
    assert weight_bytes(model, touched) < weight_bytes(model, [n + 1 for n in touched])


def test_a_slow_baseline_does_not_count(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "counts", True)
    assert "without flash-linear-attention" in ttft.why_void(bench, 16, 400.0)
    monkeypatch.setattr(PlainCopy, "uses_fla", True)
    assert ttft.why_void(bench, 16, 400.0) == ""
    assert "more than 500 does not count" in ttft.why_void(bench, 16, 501.0)
    row = bench.row("warm", "times", "x", [11.0, 12.0, 13.0], "so", arrow="↑", goal=10, floor=20, void="it is slow")
    assert page.line(row) == [
        "warm, times",
        "≥ 10: does not count: it is slow",
        "12.00x [11.50, 12.50]",
        "20.00x",
        "3",
        "so",
    ]


def test_a_failed_check_voids_what_follows(bench: Bench) -> None:
    row = bench.row("warm", "time", "ms", 1.0, "so")
    assert void_where(row, ["figure ttft: OutOfMemoryError"]).settings["void"] == ""
    assert void_where(row, ["check: logits"]).settings["void"] == "check: logits"
    assert not Check("x", float("nan"), 1.0).holds and not Check("x", float("nan"), 1.0, at_least=True).holds


def test_a_trace_is_summed() -> None:
    def event(cat: str, name: str, ts: float = 0, dur: float = 0) -> dict[str, Any]:
        return {"cat": cat, "name": name, "ts": ts, "dur": dur}

    trace = read(
        [
            event("kernel", "a", 100, 10),
            event("kernel", "b", 105, 10),
            event("kernel", "a", 125, 5),
            event("gpu_memcpy", "Memcpy DtoH", 130, 20),
            event("cuda_runtime", "cudaLaunchKernelExC"),
            event("cuda_runtime", "cudaGraphLaunch"),
            event("cuda_driver", "cuLaunchKernelEx"),
            event("kernel", "_copies", 150, 3),
            event("kernel", "void at::native::elementwise_kernel<at::native::direct_copy_kernel_cuda>", 153, 2),
            event("cuda_runtime", "cudaMemcpyAsync"),
            {"ph": "M", "name": "process_name"},
        ],
        ("kernel",),
    )
    close: Callable[[float], Any] = lambda value: pytest.approx(value, abs=1e-9)  # noqa: E731
    assert (trace.kernel_ms, trace.copy_ms) == (close(0.027), close(0.023))
    assert (trace.span_ms(), trace.busy_ms()) == (close(0.055), close(0.045))
    assert trace.by_name()[:2] == [("Memcpy DtoH", 1, close(0.020)), ("a", 2, close(0.015))]
    assert (trace.n_launches, trace.launches["cudaLaunchKernel"]) == (3, 1)
    assert lines(trace, 1) == [{"kernel": "Memcpy DtoH", "n": 1, "ms": 0.02}]


def test_bytes_are_those_of_the_encoded_entry(bench: Bench) -> None:
    long = replace(bench, sizes=replace(TINY, tokens=600), counts=True)
    found = {row.mode: row for row in storage.measure(long)}
    engine, mib = bench.engine, 2**20
    n_heads, of_T = 12, 128 * 128
    n_dead = round(found["dead T"].value * n_heads / 100)
    assert 0 < n_dead < n_heads
    assert found["codec none"].value == engine.entry_bytes(512) / mib
    assert found["codec none, without dead T"].value == (engine.entry_bytes(512) - 4 * n_dead * of_T) / mib
    for name, goal in (("int8", 40.0), ("int8-kv8", 35.0)):
        row = found[f"codec {name}"]
        if_all_live = engine.cache_spec.entry_bytes(504, 4, codec_named(name))
        dead = n_dead * (of_T + 2 * of_T // 32 + 4 * 128)  # 8 bits, a scale for 32 of them, a diagonal
        assert row.value == (if_all_live - dead) / mib
        assert row.goal == goal and f"{n_dead} of 12 T" in row.settings["how"]
    shorter = replace(long, sizes=replace(TINY, tokens=500))
    assert [row.goal for row in storage.measure(shorter)] == [None] * 5  # the goals are of 512 tokens


def test_errors_of_a_codec_are_relative_and_of_all_layers() -> None:
    alive, dead = torch.eye(4), torch.zeros(4, 4)
    dead[0, 1] = 5e-5
    layers = [
        LayerEntry("gdn", {"T": torch.stack([alive, dead]), "S": torch.full((2, 4, 4), float(i))}) for i in (1, 2)
    ]
    layers.append(LayerEntry("attention", {"K": torch.ones(1, 2, 4), "V": torch.ones(1, 2, 4)}))
    entry = Entry(10, 8, tuple(layers))
    found = storage.errors(entry, "int8", codec_named("int8").encode(entry))
    assert list(found) == ["T", "S", "K", "V"]
    assert found["T"] == pytest.approx(5e-5 / 2, rel=1e-4)  # only dead heads are lost, beside diagonals of norm 2
    assert 0 < found["S"] < 2**-8 and found["K"] == found["V"] == 0  # S: its scale is rounded to 8 bits


def test_many_requests_have_as_many_segments_as_fit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decode.n_segments(bench, 2) == 2  # without pools
    own = 2 * 24 + 9 + 8  # of a request in full mode: segments, question, and tokens drawn
    for n_slots, n in ((2 * own / decode.SHARE, 2), (2 * own / decode.SHARE - 1, 1), (1, 1)):
        monkeypatch.setattr(Bench, "token_slots", n_slots)
        assert decode.n_segments(bench, 2) == n
    prompts, data = decode.workload(bench, 2)
    assert data == "2 requests, 1 segment of 24, question of 9"
    assert "1 segment and not 2" in decode.why_few(bench, prompts)


def test_requests_that_do_not_fit_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    step, n_running = bench.engine.step, 1
    monkeypatch.setattr(bench.engine, "step", lambda: step()[:n_running])
    before = len(bench.notes)
    found = [(row.mode, row.metric, row.data[:2]) for row in decode.measure(bench)]
    assert found == [
        ("spliced", "a token", "1 "),
        ("contiguous", "a token", "1 "),
        ("spliced", "speed of contiguous", "1 "),
    ]
    [note] = bench.notes[before:]
    assert note.startswith("No spliced decoding of 2 requests") and "has room for 1" in note
    assert not bench.engine.has_work


class Pool(list[str]):
    """Of digests, with seven token slots."""

    layers = (SimpleNamespace(tokens={}), SimpleNamespace(tokens={"K": torch.empty(7, 1)}))


def test_load_of_entries_that_are_not_on_the_device_does_not_count(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = replace(bench, counts=True)
    found = {(row.mode, row.metric): row.settings for row in load.measure(held)}
    assert "pools" not in found["warm", "rate"]["void"]
    assert found["warm", "rate"]["how"].endswith("segments came from: host 4")
    assert found["half misses", "rate"]["how"].endswith("segments came from: host 2, prefilled 2")
    first, second = held.segments(2)
    backend = SimpleNamespace(pool=Pool([held.engine.segment_key(first).digest]))
    monkeypatch.setattr(held.engine, "backend", backend)
    assert (held.nearest_tier, held.token_slots, held.absent([first, second])) == ("device", 7, 1)
    assert "1 of 2 entries are not there, with 7 token slots" in load.pool_too_small(held, [first, second])
    assert load.pool_too_small(held, [first]) == ""
    monkeypatch.undo()
    monkeypatch.setattr(load, "pool_too_small", lambda bench, segments: "too small")
    found = {(row.mode, row.metric): row.settings for row in load.measure(held)}
    void = {name for name, settings in found.items() if settings["void"] == "too small"}
    assert void == {("warm", "rate"), ("warm", "p95 of time to first token"), ("warm", "rate relative to full")}


def test_prefill_is_held_against_the_same_passes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    segments = bench.segments(3)
    assert prefill.split(segments, [24, 48]) == [segments[:1], segments[1:]]
    assert prefill.split(segments, [80]) == [segments]  # padded
    assert prefill.split(segments, [24, 24]) == prefill.split(segments, [10, 24, 48]) == [segments]  # not known
    one_a_pass = replace(bench.engine.segments.passes, max_rows=1)
    monkeypatch.setattr(bench.engine.segments, "passes", one_a_pass)
    monkeypatch.setattr(prefill, "TURNS", 1)
    found = {row.metric: row for row in prefill.measure(bench)}
    assert "in 2 passes" in found["device time with (T, S)"].settings["how"]
    assert "2 of its passes" in found["device time without, in the same passes"].settings["how"]
    assert "1 of its passes" in found["device time without, in one pass"].settings["how"]
    with_T, without = (found[f"device time {way}"].value for way in ("with (T, S)", "without, in one pass"))
    assert found["cost of (T, S), in one pass"].value == pytest.approx(100 * (with_T / without - 1))
