"""What holds a model, in a forked child, pickled and copied: it refuses at once and says why, or works."""

import copy
import json
import os
import pickle
import signal
import sqlite3
import sys
import threading
import time

import pytest
from fake_engine import FakeEngine

from hypic_rag.cache import SegmentCache
from hypic_rag.engine import Policy, SegmentEngine
from hypic_rag.errors import BadInput
from hypic_rag.integrations.llama_index import llm as llm_module
from hypic_rag.integrations.llama_index.llm import HypicLLM
from hypic_rag.integrations.llama_index.query_engine import HypicQueryEngine
from hypic_rag.integrations.llama_index.retriever import StoreRetriever
from hypic_rag.integrations.llama_index.synthesizer import HypicSynthesizer
from hypic_rag.retrieval.embedder import Embedder

QUESTION = "where are the ships"


def in_child(work):
    """What it printed of what ``work`` raised there, within ten seconds; it then ends as Python programs do."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            try:
                work()
                told = "nothing"
            except BaseException as error:
                told = f"{type(error).__name__}: {error}"
            os.write(write, told.encode())
        finally:
            os._exit(0)
    os.close(write)
    deadline = time.monotonic() + 10
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hangs"
        time.sleep(0.01)
    with os.fdopen(read) as told:
        return told.read()


USES = {
    "store search": lambda store, cache, llm: store.search(store.embedder.embed_query("x"), 1),
    "store counts": lambda store, cache, llm: store.counts(),
    "retriever": lambda store, cache, llm: StoreRetriever(store).retrieve(QUESTION),
    "query engine": lambda store, cache, llm: HypicQueryEngine._over(
        StoreRetriever(store), llm, False, None, None, None, None).query(QUESTION),
    "cache contains": lambda store, cache, llm: cache.contains(llm.engine.segment_key(range(20))),
    "cache lookup": lambda store, cache, llm: cache.lookup(llm.engine.segment_key(range(20))),
    "cache discard": lambda store, cache, llm: cache.discard(["0" * 64]),
    "cache stats": lambda store, cache, llm: cache.stats(),
    "cache gc": lambda store, cache, llm: cache.gc(),
    "cache flush": lambda store, cache, llm: cache.flush(),
    "embedder": lambda store, cache, llm: EMBEDDER.embed_query("x"),
    "embedder dimension": lambda store, cache, llm: EMBEDDER.dimension,
}  # fmt: skip
EMBEDDER = Embedder("nowhere")


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_forked_child_refuses_even_where_another_thread_was_at_work(store, engine, llm, use):
    """Locks that were held at the fork stay held in the child: it must not wait for them."""
    held, ended = threading.Event(), threading.Event()

    def work():
        with store._database._lock, engine.cache._lock, EMBEDDER._lock:
            held.set()
            ended.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    held.wait(10)
    told = in_child(lambda: use(store, engine.cache, llm))
    ended.set()
    thread.join()
    assert told.startswith("UsedAfterFork: ") and "spawn" in told, told


def test_a_child_that_leaves_harms_nothing(store, engine, tmp_path):
    """It closes what its parent has open, by ``with`` and at its end; the parent goes on, and so do others."""
    key = engine.segment_key(range(20))
    engine._make(key)
    child = os.fork()
    if not child:
        status = 1
        try:
            with store, engine.cache:
                sys.exit(3)
        except SystemExit:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    engine._make(engine.segment_key(range(30)))
    assert engine.cache.verify() == [] and engine.cache.stats().tiers["disk"].n_entries == 2
    assert store.counts() == (0, 0)
    with sqlite3.connect(store.folder / "store.sqlite") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


@pytest.fixture
def loads(monkeypatch):
    """What engines were loaded with."""
    made = []

    class Loader(SegmentEngine):
        @classmethod
        def from_pretrained(cls, model, **options):
            made.append((model, options))
            return FakeEngine(options.get("cache"), policy=options.get("policy"))

    monkeypatch.setattr(llm_module, "SegmentEngine", Loader)
    return made


COPIES = {
    "pickle": lambda llm: pickle.loads(pickle.dumps(llm)),
    "json": lambda llm: HypicLLM.from_json(llm.to_json()),
    "dict": lambda llm: HypicLLM.from_dict(llm.to_dict()),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_an_llm_is_made_again_of_what_it_was_made_of(loads, tmp_path, monkeypatch, copied):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    cache, policy = SegmentCache.open("segments", 10**6, 10**7), Policy(seam_tokens=4, isolation_prefix=(1,))
    llm = HypicLLM("m", cache=cache, policy=policy, codec="int8", max_new_tokens=7, stop=("x",))
    llm.system_prompt, llm.temperature = "Be kind", 0.5
    again = copied(llm)
    (_, first), (model, second) = loads
    assert model == str(tmp_path / "m")
    assert first.pop("cache") is cache
    with second.pop("cache") as opened:
        assert opened.disk.folder == tmp_path / "segments"
        assert (opened.host.budget, opened.disk.budget) == (10**6, 10**7)
    cache.close()
    assert first == second == {"policy": policy, "codec": "int8"}
    assert (again.max_new_tokens, again.stop, again.system_prompt, again.temperature) == (7, ("x",), "Be kind", 0.5)
    assert again.complete(QUESTION).text.startswith("ANSWER")
    assert copied(again).to_dict() == llm.to_dict() == json.loads(llm.to_json()) | {"stop": ("x",)} | again.to_dict()
    loads[-1][1]["cache"].close()


def test_functions_go_along_in_a_pickle(loads):
    again = pickle.loads(pickle.dumps(HypicLLM(completion_to_prompt=str.upper)))
    assert "SHIPS" in again.complete(QUESTION).text


def test_a_deep_copy_has_settings_of_its_own_and_the_same_engine(loads):
    llm = HypicLLM(max_new_tokens=7)
    again = copy.deepcopy(llm)
    again.max_new_tokens = 9
    assert (llm.max_new_tokens, again.engine is llm.engine, len(loads)) == (7, True, 1)


def test_an_engine_can_be_given_again(engine, llm):
    assert HypicLLM.from_dict(llm.to_dict(), engine=engine).engine is engine


def bare(kind):
    return object.__new__(kind)


REFUSALS = {
    "llm": (lambda store, llm: llm, "HypicLLM.for_store"),
    "engine": (lambda store, llm: bare(SegmentEngine), "SegmentEngine.from_pretrained"),
    "synthesizer": (lambda store, llm: HypicSynthesizer(llm), "HypicSynthesizer"),
    "query engine": (lambda store, llm: bare(HypicQueryEngine), r"HypicQueryEngine\.from_collection.*from_store"),
    "retriever": (lambda store, llm: StoreRetriever(store), "the store in"),
    "store": (lambda store, llm: store, "the store in"),
    "cache": (lambda store, llm: llm.engine.cache, "this SegmentCache"),
    "embedder": (lambda store, llm: EMBEDDER, "this Embedder"),
}


@pytest.mark.parametrize("what, message", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy], ids=["pickle", "deepcopy"])
def test_what_cannot_be_made_again_refuses(store, llm, what, message, copied):
    if copied is copy.deepcopy and what(store, llm) is llm:
        pytest.skip("it shares the engine")
    with pytest.raises(BadInput, match=message):
        copied(what(store, llm))
