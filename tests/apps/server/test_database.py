"""server.sqlite: a table that was lost is no empty one, and no value of a damaged row is believed."""

import sqlite3
from pathlib import Path

import pytest
from hypic_apps.server.auth.keys import Keys

from hypic_rag.collections.database import ADDED, NAMES, VERSION, CollectionDatabase
from hypic_rag.errors import HypicError, NoRoom, StoreDamaged


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """With one key, one collection and one file in it."""
    Keys(tmp_path).add("acme")
    database = CollectionDatabase(tmp_path / "server.sqlite")
    with database.writing() as db:
        db.execute("INSERT INTO collections (id, tenant, name, created_at) VALUES ('col-0', 'acme', 'c', 1)")
        names = "id, collection_id, filename, bytes, created_at"
        db.execute(f"INSERT INTO files ({names}) VALUES ('file-0', 'col-0', 'f', 1, 1)")
    database.close()
    return tmp_path / "server.sqlite"


def change(path: Path, statement: str) -> None:
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()


ALL = NAMES.union(*ADDED.values())


@pytest.mark.parametrize("name", sorted(name for name in ALL if "_by_" not in name))
def test_a_table_that_was_lost_is_no_empty_one(path: Path, name: str) -> None:
    """Without its keys a server would be everybody's."""
    change(path, f"DROP TABLE {name}")
    with pytest.raises(StoreDamaged, match=rf"is damaged: it has no .*{name}.*Put a copy"):
        CollectionDatabase(path)
    with pytest.raises(StoreDamaged):
        assert Keys(path.parent).exist


@pytest.mark.parametrize("table, column, value", [
    ("files", "id", "'*'"), ("files", "status", "'reddy'"), ("files", "bytes", "'x'"), ("files", "created_at", "-1"),
    ("files", "tokens_done", "1.5"), ("collections", "tenant", "'../..'"), ("collections", "name", "x'00'"),
    ("keys", "tenant", "''"), ("keys", "created", "'x'"), ("keys", "hash", "'x'"),
])  # fmt: skip
def test_no_value_of_a_damaged_row_is_believed(path: Path, table: str, column: str, value: str) -> None:
    change(path, f"UPDATE {table} SET {column} = {value}")
    database = CollectionDatabase(path)
    asked = "*" if table != "keys" else "id, hash, tenant AS owner, created"
    with pytest.raises(StoreDamaged, match="could not decode"), database.reading() as db:
        db.execute(f"SELECT {asked} FROM {table}").fetchall()
    database.close()


def test_a_file_of_an_older_version_gets_what_it_lacks(path: Path) -> None:
    change(path, "DROP TABLE keys")
    change(path, "PRAGMA user_version = 0")
    CollectionDatabase(path).close()
    assert not Keys(path.parent).exist


def test_a_file_of_the_version_before_keeps_what_it_has_and_gets_the_tables_for_conversations(path: Path) -> None:
    for name in ("turn_passages", "turns", "conversations"):
        change(path, f"DROP TABLE {name}")
    change(path, "PRAGMA user_version = 1")
    database = CollectionDatabase(path)
    with database.reading() as db:
        assert db.execute("SELECT id FROM files").fetchone()["id"] == "file-0"
        assert db.execute("SELECT * FROM turns").fetchall() == []
    database.close()
    stored = sqlite3.connect(path)
    assert stored.execute("PRAGMA user_version").fetchone()[0] == VERSION
    stored.close()


def test_where_nothing_can_be_written_keys_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr("hypic_rag.sqlite_file.connect", refuse)
    keys = Keys(path.parent)
    assert [key.tenant for key in keys.all()] == ["acme"]
    with pytest.raises(NoRoom, match="cannot be stored") as raised:
        keys.add("acme")
    assert isinstance(raised.value, HypicError)  # of which the command line makes one sentence
    keys.close()
