"""An entry comes back from its bytes as it was, and from wrong bytes not at all."""

import numpy as np
import pytest
import safetensors.torch
import torch
from cache_samples import N_TOKENS, SEAM, file_bytes, same_bits, sample_entry, sample_key

from hypic_rag.cache import Entry, LayerEntry, tensor_file
from hypic_rag.cache.entry import pack, unpack
from hypic_rag.cache.header import EntryRefused

SLAB = torch.randn(4, 6, 8)
LAYERS = {
    "fp32 and bf16": sample_entry().layers,
    "no layers": (),
    "a layer with nothing": (LayerEntry("attention", {}), LayerEntry("gdn", {"S": torch.ones(2)})),
    "a trailing layer with nothing": (LayerEntry("gdn", {"S": torch.ones(2)}), LayerEntry("attention", {})),
    "an interior of no tokens": (LayerEntry("attention", {"K": torch.zeros(0, 8)}),),
    "a scalar": (LayerEntry("retnet", {"n": torch.tensor(3)}),),
    "a transposed view": (LayerEntry("gdn", {"T": SLAB[0].T}),),
    "overlapping views of a slab": (LayerEntry("gdn", {"T": SLAB[:2], "S": SLAB[1:]}),),
    "one tensor twice": (LayerEntry("gdn", {"T": SLAB}), LayerEntry("gdn", {"T": SLAB})),
    "names with dots": (LayerEntry("gdn", {"conv.q": torch.ones(3), "conv.k": torch.zeros(3)}),),
    "more than ten layers": tuple(LayerEntry("gdn", {"S": torch.full((2,), float(i))}) for i in range(12)),
    "not finite": (LayerEntry("gdn", {"S": torch.tensor([float("inf"), -0.0])}),),
    "with gradient": (LayerEntry("gdn", {"S": torch.ones(2, requires_grad=True)}),),
}


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_bytes_give_the_entry_back(layers):
    entry = Entry(N_TOKENS, SEAM, layers)
    data = file_bytes(entry, sample_key())
    back = unpack(data, sample_key())
    assert same_bits(back, entry)
    assert back.nbytes == entry.nbytes
    assert file_bytes(back, sample_key()) == data


def test_what_comes_back_does_not_share_memory_with_what_was_given():
    tensor = torch.ones(4)
    data = file_bytes(Entry(N_TOKENS, SEAM, (LayerEntry("gdn", {"S": tensor}),)), sample_key())
    tensor.zero_()
    first, second = unpack(data, sample_key()), unpack(data, sample_key())
    first.layers[0].tensors["S"].fill_(7)
    assert second.layers[0].tensors["S"].tolist() == [1, 1, 1, 1]


def test_safetensors_itself_reads_what_is_written():
    entry, key = sample_entry(), sample_key()
    found = safetensors.torch.load(file_bytes(entry, key))
    wanted = {f"{i}.{name}": t for i, layer in enumerate(entry.layers) for name, t in layer.tensors.items()}
    assert found.keys() == wanted.keys()
    assert all(found[name].dtype == t.dtype and torch.equal(found[name], t) for name, t in wanted.items())


def test_what_safetensors_itself_wrote_is_read():
    """Of folders made by earlier versions."""
    entry, key = sample_entry(), sample_key()
    tensors, metadata = tensor_file.read(file_bytes(entry, key))
    assert same_bits(unpack(safetensors.torch.save(tensors, metadata=metadata), key), entry)


def test_tensors_are_written_from_where_they_lie():
    entry = sample_entry()
    starts = {np.asarray(piece).ctypes.data for piece in pack(entry, sample_key())}
    assert {t.data_ptr() for layer in entry.layers for t in layer.tensors.values()} <= starts


def test_an_entry_of_another_length_than_its_key_is_told():
    with pytest.raises(ValueError, match="has 11 tokens with a seam of 4, but its key has 12 with a seam of 4"):
        file_bytes(Entry(11, SEAM, ()), sample_key())


def test_every_truncation_is_refused():
    data = file_bytes(sample_entry(), sample_key())
    for length in [*range(64), *range(64, len(data), 97), len(data) - 1]:
        with pytest.raises(EntryRefused, match="damaged"):
            unpack(data[:length], sample_key())


ASKED = {  # what is asked of the file of sample_key(), and why it is refused
    "other model": (sample_key(model="model-b"), "wrong_key"),
    "other tokens": (sample_key(1), "wrong_key"),
    "other tenant": (sample_key(namespace="b"), "wrong_key"),
    "other version": (sample_key(format_version=2), "other_version"),
}


@pytest.mark.parametrize("asked, reason", ASKED.values(), ids=ASKED)
def test_another_keys_file_is_refused(asked, reason):
    with pytest.raises(EntryRefused) as refused:
        unpack(file_bytes(sample_entry(), sample_key()), asked)
    assert refused.value.reason == reason


NOT_ENTRIES = {
    "nothing": b"",
    "zeros": bytes(64),
    "text": b"this is a text file, not a stored entry at all",
    "a huge header length": b"\xff" * 64,
    "a list for a header": (2).to_bytes(8, "little") + b"[]",
    "no metadata": (2).to_bytes(8, "little") + b"{}",
    "deep nesting": (100_000).to_bytes(8, "little") + b"[" * 100_000,
}


@pytest.mark.parametrize("data", NOT_ENTRIES.values(), ids=NOT_ENTRIES)
def test_what_is_no_entry_is_refused(data):
    with pytest.raises(EntryRefused, match="damaged"):
        unpack(data, sample_key())


def test_norms_of_transitions_are_of_dense_ones_by_head():
    T = torch.zeros(2, 3, 3)
    T[0, 0, 1], T[0, 2, 2] = 3, -4
    layers = (
        LayerEntry("gdn", {"S": torch.ones(2, 3, 5), "T": T}),
        LayerEntry("attention", {"K": torch.ones(2, 4, 8)}),
        LayerEntry("gdn", {"T": torch.full((1, 4, 4), 2.0)}),
        LayerEntry("some", {"T": torch.ones(2, 3)}),
    )
    norms = Entry(N_TOKENS, SEAM, layers).transition_norms
    assert [None if n is None else n.tolist() for n in norms] == [[5.0, 0.0], None, [8.0], None]
    assert Entry(N_TOKENS, SEAM, layers[1:2]).transition_norms == (None,)
