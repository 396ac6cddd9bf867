"""A key's digest changes with every field, and with nothing else."""

import dataclasses
import json

import pytest
from cache_samples import sample_key

CHANGES = {  # what makes another entry
    "model": {"model": "model-b"},
    "tokenizer": {"tokenizer": "tokenizer-b"},
    "one token": {"token_ids": (*range(11), 99)},
    "order of tokens": {"token_ids": tuple(reversed(range(12)))},
    "one token less": {"token_ids": tuple(range(11))},
    "kind": {"kind": "leading"},
    "seam": {"seam_tokens": 8},
    "compute type": {"compute_dtype": "bfloat16"},
    "rope": {"rope": "yarn"},
    "isolation prefix": {"isolation_prefix": (1,)},
    "codec": {"codec": "int8"},
    "namespace": {"namespace": "tenant"},
    "format version": {"format_version": 2},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_field_changes_the_digest(change):
    assert sample_key(**change).digest != sample_key().digest


def test_the_table_has_every_field():
    changed = {name for change in CHANGES.values() for name in change}
    assert changed == {field.name for field in dataclasses.fields(sample_key())}


def test_fields_do_not_run_into_each_other():
    left = sample_key(token_ids=(1, 2), isolation_prefix=(3,), model="ab", tokenizer="c")
    assert left.digest != sample_key(token_ids=(1,), isolation_prefix=(2, 3), model="ab", tokenizer="c").digest
    assert left.digest != sample_key(token_ids=(12,), isolation_prefix=(3,), model="ab", tokenizer="c").digest
    assert left.digest != sample_key(token_ids=(1, 2), isolation_prefix=(3,), model="a", tokenizer="bc").digest


def test_the_digest_is_the_one_that_stored_files_are_named_by():
    # if this changes, stores made before are never read again: raise FORMAT_VERSION with it
    # made with: python -c "from cache_samples import *; print(sample_key().digest)"
    assert sample_key().digest == "688a405f878183774695765456f4f2558f5ed6dd68156d37844047eba02b6f60"


def test_fields_are_fit_for_json_and_hide_the_tokens():
    fields = json.loads(json.dumps(sample_key().fields()))
    assert fields["n_tokens"] == 12
    assert "token_ids" not in fields
