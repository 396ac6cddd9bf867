"""What is gone leaves the store; what cannot be looked at stays, and so does what is too much to go unasked."""

import errno
import io
import os
import random
import shutil

import pytest
from ordinary_user import ordinary_user

from hypic_rag.errors import BadInput
from hypic_rag.retrieval.ingest import plan_ingest, run_ingest

GONE = (errno.ENOENT, errno.ENOTDIR)
NOT_LOOKED_AT = (
    *(errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ELOOP, errno.EMFILE),
    *(errno.ENFILE, errno.ENOMEM, errno.ENAMETOOLONG, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EINTR),
)
FILES = ("a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt", "linked/e.txt", "rows.jsonl")
STORED = {"a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt", "linked/e.txt", "rows.jsonl#1", "rows.jsonl#x"}


@pytest.fixture
def docs(tmp_path):
    folder = tmp_path / "disk" / "docs"
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir(parents=True)
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    for name in FILES:
        write(folder, name)
    return folder


def write(folder, name):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = '{"text": "A row of glass."}\n{"id": "x", "text": "A row of copper."}'
    file.write_text(rows if name.endswith(".jsonl") else f"The file {name} is about {name} and about nothing else.")


def ingest(store, engine, *paths, remove=False):
    return run_ingest(plan_ingest(store, engine, paths, remove))


def names(store, docs):
    return {one.doc_id.removeprefix(f"{docs}/") for one in store.documents()}


def fail_at(patch, call, path, number):
    """Calls with this path, and for stat with one below it, fail; a folder's listing fails as a whole."""
    module = io if call == "open" else os
    real = getattr(module, call)

    def failing(given, *rest, **options):
        text = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
        if text == str(path) or (call == "stat" and text.startswith(f"{path}/")):
            raise OSError(number, os.strerror(number), text)
        return real(given, *rest, **options)

    patch.setattr(module, call, failing)


PLACES = {  # which call fails, where, what is asked for; what of the store lies there, and what is said to be unread
    "a folder above": ("stat", "..", ".", STORED, "."),
    "the folder": ("stat", ".", ".", STORED, "."),
    "the folder's listing": ("listdir", ".", ".", STORED, "."),
    "a folder in it": ("stat", "sub", ".", {"sub/c.txt", "sub/deep/d.txt"}, "sub"),
    "the listing of a folder in it": ("listdir", "sub", ".", {"sub/c.txt", "sub/deep/d.txt"}, "sub"),
    "the listing of a folder deep in it": ("listdir", "sub/deep", ".", {"sub/deep/d.txt"}, "sub/deep"),
    "a linked folder": ("stat", "linked", ".", {"linked/e.txt"}, "linked"),
    "the listing of a linked folder": ("listdir", "linked", ".", {"linked/e.txt"}, "linked"),
    "a file": ("stat", "a.txt", ".", {"a.txt"}, "a.txt"),
    "a file's bytes": ("open", "a.txt", ".", {"a.txt"}, "a.txt"),
    "a file of rows": ("open", "rows.jsonl", ".", {"rows.jsonl#1", "rows.jsonl#x"}, "rows.jsonl"),
    "a file that is named": ("stat", "a.txt", "a.txt", {"a.txt"}, "a.txt"),
    "a folder above a file that is named": ("stat", "sub", "sub/c.txt", {"sub/c.txt"}, "sub/c.txt"),
}


@pytest.mark.parametrize("call, where, asked, there, unread", PLACES.values(), ids=PLACES)
def test_what_cannot_be_looked_at_stays_and_what_is_gone_goes(store, engine, docs, call, where, asked, there, unread):
    place = docs.parent if where == ".." else docs / where
    ingest(store, engine, docs)
    for number in NOT_LOOKED_AT:
        write(docs, "new.txt")
        with pytest.MonkeyPatch.context() as patch:
            fail_at(patch, call, place, number)
            report = ingest(store, engine, docs / asked, remove=True)
        code = errno.errorcode[number]
        assert names(store, docs) >= STORED, code
        assert (report.n_removed, report.held) == (0, ()), code
        assert [failure.path for failure in report.failures] == [str(docs / unread)], code
        assert os.strerror(number) in report.failures[0].reason, code
        (docs / "new.txt").unlink()
        ingest(store, engine, docs, remove=True)
    if call != "open":  # a file that vanishes when it is opened is known to be gone the next time
        for number in GONE:
            with pytest.MonkeyPatch.context() as patch:
                fail_at(patch, call, place, number)
                report = ingest(store, engine, docs / asked, remove=True)
            assert names(store, docs) == STORED - there and not report.failures, errno.errorcode[number]
            ingest(store, engine, docs)
            assert names(store, docs) == STORED


