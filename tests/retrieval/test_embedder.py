"""The packaged embedder: offline, normalized, and telling texts apart."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from hypic_rag.errors import BadInput, ModelNotReady
from hypic_rag.retrieval.embedder import Embedder


@pytest.fixture(scope="module")
def default():
    return Embedder()


def test_vectors_have_length_one_and_mean_something(default):
    seen = []
    vectors = default.embed(
        ["A ship enters the harbour.", "The vessel came into port.", "Bread is baked from flour."],
        lambda done, total: seen.append((done, total)),
    )
    assert vectors.dtype == np.float32 and vectors.shape == (3, 384) == (3, default.dimension)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert vectors[0] @ vectors[1] > 0.5 > 0.2 > vectors[0] @ vectors[2]
    assert seen == [(3, 3)]
    np.testing.assert_allclose(default.embed_query("The vessel came into port."), vectors[1], atol=1e-5)


def test_the_end_of_a_long_text_counts(default):
    filler = "The weather was mild and nothing happened that day. " * 40  # beyond the 256 tokens the model reads
    plain, long = default.embed([filler, filler + "Submarine volcanoes erupt below the Pacific. " * 20])
    query = default.embed_query("underwater volcanic eruptions")
    assert query @ long > query @ plain + 0.1


def test_no_texts_give_no_vectors(default):
    assert default.embed([]).shape == (0, 384)


def test_a_copy_of_the_folder_is_the_same_embedder(default, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(default.folder, copy)
    (copy / "README.md").write_text("changed")
    assert Embedder(copy).name == str(copy)
    assert Embedder(copy).fingerprint == default.fingerprint
    (copy / "vocab.txt").write_text("changed")
    assert Embedder(copy).fingerprint != default.fingerprint


ALIASES = ["default", "all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"]


@pytest.mark.parametrize("name", ALIASES)
def test_the_default_has_one_name(name):
    assert Embedder(name).name == "all-MiniLM-L6-v2"


def test_an_unknown_name_says_what_can_be_given(monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **k: (_ for _ in ()).throw(OSError("offline")))
    with pytest.raises(BadInput, match="neither a folder here nor a model"):
        _ = Embedder("nobody/nothing").folder


def test_a_folder_that_is_no_embedder_is_told(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotReady, match="--embedder FOLDER"):
        Embedder(tmp_path).embed(["text"])


def test_a_folder_without_a_model_is_told_before_anything_is_read(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("no model")
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("a file was hashed"))
    with pytest.raises(ModelNotReady, match=r"neither modules.json nor config.json.*--embedder FOLDER"):
        _ = Embedder(tmp_path).fingerprint


def test_what_is_no_regular_file_does_not_count(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    before = Embedder(tmp_path).fingerprint
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.txt").mkdir()
    assert Embedder(tmp_path).fingerprint == before


def test_a_folder_that_cannot_be_looked_at_in_whole_has_no_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left out, its files would give another fingerprint, and every store would be refused."""
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "modules.json").write_text("[]")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("1_Pooling"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(BadInput, match="cannot be read: Permission denied"):
        _ = Embedder(tmp_path).fingerprint
