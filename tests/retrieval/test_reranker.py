"""A cross-encoder from a folder scores passages; what is none is told."""

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from hypic_rag.errors import BadInput, ModelNotReady
from hypic_rag.retrieval.reranker import Reranker

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "who", "built", "ships", "bread", "the", "mill"]


def cross_encoder(folder, num_labels=1):
    """A tiny one with random weights, as its folder."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        model_max_length=32,
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, num_labels=num_labels, initializer_range=0.5,
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    return model, PreTrainedTokenizerFast.from_pretrained(folder)


def test_scores_are_the_models(tmp_path):
    model, tokenizer = cross_encoder(tmp_path)
    question, texts = "who built the mill", ["ships", "bread the mill", "the " * 60, "built ships"]
    inputs = tokenizer([question] * len(texts), texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        expected = torch.sigmoid(model(**inputs).logits[:, 0]).tolist()  # sentence-transformers' own for one label
    scores = Reranker(tmp_path).scores(question, texts)
    assert scores == pytest.approx(expected, abs=1e-5)
    assert len(set(scores)) == len(texts) and max(scores) - min(scores) > 0.01
    assert Reranker(tmp_path).scores(question, []) == []


def test_a_classifier_of_several_labels_is_no_reranker(tmp_path):
    cross_encoder(tmp_path, num_labels=3)
    with pytest.raises(BadInput, match=r"is no reranker.*--reranker, or leave it out"):
        Reranker(tmp_path).scores("who", ["ships"])


def test_what_cannot_be_loaded_is_told(tmp_path, monkeypatch):
    with pytest.raises(ModelNotReady, match=r"could not be loaded.*--reranker"):
        Reranker(tmp_path).scores("who", ["ships"])
