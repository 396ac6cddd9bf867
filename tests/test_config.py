"""Settings: which source wins, what each value may be, and what a wrong one is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hypic_rag.config import Settings, format_bytes, home, store_folder
from hypic_rag.errors import BadInput
from hypic_rag.setting_values import parse_bytes

SIZES = {
    "plain bytes": ("4096", 4096),
    "decimal": ("10GB", 10_000_000_000),
    "binary": ("512MiB", 512 * 1024**2),
    "no B": ("3k", 3000),
    "binary without B": ("2Gi", 2 * 1024**3),
    "fraction and space": ("1.5 GB", 1_500_000_000),
    "lower case": ("7mib", 7 * 1024**2),
    "bytes with a B": ("12B", 12),
}


@pytest.mark.parametrize("text, n_bytes", SIZES.values(), ids=SIZES)
def test_sizes_parse(text: str, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["", "GB", "ten", "-1GB", "1.2.3MB", "5 ib", "1e9", "10 XB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not a size"):
        parse_bytes(text)


PRINTED = [(0, "0 bytes"), (999, "999 bytes"), (4100, "4.1 kB"), (8.4e6, "8.4 MB"), (2.5e13, "25.0 TB")]


@pytest.mark.parametrize("n_bytes, text", PRINTED)
def test_sizes_are_printed_for_people(n_bytes: float, text: str) -> None:
    assert format_bytes(n_bytes) == text


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('top_k = 3\nseam_tokens = 16\ndisk_budget = "1GB"\nhost_memory = 5000\n')
    environment = {"HYPIC_SEAM_TOKENS": "32", "HYPIC_MODE": "full", "HYPIC_MODEL": ""}
    given = {"mode": "hypic", "store": None, "disk_budget": "unlimited"}
    settings = Settings.load(given, environment={**environment, "HYPIC_HOME": str(tmp_path)})
    assert settings.top_k == 3
    assert settings.seam_tokens == 32
    assert settings.mode == "hypic"
    assert settings.store is None
    assert settings.model == "default"
    assert settings.host_memory == 5000
    assert settings.disk_budget is None


def test_a_policy_that_nobody_gave_is_left_to_the_model(tmp_path: Path) -> None:
    settings = Settings.load(environment={}, file=tmp_path / "none.toml")
    assert (settings.mode, settings.seam_tokens, settings.compose) == (None, None, None)


def test_a_missing_file_means_defaults(tmp_path: Path) -> None:
    assert Settings.load(environment={}, file=tmp_path / "none.toml") == Settings()


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xef\xbb\xbftop_k = 7\n")
    assert Settings.load(environment={}, file=file).top_k == 7


WRONG = {
    "unknown name": ("topk = 3", r"there is no setting 'topk'\. Did you mean top_k.*All: .*chunk_tokens"),
    "not toml": ("top_k = = 3", "cannot be read.*Mend it or delete it"),
    "below the least": ("top_k = 0", "top_k in .*config.toml: needs a whole number of at least 1, not 0"),
    "fraction": ("top_k = 2.5", "whole number"),
    "truth value": ("top_k = true", "whole number"),
    "unknown word": ('mode = "fulll"', r"'fulll' is none of hypic, full\. Did you mean full\?"),
    "probability": ("top_p = 0.0", "above 0 to 1"),
    "not a number": ('temperature = "warm"', "needs a number from 0"),
    "nan": ("temperature = nan", "needs a number from 0"),
    "codec": ('codec = "int4"', "none of none, int8, int8-kv8"),
    "size": ('disk_budget = "much"', "not a size"),
    "size as a fraction": ("disk_budget = 1.5", "not a size"),
    "no end of a GPU": ('device_memory = "unlimited"', "needs a size like 40GB, auto or 0"),
    "empty text": ('model = ""', "needs a text"),
    "neither yes nor no": ('log_questions = "maybe"', "needs yes or no, not 'maybe'"),
    "a number for yes": ("log_questions = 1", "needs yes or no, not 1"),
    "negative seed": ("seed = -4", "at least 0"),
}


@pytest.mark.parametrize("text, message", WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_told_what_to_do(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=message):
        Settings.load(environment={}, file=file)


def test_the_message_names_the_source() -> None:
    with pytest.raises(BadInput, match=r"^HYPIC_TOP_K: "):
        Settings.load(environment={"HYPIC_TOP_K": "many", "HYPIC_HOME": "/nonexistent"})
    with pytest.raises(BadInput, match=r"^--top-k: "):
        Settings.load({"top_k": "many"}, environment={"HYPIC_HOME": "/nonexistent"})


VARIABLES = {  # name, value; what it is told, or None
    "misspelt": ("HYPIC_TOPK", "3", r"HYPIC_TOPK: there is no setting 'topk'\. Did you mean top_k"),
    "of nothing": ("HYPIC_XYZZY", "3", "there is no setting 'xyzzy'"),
    "misspelt and empty": ("HYPIC_TOPK", "", None),
    "of clients": ("HYPIC_KEY", "secret", None),
    "of the tests": ("HYPIC_TEST_DEVICE", "cuda", None),
}


@pytest.mark.parametrize("name, value, message", VARIABLES.values(), ids=VARIABLES)
def test_a_variable_that_is_no_setting_is_told(name: str, value: str, message: str | None) -> None:
    environment = {name: value, "HYPIC_HOME": "/nonexistent"}
    if message is None:
        assert Settings.load(environment=environment) == Settings()
    else:
        with pytest.raises(BadInput, match=message):
            Settings.load(environment=environment)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.toml")
    with pytest.raises(BadInput, match=r"is a pipe.*Mend it or delete it"):
        Settings.load(environment={}, file=tmp_path / "config.toml")


def test_seed_can_be_none() -> None:
    environment = {"HYPIC_SEED": "4", "HYPIC_HOME": "/nonexistent"}
    assert Settings.load(environment=environment).seed == 4
    assert Settings.load({"seed": "none"}, environment=environment).seed is None


PLACES = {  # file; environment; caller; the store and the collection
    "neither": ("", {}, {}, (None, None)),
    "a collection": ('collection = "papers"', {}, {}, (None, "papers")),
    "a later store": ('collection = "papers"', {}, {"store": "old"}, ("old", None)),
    "a later collection": ('store = "old"', {"HYPIC_COLLECTION": "papers"}, {}, (None, "papers")),
    "a store between": ('collection = "papers"', {"HYPIC_STORE": "old"}, {"collection": "notes"}, (None, "notes")),
}


@pytest.mark.parametrize("text, environment, given, places", PLACES.values(), ids=PLACES)
def test_the_place_that_is_named_last_wins(tmp_path: Path, text, environment, given, places) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    settings = Settings.load(given, environment=environment, file=file)
    assert (settings.store, settings.collection) == places


def test_two_places_side_by_side_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the store 'old' or the collection 'papers', not both"):
        Settings.load({"store": "old", "collection": "papers"}, environment={}, file=tmp_path / "none")


def test_home_moves_stores(tmp_path: Path) -> None:
    environment = {"HYPIC_HOME": str(tmp_path)}
    assert home(environment) == tmp_path
    assert home({}) == Path.home() / ".hypic-rag"
    assert store_folder("papers", environment) == tmp_path / "stores" / "papers"
    assert store_folder("./papers", environment) == Path.cwd() / "papers"
    assert store_folder(str(tmp_path / "x"), environment) == tmp_path / "x"


def test_importing_the_settings_loads_no_torch() -> None:
    code = "import sys, hypic_rag.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
