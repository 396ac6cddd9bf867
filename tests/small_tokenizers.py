"""Tokenizers of every kind with a vocabulary of some hundred tokens."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

LETTERS = "abcdefghij <|>/_[]INSTéß§\u0301\n"


def byte_level(ignore_merges: bool = False, whole: tuple[str, ...] = ()) -> Tokenizer:
    """whole: tokens of the vocabulary that only ``ignore_merges`` reaches."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, "ab", "abc", "Ġa", "<|", *whole]
    merges = [("a", "b"), ("ab", "c"), ("Ġ", "a"), ("<", "|")]
    backend = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, merges, ignore_merges=ignore_merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not ignore_merges)
    backend.decoder = decoders.ByteLevel()
    return backend


def merged() -> Tokenizer:
    """Its merges make a control token, as those of a vocabulary that was trained on chats would."""
    backend = json.loads(byte_level().to_str())
    vocabulary = backend["model"]["vocab"]
    for left, right in [("<|", "i"), ("<|i", "n"), ("<|in", "|"), ("<|in|", ">"), ("<|in|>", "a")]:
        vocabulary[left + right] = len(vocabulary)
        backend["model"]["merges"].append([left, right])
    return Tokenizer.from_str(json.dumps(backend))


def unigram() -> Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", "▁", *sorted({*LETTERS, *"sunk"} - {" "}), "▁ab", "abc"]
    backend = Tokenizer(models.Unigram([(p, -1.0 * len(p)) for p in dict.fromkeys(pieces)], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    return backend


def word_piece() -> Tokenizer:
    letters = sorted(set(LETTERS.lower()) - set(" \n"))
    words = ["[UNK]", "[SEP]", "[CLS]", *letters, *(f"##{x}" for x in letters), "##bc"]
    backend = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece()
    return backend


def word_level() -> Tokenizer:
    words = ["[UNK]", "[SEP]", "<s>", "a", "b", "ab", "§"]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def fast(backend: Tokenizer, tokens: list[AddedToken | str], **named: str) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **named)
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) if isinstance(t, str) else t for t in tokens])
    return tokenizer


def added(content: str, **options: bool) -> AddedToken:
    return AddedToken(content, **{"special": True, "normalized": False, **options})
