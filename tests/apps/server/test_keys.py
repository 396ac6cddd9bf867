"""API keys: made, kept as hashes, found, revoked; the commands over them; what a server without any may do."""

import json
import threading
from pathlib import Path

import pytest
from hypic_apps.server.auth.bind_policy import check_exposure
from hypic_apps.server.auth.keys import FILE, PREFIX, Keys

from hypic_rag.config import Settings
from hypic_rag.errors import BadInput, StoreDamaged


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "server")


def test_a_key_is_found_by_its_secret_until_it_is_revoked(keys: Keys) -> None:
    assert not keys.exist
    key, secret = keys.add("acme", "laptop")
    other, _ = keys.add("acme")
    assert secret.startswith(PREFIX) and len(secret) > 43
    assert keys.exist and keys.find(secret) == key
    assert keys.find(secret[:-1]) is keys.find("") is keys.find("hypic-ü\udcff") is None
    assert [one.id for one in keys.all()] == [key.id, other.id]
    assert keys.revoke(key.id).revoked is not None
    assert keys.find(secret) is None
    first = keys.all()[0].revoked
    assert keys.revoke(key.id).revoked == first  # revoking twice does not move the day
    keys.revoke(other.id)
    assert keys.exist  # none is in force, and still the server is not everybody's


def test_another_process_revokes_at_once(keys: Keys) -> None:
    key, secret = keys.add("acme")
    assert keys.find(secret)
    Keys(keys.folder).revoke(key.id)
    assert keys.find(secret) is None


def test_the_file_has_no_secret(keys: Keys) -> None:
    _, secret = keys.add("acme", "laptop")
    keys.close()
    everything = b"".join(file.read_bytes() for file in keys.folder.iterdir())
    assert b"acme" in everything and secret.removeprefix(PREFIX).encode() not in everything


def test_its_folder_is_its_owners(keys: Keys) -> None:
    keys.add("acme")
    assert keys.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["", "Acme", "a/b", "..", "-a", "a" * 33, "a b", "é", "a\n"])
def test_a_name_that_is_no_folder_and_no_label_is_refused(keys: Keys, name: str) -> None:
    with pytest.raises(BadInput, match="cannot name a tenant"):
        keys.add(name)
    assert not keys.exist


def test_an_unknown_id_is_told_where_to_look(keys: Keys) -> None:
    with pytest.raises(BadInput, match="hypic-rag keys add"):
        keys.revoke("beef")
    assert not keys.exist and keys.all() == [] and not keys.folder.exists()
    keys.add("acme")
    with pytest.raises(BadInput, match="hypic-rag keys list"):
        keys.revoke("beef")


def test_a_server_that_loses_the_file_lets_nobody_in(keys: Keys) -> None:
    _, secret = keys.add("acme")
    assert keys.exist
    keys.close()
    for file in keys.folder.iterdir():
        file.unlink()
    assert keys.exist and keys.find(secret) is None


def test_many_may_begin_at_once(keys: Keys) -> None:
    failed = []

    def add() -> None:
        try:
            Keys(keys.folder).add("acme")
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(keys.all()) == 8


def test_a_file_that_is_no_database_lets_nobody_in(keys: Keys) -> None:
    keys.folder.mkdir()
    (keys.folder / FILE).write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(StoreDamaged, match=r"server\.sqlite is damaged: file is not a database"):
        keys.find("x")


EXPOSED = {
    "another address": (Settings(host="0.0.0.0"), False, "can be reached from other machines"),
    "a name": (Settings(host="rag.example"), False, "hypic-rag keys add"),
    "all pages": (Settings(allowed_origins=("*",)), False, "every web page"),
    "all pages, keys not asked": (Settings(allowed_origins=("*",), no_keys=True), True, "every web page"),
}


@pytest.mark.parametrize("settings, has_keys, message", EXPOSED.values(), ids=EXPOSED)
def test_a_server_without_keys_is_for_its_machine(settings: Settings, has_keys: bool, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_exposure(settings, has_keys)


FINE = {
    "here": (Settings(), False),
    "here by name": (Settings(host="localhost"), False),
    "here, IPv6": (Settings(host="::1"), False),
    "said so": (Settings(host="0.0.0.0", no_keys=True), False),
    "with keys": (Settings(host="0.0.0.0", allowed_origins=("*",)), True),
}


@pytest.mark.parametrize("settings, has_keys", FINE.values(), ids=FINE)
def test_what_may_be(settings: Settings, has_keys: bool) -> None:
    check_exposure(settings, has_keys)


def test_the_commands(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        from hypic_apps.cli.main import main

        monkeypatch.setattr("sys.argv", ["hypic-rag", "keys", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return (int(end.value.code or 0), *capsys.readouterr())

    assert run("list")[1].startswith("no keys")
    assert run("revoke", "beef")[0] == 1
    assert not home.exists()  # asking makes nothing
    code, out, err = run("add", "--tenant", "acme", "--name", "laptop")
    secret = out.strip()
    assert code == 0 and secret.startswith(PREFIX) and "not shown again" in err and secret not in err
    assert run("add", "--operator")[0] == 0
    assert run("add")[0] == run("add", "--operator", "--tenant", "acme")[0] == 2
    assert run("add", "--tenant", "A/B")[0] == 1
    first, second = json.loads(run("list", "--json")[1])
    assert (first["tenant"], first["label"], second["tenant"]) == ("acme", "laptop", None)
    assert run("revoke", first["id"])[0] == 0
    listed = run("list")[1]
    assert "revoked" in listed and "the operator" in listed and secret not in listed
    assert Keys(home / "server").find(secret) is None
