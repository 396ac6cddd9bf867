"""Run as a program: ingests in forked children that are killed with SIGKILL at a given point, or that race.

``ingest_child.py WORK`` prepares WORK/POINT/store for every point below, and lets four children ingest
WORK/race/docs into WORK/race/store at once. Prints {name: exit statuses} as JSON (-9 for a killed child).
"""

import json
import os
import signal
import sys
from pathlib import Path

from fake_engine import FakeEmbedder, FakeEngine

from hypic_rag.cache import SegmentCache
from hypic_rag.retrieval import manifest, schema, store
from hypic_rag.retrieval.chunking import split_document
from hypic_rag.retrieval.ingest import plan_ingest, run_ingest
from hypic_rag.retrieval.store import Store

NAMES = ("apple", "brick", "chalk", "delta", "ember", "flint")


def text(name, version):
    return " ".join(f"{name} {version} sentence {i} tells of {name} matters, {i} in all." for i in range(12))


def write_docs(folder, version):
    """Version 2: flint is gone, grain is new, apple and brick have changed, the others are as they were."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        changed = version == 2 and name in ("apple", "brick")
        (folder / f"{name}.txt").write_text(text(name, 2 if changed else 1))
    if version == 2:
        (folder / "flint.txt").unlink()
        (folder / "grain.txt").write_text(text("grain", 2))


def ingest(store_folder, docs):
    """Returns the report and the engine, whose ``prefilled`` tells what was computed."""
    with SegmentCache.open(Store.segments_folder(store_folder), None, None) as cache:
        engine = FakeEngine(cache)
        with Store.create_or_open(store_folder, engine, embedder=FakeEmbedder(), chunk_tokens=64) as store:
            return run_ingest(plan_ingest(store, engine, [docs])), engine


def die_at(owner, name, call, before=True):
    """From now on, the ``call``-th call of ``owner.name`` is the last thing that this process does."""
    wrapped, calls = getattr(owner, name), [0]

    def deadly(*args, **kwargs):
        calls[0] += 1
        if before and calls[0] == call:
            os.kill(os.getpid(), signal.SIGKILL)
        result = wrapped(*args, **kwargs)
        if calls[0] == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)


CREATION = {  # of a new store
    "before the database": (schema, "create", 1, True),
    "before the manifest": (manifest.Manifest, "write", 1, True),
    "after the manifest": (manifest.Manifest, "write", 1, False),
}
POINTS = {  # of an ingestion into a store that has version 1
    "while a file was removed": (Store, "remove_document", 1, False),
    "before embedding": (FakeEmbedder, "embed", 1, True),
    "before the first segment": (FakeEngine, "_make", 1, True),
    "between segments": (FakeEngine, "_make", 4, False),
    "before the first swap": (Store, "swap_document", 1, True),
    "inside the first swap": (store, "blob_of", 2, True),
    "between swaps": (Store, "swap_document", 1, False),
    "inside the last swap": (store, "blob_of", 11, True),
    "after the last swap": (Store, "swap_document", 3, False),
    "while segments were discarded": (SegmentCache, "discard", 1, False),
    "before the end": (Store, "forget_gone", 1, False),
}


def fork(work):
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)


def status(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill(place, name, point):
    def run():
        write_docs(place / "docs", 1)
        if name in POINTS:
            ingest(place / "store", place / "docs")
        write_docs(place / "docs", 2)
        die_at(*point)
        ingest(place / "store", place / "docs")

    return [status(fork(run))]


def race(place, n):
    write_docs(place / "docs", 1)
    waiting, starting = os.pipe()

    def run():
        os.close(starting)
        os.read(waiting, 1)  # until the parent closes its end: all start at once
        ingest(place / "store", place / "docs")

    children = [fork(run) for _ in range(n)]
    os.close(starting)
    return [status(child) for child in children]


if __name__ == "__main__":
    work = Path(sys.argv[1])
    split_document("", text("apple", 1), FakeEngine().format, 64)  # loads once what the children would each load
    statuses = {name: kill(work / name, name, point) for name, point in {**CREATION, **POINTS}.items()}
    print(json.dumps({**statuses, "race": race(work / "race", 4)}))
