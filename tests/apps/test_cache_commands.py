"""``hypic-rag cache``: what it lists, explains, keeps, removes, checks and moves."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hypic_rag.cache import Entry, LayerEntry, SegmentCache, SegmentKey

KEY = SegmentKey("model-a", "tokenizer", tuple(range(40)), "document", 8, "float32", "default")
KEYS = {
    "seam": replace(KEY, seam_tokens=4),
    "tenant": replace(KEY, namespace="acme"),
    "other": replace(KEY, token_ids=tuple(range(50)), model="model-b"),
    "plain": KEY,
}


def entry_of(key: SegmentKey) -> Entry:
    return Entry(key.n_tokens, key.seam_tokens, (LayerEntry("gdn", {"S": torch.ones(2, 16, 16)}),))


@pytest.fixture
def stored(cli, home: Path):
    """As ``cli cache``, on a store's segments."""
    with SegmentCache.open(home / "stores" / "default" / "segments") as cache:
        for key in KEYS.values():
            cache.put(key, entry_of(key))

    def run(*arguments, **options):
        of_store = () if "--store" in arguments else ("--store", "default")
        return cli("cache", *arguments, *of_store, **options)

    return run


def shown(done, code=0):
    assert done.code == code, done.err
    return json.loads(done.out)


def file_of(home: Path, key: SegmentKey) -> Path:
    return home / "stores" / "default" / "segments" / key.digest[:2] / f"{key.digest}.safetensors"


def damage(home: Path, key: SegmentKey) -> None:
    path = file_of(home, key)
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def test_the_newest_are_listed_first(stored) -> None:
    assert [one["digest"] for one in shown(stored("ls", "--json"))] == [k.digest for k in reversed(KEYS.values())]
    assert [one["digest"] for one in shown(stored("ls", "--limit", "1", "--json"))] == [KEY.digest]
    assert [one["key"]["model"] for one in shown(stored("ls", "--model", "model-b", "--json"))] == ["model-b"]
    lines = stored("ls", "--namespace", "acme").out.splitlines()
    assert len(lines) == 2 and lines[1].startswith(KEYS["tenant"].digest[:12]) and "acme" in lines[1]


def test_sums_are_by_namespace_and_model(stored) -> None:
    fields = shown(stored("stat", "--json"))
    assert fields["n_entries"] == 4 and fields["budget"] == 10_000_000_000 and fields["free_disk"] > 0
    assert {name: one["n_entries"] for name, one in fields["namespaces"].items()} == {"": 3, "acme": 1}
    assert {name: one["n_entries"] for name, one in fields["models"].items()} == {"model-a": 3, "model-b": 1}
    assert "model       model-a: 3 entries" in stored("stat").out


def test_why_of_a_digest_says_where_it_is_and_what_else_has_its_tokens(stored, home: Path) -> None:
    (fields,) = shown(stored("why", KEY.digest[:10], "--json"))
    assert (fields["state"], fields["reason"], fields["key"]) == ("here", "", KEY.fields())
    assert {near["digest"]: near["differs"] for near in fields["near"]} == {
        KEYS["seam"].digest: {"seam_tokens": [4, 8]},
        KEYS["tenant"].digest: {"namespace": ["acme", ""]},
    }
    damage(home, KEY)
    assert "damaged: file" in stored("why", KEY.digest).out


def test_why_takes_a_short_beginning_of_what_is_known(stored, home: Path) -> None:
    assert KEY.digest in [one["digest"] for one in shown(stored("why", KEY.digest[:2], "--json"))]


def test_why_remembers_what_is_gone(stored) -> None:
    assert stored("evict", KEY.digest, "--yes").code == 0
    (fields,) = shown(stored("why", KEY.digest, "--json"))
    assert (fields["state"], fields["reason"], fields["detail"]) == ("absent", "evicted", "by hypic-rag cache evict")
    assert "seam_tokens 4, not 8" in stored("why", KEY.digest).out
    assert "never_seen" in stored("why", "abcdef012345").out


