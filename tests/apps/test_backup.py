"""``hypic-rag backup`` and ``restore``: all that cannot be made again, also while somebody writes; nothing hostile."""

import io
import sqlite3
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypic_apps.backup import Backup, back_up, restore
from hypic_apps.server.auth.keys import Keys

from hypic_rag.collections.claim import claimed
from hypic_rag.collections.database import CollectionDatabase
from hypic_rag.errors import BadInput, StoreDamaged

COLLECTION = Path("server/collections/acme/col-1")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A server's, at work: it has the databases open, and what it has written is in their logs."""
    home = tmp_path / "home"
    database = CollectionDatabase(home / "server" / "server.sqlite")
    with database.writing() as db:
        db.execute("INSERT INTO collections (id, tenant, name, created_at) VALUES ('col-1', 'acme', 'papers', 1)")
        rows = [("file-1", "ready"), ("file-2", "queued")]
        columns = "id, collection_id, filename, bytes, created_at, status"
        db.executemany(f"INSERT INTO files ({columns}) VALUES (?, 'col-1', 'a', 1, 1, ?)", rows)
    (home / COLLECTION).mkdir(parents=True)
    (home / COLLECTION / "store.json").write_text("{}")
    store = sqlite3.connect(home / COLLECTION / "store.sqlite")
    store.execute("PRAGMA journal_mode = WAL")
    store.execute("CREATE TABLE chunks (text TEXT)")
    store.execute("INSERT INTO chunks VALUES ('The keeper rowed out.')")
    store.commit()
    for name, text in {
        "server/uploads/file-2.txt": "waits", "server/uploads/file-3.part": "half", "server/segments/a": "large",
        "config.toml": "top_k = 3", "calibrations/m.json": "{}", "models/w": "large",
    }.items():  # fmt: skip
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    yield home
    database.close()
    store.close()


def test_what_cannot_be_made_again_comes_back(home: Path, tmp_path: Path) -> None:
    _, secret = Keys(home / "server").add("acme")
    archive, there = tmp_path / "a.tar.gz", tmp_path / "there"
    with claimed(home / "server", "serve"):
        done = back_up(home, archive)
    assert (done.n_collections, done.n_files, done.nbytes) == (1, 2, archive.stat().st_size)
    assert archive.stat().st_mode & 0o077 == 0 and not list(home.glob("server/backup-*"))
    assert restore(archive, there) == done
    assert {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()} == {
        "server/server.sqlite", f"{COLLECTION}/store.json", f"{COLLECTION}/store.sqlite", "server/uploads/file-2.txt",
        "config.toml", "calibrations/m.json", "server/server.lock",
    }  # fmt: skip
    keys = Keys(there / "server")
    found = keys.find(secret)
    assert found is not None and found.tenant == "acme"
    keys.close()
    store = sqlite3.connect(there / COLLECTION / "store.sqlite")
    assert store.execute("SELECT text FROM chunks").fetchall() == [("The keeper rowed out.",)]
    store.close()


def test_a_database_in_use_is_copied_as_it_was_at_one_moment(home: Path, tmp_path: Path) -> None:
    ended = threading.Event()

    def write() -> None:
        store = sqlite3.connect(home / COLLECTION / "store.sqlite", timeout=60)
        while not ended.is_set():
            store.executemany("INSERT INTO chunks VALUES (?)", [("one",), ("two",)])
            store.commit()
        store.close()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        back_up(home, tmp_path / "a.tar")
    finally:
        ended.set()
        writing.join()
    restore(tmp_path / "a.tar", tmp_path / "there")
    store = sqlite3.connect(tmp_path / "there" / COLLECTION / "store.sqlite")
    assert store.execute("SELECT count(*) FROM chunks").fetchone()[0] % 2 == 1
    store.close()


def packed(path: Path, *members: tuple[str, bytes, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(content), "/etc/passwd" if kind != tarfile.REGTYPE else ""
            tar.addfile(info, io.BytesIO(content))
    return path


FILE, LINK = tarfile.REGTYPE, tarfile.SYMTYPE
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no archive": (lambda path: path.write_bytes(b"hello"), "cannot be read as a backup"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:1000]), "backup"),
    "leads away": (lambda path: packed(path, ("../evil", FILE, b"x")), "is no backup of hypic-rag"),
    "absolute": (lambda path: packed(path, ("/tmp/evil", FILE, b"x")), "is no backup of hypic-rag"),
    "a link": (lambda path: packed(path, ("config.toml", LINK, b"")), "is no backup of hypic-rag"),
    "something else": (lambda path: packed(path, ("a", FILE, b"x")), "is no backup of hypic-rag"),
    "newer": (lambda path: packed(path, ("backup.json", FILE, b'{"format": 2}')), "newer version"),
    "damaged": (
        lambda path: packed(path, ("backup.json", FILE, b'{"format": 1}'), ("server/server.sqlite", FILE, b"x" * 5000)),
        "is damaged",
    ),
}


@pytest.mark.parametrize("spoil, told", BAD.values(), ids=BAD)
def test_what_is_no_backup_leaves_nothing(
    spoil: Callable[[Path], object], told: str, home: Path, tmp_path: Path
) -> None:
    archive, there = tmp_path / "a.tar", tmp_path / "there"
    back_up(home, archive)
    spoil(archive)
    with pytest.raises((BadInput, StoreDamaged), match=told):
        restore(archive, there)
    assert {path.name for path in there.rglob("*")} <= {"server", "server.lock"}


def test_what_is_there_is_not_written_over(home: Path, tmp_path: Path) -> None:
    back_up(home, tmp_path / "a.tar")
    with pytest.raises(BadInput, match="has collections already"):
        restore(tmp_path / "a.tar", home)
    with pytest.raises(BadInput, match="nothing to back up"):
        back_up(tmp_path / "empty", tmp_path / "b.tar")
    with pytest.raises(BadInput, match="cannot be written"):
        back_up(home, tmp_path / "no" / "a.tar")
    assert not (tmp_path / "b.tar").exists()
    assert isinstance(back_up(home, tmp_path / "a.tar"), Backup)  # an archive is