MODES = {  # what is changed to which mode, what is asked for; how many failures
    "the folder": (".", 0o000, ".", 1),
    "a folder above": ("..", 0o000, ".", 1),
    "a folder above a named file": (".", 0o000, "a.txt", 1),
    "a folder in it": ("sub", 0o000, ".", 1),
    "a folder that can be listed, not searched": ("sub", 0o444, ".", 2),
    "the folder, which can be listed, not searched": (".", 0o444, ".", 5),
    "a folder that can be searched, not listed": ("sub", 0o111, ".", 1),
    "a file": ("b.txt", 0o000, ".", 1),
    "where a link leads": ("../../elsewhere", 0o000, ".", 1),
}


@pytest.mark.parametrize("where, mode, asked, n_failures", MODES.values(), ids=MODES)
def test_without_permission_nothing_is_gone(store, engine, docs, where, mode, asked, n_failures):
    ingest(store, engine, docs)
    place = docs / where
    before = place.stat().st_mode
    place.chmod(mode)
    try:
        with ordinary_user():
            report = ingest(store, engine, docs / asked, remove=True)
    finally:
        place.chmod(before)
    assert names(store, docs) == STORED
    assert (report.n_removed, len(report.failures)) == (0, n_failures)


def test_of_an_unknown_path_it_is_an_error_that_it_cannot_be_looked_at(store, engine, docs):
    docs.parent.chmod(0o000)
    try:
        with ordinary_user(), pytest.raises(BadInput, match="cannot be opened: Permission denied"):
            plan_ingest(store, engine, [docs])
    finally:
        docs.parent.chmod(0o755)


def test_a_link_is_gone_only_when_what_it_leads_to_is(store, engine, docs):
    (docs / "a.txt").unlink()
    (docs / "a.txt").symlink_to("a.txt")  # to itself: ELOOP
    (docs / "b.txt").unlink()
    (docs / "b.txt").symlink_to(docs / "nowhere")
    (docs / "c.txt").symlink_to(docs / "sub" / "c.txt" / "beyond")  # ENOTDIR
    report = ingest(store, engine, docs)
    assert [failure.path for failure in report.failures] == [str(docs / "a.txt")]
    assert {one.path for one in report.skipped} == {str(docs / "b.txt"), str(docs / "c.txt")}


def test_hidden_files_are_not_looked_at_so_those_that_were_named_once_stay(store, engine, docs):
    write(docs, ".notes/f.txt")
    ingest(store, engine, docs, docs / ".notes")
    report = ingest(store, engine, docs)
    assert ".notes/f.txt" in names(store, docs) and not report.failures and report.n_removed == 0
    shutil.rmtree(docs / ".notes")
    ingest(store, engine, docs)
    assert ".notes/f.txt" not in names(store, docs)


def empty(docs):
    for path in docs.iterdir():
        path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)


def unmount_elsewhere(docs):
    shutil.rmtree(docs / ".." / ".." / "elsewhere")


def rename_all(docs):
    for name in ("a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"):
        (docs / name).rename(docs / f"moved-{name.replace('/', '-')}")


def change_all(docs):
    for name in ("a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"):
        (docs / name).unlink()
        write(docs, f"other-{name}")


def remove(*names):
    def change(docs):
        for name in names:
            (docs / name).unlink()

    return change


HALVES = {  # of the seven stored; what happens to the folder, what is asked for; how many are held
    "an empty mount point": (empty, ["."], 7),
    "the folder is gone": (shutil.rmtree, ["."], 7),
    "more than half": (remove("a.txt", "b.txt", "sub/c.txt", "sub/deep/d.txt"), ["."], 4),
    "more than half, with the rows of a file": (remove("a.txt", "b.txt", "rows.jsonl"), ["."], 4),
    "less than half": (remove("a.txt", "b.txt", "sub/c.txt"), ["."], 0),
    "one of two mounts is empty": (lambda docs: shutil.rmtree(docs / "sub"), ["sub", "linked"], 2),
    "a folder in the one that is named": (lambda docs: shutil.rmtree(docs / "sub"), ["."], 0),
    "a single document": (unmount_elsewhere, [".", "linked"], 0),
    "renamed and moved": (rename_all, ["."], 0),
    "others in their place": (change_all, ["."], 4),
}


@pytest.mark.parametrize("change, asked, n_held", HALVES.values(), ids=HALVES)
def test_more_than_half_goes_only_when_that_is_said(store, engine, docs, change, asked, n_held):
    ingest(store, engine, docs)
    before = names(store, docs)
    paths = [docs / name for name in asked]
    change(docs)
    report = ingest(store, engine, *paths)
    assert len(report.held) == n_held
    if n_held:
        assert report.n_removed == 0 and names(store, docs) >= before
        assert {id_.removeprefix(f"{docs}/") for id_ in report.held} <= before
        again = ingest(store, engine, *paths, remove=True)
        assert (again.n_removed, again.held) == (n_held, ())
    gone = {one.source for one in store.documents() if not os.path.exists(one.source)}
    assert not gone


