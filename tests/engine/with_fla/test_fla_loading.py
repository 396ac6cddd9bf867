"""Loading models of flash-linear-attention, where it is installed and where it is not."""

import json
import sys
from pathlib import Path

import pytest
import test_architectures
import tiny
import torch
from transformers import AutoModelForCausalLM

from hypic_rag import Policy, SegmentEngine
from hypic_rag.errors import ModelNotReady, UnsupportedModel


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gla"}))
    for module in ("fla", "fla.models"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModelNotReady, match=r"a gla model.*pip install 'flash-linear-attention\[cuda\]'"):
        SegmentEngine.from_pretrained(tmp_path)


def test_on_a_cpu_the_error_asks_for_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("fla.models", reason="pip install flash-linear-attention, and triton")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gla"}))
    with pytest.raises(ModelNotReady, match="need a GPU, and the device is cpu"):
        SegmentEngine.from_pretrained(tmp_path, device="cpu")


def test_a_saved_model_answers_as_before(tmp_path: Path) -> None:
    pytest.importorskip("fla.models", reason="pip install flash-linear-attention, and triton")
    import fla_cases

    plain = fla_cases.CASES["retnet"].build()
    plain.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="hypic")
    engine = SegmentEngine(model, tiny.tokenizer(), name="saved", fingerprint="saved")
    ask = test_architectures.prompt(leading=37)
    with torch.no_grad():
        want = plain(input_ids=torch.tensor([ask.token_ids]), use_cache=False).logits[0, -13:]
    assert test_architectures.worst(test_architectures.assembled(engine, ask, Policy()), want) < 1e-4


@pytest.mark.filterwarnings("ignore:According to Bo")
def test_rwkv7_with_full_attention_is_refused() -> None:
    pytest.importorskip("fla.models", reason="pip install flash-linear-attention, and triton")
    import fla_cases

    model = fla_cases.CASES["rwkv7"].build("hypic", **fla_cases.HYBRID)
    with pytest.raises(UnsupportedModel, match="full attention"):
        SegmentEngine(model, tiny.tokenizer(), name="hybrid", fingerprint="hybrid")
