"""SQLite files: values that nobody wrote, files that can only be read, and what is told of them."""

import sqlite3
from pathlib import Path

import pytest

from hypic_rag import sqlite_file, sqlite_rows
from hypic_rag.sqlite_file import Changed, SqliteFile, UnreadLog, connect, connect_read_only, what_to_do
from hypic_rag.sqlite_rows import DamagedRow

COLUMNS: sqlite_rows.Columns = {
    "whole": sqlite_rows.whole, "number": sqlite_rows.number, "text": sqlite_rows.text, "blob": sqlite_rows.blob,
    "perhaps": sqlite_rows.text_or_null, "id": sqlite_rows.matching("[a-z]+"), "n": sqlite_rows.whole,
}  # fmt: skip
ROW = {"whole": "1", "number": "1.5", "text": "'a'", "blob": "x'00'", "perhaps": "NULL", "id": "'ab'", "n": "0"}


def opened(path: Path, **options: object) -> SqliteFile:
    return SqliteFile(path, "the database", lambda error: error, columns=COLUMNS, **options)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = opened(tmp_path / "a.sqlite")
    with file.writing() as db:
        db.execute(f"CREATE TABLE t ({', '.join(ROW)})")
        db.execute(f"INSERT INTO t VALUES ({', '.join(ROW.values())})")
    file.close()
    return tmp_path / "a.sqlite"


@pytest.mark.parametrize("column, bad", [
    *[(name, value) for name in ROW for value in ("CAST('a' AS BLOB)", "-1", "CAST(x'ff' AS TEXT)")],
    *[(name, "NULL") for name in ROW if name != "perhaps"], ("number", "9e999"), ("number", "1"), ("whole", "1.5"),
    ("text", "1"), ("blob", "'a'"), ("id", "'../a'"), ("id", "''"), ("id", "'ab\n'"), ("n", "'1'"),
])  # fmt: skip
def test_a_value_that_is_never_written_is_damage(path: Path, column: str, bad: str) -> None:
    file = opened(path)
    with file.writing() as db:
        db.execute(f"UPDATE t SET {column} = {bad}")
    if (column, bad) == ("blob", "CAST('a' AS BLOB)"):
        with file.reading() as db:
            assert db.execute("SELECT blob FROM t").fetchone() == (b"a",)
        return
    with pytest.raises(sqlite3.DatabaseError) as raised, file.reading() as db:
        db.execute(f"SELECT {', '.join(ROW)} FROM t").fetchall()
    assert sqlite_file.is_damage(raised.value)
    with file.reading() as db:  # the connection still serves
        assert db.execute("SELECT count(*) FROM t").fetchone() == (1,)
    file.close()


def test_a_question_for_an_unknown_column_is_an_error_of_the_caller(path: Path) -> None:
    file = opened(path)
    with pytest.raises(KeyError), file.reading() as db:
        db.execute("SELECT whole AS other FROM t").fetchone()
    file.close()


@pytest.fixture
def cannot_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As where SQLite can make no file beside the database."""
    prepared = sqlite_file._prepared

    def refuse(address: str, *arguments: object, **options: object) -> sqlite3.Connection:
        if "immutable" not in address:
            raise sqlite3.OperationalError("unable to open database file")
        return prepared(address, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(sqlite_file, "_prepared", refuse)
    return monkeypatch


def write(path: Path, value: int) -> None:
    db = sqlite3.connect(path)
    db.execute("UPDATE t SET whole = ?", (value,))
    db.commit()
    db.close()  # the last connection: its log goes into the file


def test_what_cannot_be_written_is_read_and_never_old(path: Path, cannot_write: pytest.MonkeyPatch) -> None:
    file = opened(path)
    for value in (2, 3):
        write(path, value)
        with file.reading() as db:
            assert db.execute("SELECT whole FROM t").fetchone() == (value,)
    with pytest.raises(Changed), file.reading() as db:
        db.execute("SELECT whole FROM t").fetchone()
        write(path, 4)
    with pytest.raises(sqlite3.OperationalError, match="readonly"), file.writing() as db:
        db.execute("UPDATE t SET whole = 5")
    cannot_write.undo()
    with file.writing() as db:
        db.execute("UPDATE t SET whole = 6")
    file.close()
    assert sqlite3.connect(path).execute("SELECT whole FROM t").fetchone() == (6,)


@pytest.mark.usefixtures("cannot_write")
def test_a_log_that_cannot_be_read_is_not_passed_over(path: Path) -> None:
    writer = sqlite3.connect(path)
    writer.execute("UPDATE t SET whole = 2")
    writer.commit()  # in the log alone
    with pytest.raises(UnreadLog, match=r"a\.sqlite-wal has changes"):
        connect_read_only(path)
    with pytest.raises(UnreadLog):
        opened(path)
    writer.close()


def test_what_is_to_be_done_is_told(path: Path) -> None:
    holder = connect(path)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError) as busy:
        connect(path, busy_seconds=0).execute("BEGIN IMMEDIATE")
    holder.close()
    assert "Another program uses it" in what_to_do(path, busy.value)
    assert "Use it once where" in what_to_do(path, UnreadLog("a"))
    db = connect(path, ("max_page_count = 2",))
    with pytest.raises(sqlite3.OperationalError) as full:
        db.execute("UPDATE t SET text = ?", ("a" * 100_000,))
    db.execute("PRAGMA query_only = ON")
    with pytest.raises(sqlite3.OperationalError) as read_only:
        db.execute("UPDATE t SET whole = 2")
    db.close()
    assert "No space is left" in what_to_do(path, full.value)
    assert "is read-only" in what_to_do(path, read_only.value)
    assert isinstance(DamagedRow("x"), sqlite3.DatabaseError)