def test_the_last_document_of_a_store_may_go(store, engine, tmp_path):
    write(tmp_path, "docs/a.txt")
    ingest(store, engine, tmp_path / "docs")
    (tmp_path / "docs" / "a.txt").unlink()
    assert ingest(store, engine, tmp_path / "docs").n_removed == 1


def test_moved_documents_go_where_others_are_held(store, engine, docs):
    ingest(store, engine, docs)
    (docs / "a.txt").rename(docs / "moved.txt")
    remove("b.txt", "sub/c.txt", "sub/deep/d.txt", "rows.jsonl")(docs)
    report = ingest(store, engine, docs)
    assert (report.n_new, report.n_removed, len(report.held)) == (1, 1, 5)
    assert {"moved.txt", "b.txt"} <= names(store, docs) and "a.txt" not in names(store, docs)


@pytest.mark.parametrize("seed", range(2))
def test_any_changes_and_permissions(store, engine, tmp_path, seed):
    """The oracle asks as root. Of what an ordinary user cannot look at, nothing changes; the rest is as it is."""
    draw, docs = random.Random(seed), tmp_path / "docs"
    folders = [docs / name for name in ("", "x", "x/y", "x/y/z", "w")]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    known: set[str] = set()
    for _ in range(12):
        for folder in folders:
            for n in range(3):
                file = folder / f"{n}.txt"
                if draw.random() < 0.3:
                    file.unlink(missing_ok=True)
                elif draw.random() < 0.5:
                    file.write_text(f"File {file.relative_to(docs)}, version {draw.random()}, of many words.")
        files = [folder / f"{n}.txt" for folder in folders for n in range(3)]
        closed = [path for path in [*folders, *files] if path.exists() and draw.random() < 0.15]
        there = {str(file) for file in files if file.exists()}
        modes = {path: draw.choice((0o000, 0o111, 0o444) if path.is_dir() else (0o000,)) for path in closed}
        for path in reversed(closed):
            path.chmod(modes[path])

        try:
            with ordinary_user():
                try:
                    report = ingest(store, engine, docs, remove=True)
                    assert bool(report.failures) == bool(closed)
                except BadInput:
                    assert not known
                    continue
        finally:
            for path in closed:
                path.chmod(0o755)
        for file in files:
            listed_only = modes.get(file.parent) == 0o444 and str(file) not in there  # so that it is gone is seen
            if not any(above in modes for above in [file, *file.parents][listed_only and 2 :]):
                known.discard(str(file))
                known |= {str(file)} & there
        assert {one.doc_id for one in store.documents()} == known


def test_of_what_has_two_names_neither_is_gone_where_one_cannot_be_read(store, engine, docs, tmp_path):
    """The first name is read, the others are passed over: of a folder, and of a file."""
    ingest(store, engine, docs)
    before = names(store, docs)
    (docs / "alias").symlink_to(tmp_path / "elsewhere")
    (docs / "Alias.txt").symlink_to("b.txt")
    with ordinary_user():
        (tmp_path / "elsewhere").chmod(0)
        (docs / "b.txt").chmod(0)
        report = ingest(store, engine, docs)
        (tmp_path / "elsewhere").chmod(0o755)
        (docs / "b.txt").chmod(0o644)
    assert (report.n_removed, len(report.failures)) == (0, 2) and names(store, docs) == before
    ingest(store, engine, docs, remove=True)  # now the first names are read, and the others are the same
    assert names(store, docs) == before - {"b.txt", "linked/e.txt"} | {"Alias.txt", "alias/e.txt"}


def test_two_files_of_one_name_are_told(store, engine, docs):
    """A row's id may spell another file's."""
    (docs / "q.jsonl").write_text('{"id": "1.txt", "text": "A row about salt."}')
    write(docs, "q.jsonl#1.txt")
    report = ingest(store, engine, docs)
    assert ["another document" in one.reason for one in report.failures] == [True]
    assert len(store.documents()) == len(STORED) + 1


def test_a_file_that_has_come_back_since_the_plan_stays(store, engine, docs, tmp_path):
    ingest(store, engine, docs)
    shutil.move(docs / "a.txt", tmp_path / "away.txt")
    plan = plan_ingest(store, engine, [docs])
    shutil.move(tmp_path / "away.txt", docs / "a.txt")
    assert [one.doc_id for one in plan.removed] == [f"{docs}/a.txt"]
    assert run_ingest(plan).n_removed == 0 and "a.txt" in names(store, docs)