def test_pins_spare_entries_until_they_are_unpinned(stored, home: Path) -> None:
    assert shown(stored("pin", KEY.digest[:12], "--json")) == {"digests": [KEY.digest], "n_changed": 1}
    assert shown(stored("evict", "--all", "--yes", "--json"))["n_pinned"] == 1
    assert [one["pinned"] for one in shown(stored("ls", "--json"))] == [True]
    with SegmentCache.open(home / "stores" / "default" / "segments", 0, file_of(home, KEY).stat().st_size) as cache:
        cache.put(KEYS["other"], entry_of(KEYS["other"]))
        assert (cache.contains(KEY), cache.contains(KEYS["other"])) == ("disk", None)
    assert stored("unpin", KEY.digest).code == 0
    assert shown(stored("evict", "--all", "--yes", "--json"))["n_evicted"] == 1


def test_evict_asks_and_takes_one_way_to_say_which(stored) -> None:
    assert stored("evict", "--all", stdin="n\n").code == 1
    assert stored("evict", "--all", "--namespace", "acme").code == 2
    assert stored("evict").code == 2
    assert len(shown(stored("ls", "--json"))) == 4
    assert stored("evict", "--namespace", "acme", stdin="y\n").code == 0
    assert shown(stored("evict", "--older-than", "1h", "--yes", "--json"))["n_evicted"] == 0
    assert shown(stored("evict", "--older-than", "0s", "--yes", "--json"))["n_evicted"] == 3
    done = stored("evict", "--older-than", "long", "--yes")
    assert done.code == 1 and "Write it like 90m" in done.err


def test_verify_finds_and_repairs(stored, home: Path) -> None:
    assert stored("verify").code == 0
    damage(home, KEY)
    (orphan := file_of(home, replace(KEY, model="x"))).parent.mkdir(exist_ok=True)
    orphan.write_text("")
    done = stored("verify", "--json")
    assert sorted(one["reason"] for one in shown(done, 1)["problems"]) == ["damaged", "orphan"]
    assert stored("verify", "--repair").code == 0
    assert stored("verify").out == "3 entries, 0 problems\n"
    assert not orphan.exists()


def test_gc_says_what_it_removed(stored, home: Path) -> None:
    file_of(home, KEY).unlink()
    assert [one["reason"] for one in shown(stored("gc", "--json"))] == ["missing"]
    assert stored("gc").out == "0 removed\n"


def test_what_is_exported_is_imported_elsewhere(stored, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.tar"
    assert shown(stored("export", file, "--namespace", "", "--json"))["outcomes"] == {"stored": 3}
    assert shown(stored("import", file, "--server", "--json"))["outcomes"] == {"stored": 3}
    assert shown(stored("stat", "--server", "--json"))["n_entries"] == 3
    assert stored("import", file, "--store", "new").out.startswith("3 entries taken in")
    damage(home, KEY)
    assert stored("export", file).code == 1
    assert shown(stored("import", file, "--store", "newer", "--json"))["outcomes"] == {"stored": 3}
    assert stored("import", tmp_path / "none.tar").code == 2


@pytest.mark.parametrize("command", ["export", "import"])
def test_a_file_that_cannot_be_opened_is_told(stored, tmp_path: Path, command: str) -> None:
    path = tmp_path / "no" / "such" / "folder.tar"
    if command == "import":
        path.parent.mkdir(parents=True)
        path.symlink_to(path)
    done = stored(command, path)
    assert done.code in (1, 2) and str(path) in done.err and "Traceback" not in done.err


def test_a_store_without_segments_is_told_and_not_made(cli, home: Path) -> None:
    done = cli("cache", "ls", "--store", "nothing")
    assert done.code == 1 and "there are no segments in" in done.err
    assert not (home / "stores" / "nothing").exists()


def test_why_of_a_text_and_of_a_file_says_what_differs(asking, documents: Path) -> None:
    file = documents / "violin.txt"
    (fields,) = json.loads(asking("cache", "why", file, "--json").out)
    assert (fields["state"], fields["reason"], fields["near"]) == ("here", "", [])
    (fields,) = json.loads(asking("cache", "why", file, "--seam-tokens", "4", "--json").out)
    assert (fields["state"], fields["reason"]) == ("absent", "never_seen")
    assert [near["differs"] for near in fields["near"]] == [{"seam_tokens": [8, 4]}]
    done = asking("cache", "why", file, "--codec", "int8", "--namespace", "acme")
    assert "codec 'none', not 'int8'" in done.out and re.search("namespace 'local/col-.*', not 'acme'", done.out)
    assert "never_seen" in asking("cache", "why", "a text that nobody has ever prefilled, with more than a seam").out
