"""Loading: local folders, the hub's layout, and folders that cannot be used."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch

from hypic_rag import Sampling, SegmentEngine
from hypic_rag.engine.fingerprint import WEIGHTS, fingerprint
from hypic_rag.errors import BadInput, ModelNotReady, UnsupportedModel

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as save_pretrained leaves it."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny.build("qwen3_5_text").save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPIC_HOME", str(tmp_path / "home"))


def answer(engine: SegmentEngine) -> str:
    return engine.generate(engine.format.prompt("Who?", [("T", "A long enough document.")]), Sampling(5)).text


def test_a_local_folder_gives_the_model_that_was_saved(saved: Path) -> None:
    engine = SegmentEngine.from_pretrained(saved, device="cpu")
    assert engine.model_name == "tiny" and engine.model.dtype == torch.float32
    assert answer(engine) == answer(tiny.engine("qwen3_5_text"))


def test_a_hub_name_is_found_in_the_hub_layout(saved: Path, tmp_path: Path) -> None:
    """As ``--model ORG/NAME`` offline, once the model is in the Hugging Face cache. In a process of its own, since
    the cache's place is read at import."""
    repo = tmp_path / "hub" / "models--some-org--tiny-hybrid"
    shutil.copytree(saved, repo / "snapshots" / REVISION)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(REVISION)
    code = (
        "from hypic_rag import SegmentEngine as E; e = E.from_pretrained('some-org/tiny-hybrid'); print(e.fingerprint)"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"hub:some-org/tiny-hybrid@{REVISION}", done.stderr


def test_a_folder_of_the_hubs_cache_is_its_last_commit(saved: Path, tmp_path: Path) -> None:
    repo = tmp_path / "models--some-org--tiny-hybrid"
    shutil.copytree(saved, repo / "snapshots" / REVISION)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(REVISION + "\n")
    engine, direct = SegmentEngine.from_pretrained(repo), SegmentEngine.from_pretrained(saved)
    assert engine.model_name == "some-org/tiny-hybrid"
    assert engine.fingerprint == direct.fingerprint


def test_a_multimodal_config_gives_its_text_model(saved: Path, tmp_path: Path) -> None:
    """Published Qwen3.5 checkpoints wrap the text config; the vision tower is left out."""
    folder = shutil.copytree(saved, tmp_path / "wrapped")
    text = json.loads((saved / "config.json").read_text())
    wrapped = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text}
    (folder / "config.json").write_text(json.dumps(wrapped))
    assert SegmentEngine.from_pretrained(folder).families == {"attention": 1, "gdn": 3}


def damage_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def change_architecture(folder: Path) -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    (folder / "config.json").write_text(json.dumps(config))


def declare_ring(folder: Path) -> None:
    config = {"model_type": "bailing_hybrid", "architectures": ["BailingMoeV2_5ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))


BROKEN = {
    "no config": (lambda folder: (folder / "config.json").unlink(), ModelNotReady, "config.json"),
    "garbage config": (lambda folder: (folder / "config.json").write_text("{"), ModelNotReady, "cannot be loaded"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), ModelNotReady, "model.safetensors"),
    "truncated weights": (damage_weights, ModelNotReady, "damaged|cannot be loaded"),
    "another architecture": (change_architecture, UnsupportedModel, "gpt2.*mixers: GPT2Attention.*adding-a-model"),
    "another model under a known type": (declare_ring, UnsupportedModel, "BailingMoeV2_5.*cannot be used: Ring"),
}


@pytest.mark.parametrize("broken, error, told", BROKEN.values(), ids=BROKEN)
def test_a_folder_that_cannot_be_used(saved: Path, tmp_path: Path, broken, error, told: str) -> None:
    folder = shutil.copytree(saved, tmp_path / "broken")
    broken(folder)
    with pytest.raises(error, match=told):
        SegmentEngine.from_pretrained(folder)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotReady, match="no model folder"):
        SegmentEngine.from_pretrained(tmp_path / "nothing")
    with pytest.raises(ModelNotReady, match=r"no model folder \./nothing"):
        SegmentEngine.from_pretrained("./nothing")  # no name on the hub
    with pytest.raises(BadInput, match="floating-point"):
        SegmentEngine.from_pretrained("default", dtype="int8")
    with pytest.raises(BadInput, match="device"):
        SegmentEngine.from_pretrained("default", device="abacus")


def test_weights_that_change_while_they_are_loaded_are_refused(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model in memory would be of the old ones, its entries under the name of the new ones."""
    folder = shutil.copytree(saved, tmp_path / "changing")

    def change_first(source: Path, patterns: tuple[str, ...]) -> str:
        (source / "config.json").touch()
        return fingerprint(source, patterns)

    monkeypatch.setattr("hypic_rag.engine.load.fingerprint", change_first)
    with pytest.raises(ModelNotReady, match="changed while they were being loaded"):
        SegmentEngine.from_pretrained(folder)


def test_a_fingerprint_follows_the_weights(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "changed")
    before = fingerprint(folder, WEIGHTS)
    assert fingerprint(saved, WEIGHTS) == before == fingerprint(folder, WEIGHTS)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert fingerprint(folder, WEIGHTS) != before
