"""One home for documents: what the command line ingests the server has, and the other way round."""

import contextlib
import json
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from hypic_rag.collections.claim import claimed

sys.path.insert(0, str(Path(__file__).parent / "server"))
from tiny_server import Running, running

from hypic_rag import HypicLLM, HypicQueryEngine
from hypic_rag.cache import SegmentCache
from hypic_rag.config import Settings
from hypic_rag.engine import SegmentEngine
from hypic_rag.errors import BadInput
from hypic_rag.rag import SearchOptions
from hypic_rag.retrieval import Embedder

QUESTION = "Who built the lighthouse?"


@contextlib.contextmanager
def served(home: Path, model: Path) -> Iterator[Running]:
    """A server of its own on this home, as ``hypic-rag serve`` makes it."""
    from hypic_apps.server.app_state import Service
    from hypic_apps.server.chat.engine_loop import EngineLoop

    folder = home / "server"
    folder.mkdir(parents=True, exist_ok=True)
    with SegmentCache.open(folder / "segments", None, None) as cache:
        engine = SegmentEngine.from_pretrained(str(model), cache=cache)
        settings = Settings(model=str(model), max_new_tokens=6, min_similarity=-1.0)
        with running(Service(settings, folder, engine, Embedder(), EngineLoop(engine, 8, 64))) as server:
            yield server


def files(server: Running, name: str = "notes") -> dict[str, dict]:
    found = httpx.get(f"{server.url}/v1/collections/{name}/files", timeout=60).json()["data"]
    return {file["filename"]: file for file in found}


def test_what_the_command_line_ingests_the_server_has(cli, home: Path, tiny_model: Path, documents: Path) -> None:
    done = cli("ingest", documents, "--collection", "notes")
    assert (done.code, done.out.split(";")[0]) == (0, "5 new, 0 changed, 0 unchanged, 0 removed"), done.err
    again = cli("ingest", documents, "--collection", "notes")
    assert again.out.startswith("0 new, 0 changed, 5 unchanged, 0 removed; 0 segments prefilled, 0 tokens")
    (documents / "engine.txt").unlink()
    (documents / "violin.txt").write_text("The violin was sold to a sailor. He played it badly.")
    (documents / "harvest.txt").rename(documents / "fair\\1.txt")
    changed = cli("ingest", documents, "--collection", "notes")
    assert changed.out.startswith("1 new, 1 changed, 2 unchanged, 2 removed; 2 segments prefilled"), changed.out

    with served(home, tiny_model) as server:
        rows = files(server)
        assert sorted(rows) == ["fair\\1.txt", "glacier.txt", "lighthouse.txt", "violin.txt"]
        assert {row["status"] for row in rows.values()} == {"ready"}
        assert {(row["n_documents"], row["n_segments"], row["n_prefilled"]) for row in rows.values()} == {(1, 1, 1)}
        assert rows["violin.txt"]["bytes"] == (documents / "violin.txt").stat().st_size
        answer = server.chat(QUESTION, collection="notes")
        assert len(answer["documents"]) == 4
        assert {one["tier"] for one in answer["documents"]} == {"disk"}
        [best, *_] = httpx.get(f"{server.url}/v1/collections/notes/search", params={"q": QUESTION}).json()["data"]
        assert best["file_id"] == rows["lighthouse.txt"]["id"]
        gone = httpx.delete(f"{server.url}/v1/collections/notes/files/{best['file_id']}")
        assert gone.status_code == 200
        assert len(server.chat(QUESTION, collection="notes")["documents"]) == 3
        assert httpx.get(f"{server.url}/v1/collections/notes").json()["n_documents"] == 3

        # beside the server: read, not written
        asked = json.loads(cli("ask", QUESTION, "--collection", "notes", "--json").out)
        assert len(asked["sources"]) == 3 and {one["tier"] for one in asked["sources"]} == {"disk"}
        refused = cli("ingest", documents, "--collection", "notes")
        assert refused.code == 1 and "upload through it: POST /v1/collections/NAME/files" in refused.err
        assert httpx.delete(f"{server.url}/v1/collections/notes").status_code == 200
    assert "there is no collection 'notes'" in cli("ask", QUESTION, "--collection", "notes").err


def test_what_the_server_took_the_command_line_asks(cli, home: Path, tiny_model: Path, documents: Path) -> None:
    with served(home, tiny_model) as server:
        api = f"{server.url}/v1/collections"
        assert httpx.post(api, json={"name": "notes"}).status_code == 201
        nothing = cli("ask", QUESTION, "--collection", "notes")
        assert (nothing.code, nothing.out) == (1, "") and "has no documents yet" in nothing.err
        sent = [("file", (path.name, path.read_bytes())) for path in sorted(documents.iterdir())]
        assert httpx.post(f"{api}/notes/files", files=sent).status_code == 202
        while httpx.get(f"{api}/notes").json()["status"] != "ready":
            pass
    asked = json.loads(cli("ask", QUESTION, "--collection", "notes", "--json").out)
    assert {one["tier"] for one in asked["sources"]} == {"disk"}
    assert asked["sources"][0]["path"] == "lighthouse.txt"
    chat = cli("chat", "--collection", "notes", "--top-k", "1", stdin=f"{QUESTION}\n")
    assert chat.code == 0 and "lighthouse.txt" in chat.err
    (home / "asked.txt").write_text(QUESTION)
    audited = cli("audit", "--collection", "notes", "--questions", home / "asked.txt", "--mode", "hypic", "--json")
    assert (audited.code, json.loads(audited.out)["n_from_cache"]) == (0, 5)
    about = json.loads(cli("info", "--collection", "notes", "--json").out)["collection"]
    assert (about["n_files"], about["n_ready"]) == (5, 5)
    assert json.loads(cli("collections", "ls", "--json").out)[0]["name"] == "notes"
    listed = json.loads(cli("cache", "ls", "--collection", "notes", "--json").out)
    assert {one["key"]["namespace"] for one in listed} == {about["namespace"]}
    # what was uploaded stays, whatever is ingested from folders
    shutil.copytree(documents, home / "docs")
    assert cli("ingest", home / "docs", "--collection", "notes").out.startswith("5 new, 0 changed, 0 unchanged, 0 rem")
    (home / "docs" / "engine.txt").unlink()
    assert "0 changed, 4 unchanged, 1 removed" in cli("ingest", home / "docs", "--collection", "notes").out
    about = json.loads(cli("info", "--collection", "notes", "--json").out)
    assert (about["collection"]["n_files"], about["store"]["n_documents"]) == (9, 9)


def test_files_that_are_gone_are_held_until_they_are_to_go(cli, documents: Path) -> None:
    assert cli("ingest", documents, "--collection", "notes").code == 0
    for name in ("engine", "violin", "glacier"):
        (documents / f"{name}.txt").unlink()
    held = cli("ingest", documents, "--collection", "notes")
    assert held.code == 1 and "not removed: 3 documents" in held.err
    assert json.loads(cli("info", "--collection", "notes", "--json").out)["collection"]["n_files"] == 5
    assert ", 3 removed" in cli("ingest", documents, "--collection", "notes", "--remove").out
    assert json.loads(cli("info", "--collection", "notes", "--json").out)["collection"]["n_files"] == 2


def test_a_killed_ingestion_goes_on(
    cli, home: Path, tiny_model: Path, documents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hypic_rag.retrieval.ingest import _Run

    swap, n_swapped = _Run._swap, 0

    def dies(run, planned):
        nonlocal n_swapped
        n_swapped += 1
        if n_swapped > 2:
            raise KeyboardInterrupt  # as a kill: nothing is tidied up after it
        return swap(run, planned)

    with monkeypatch.context() as patch:
        patch.setattr(_Run, "_swap", dies)
        assert cli("ingest", documents, "--collection", "notes").code == 130
    about = json.loads(cli("info", "--collection", "notes", "--json").out)["collection"]
    assert (about["n_files"], about["n_ready"]) == (5, 2)
    assert "2 of 5 files ready; others are under way or failed" in cli("info", "--collection", "notes").out
    with served(home, tiny_model) as server:  # which neither shows nor loses what is half done
        rows = files(server)
        assert sorted(row["status"] for row in rows.values()) == ["failed"] * 3 + ["ready"] * 2
        assert {row["error"] for row in rows.values()} == {
            None, "its ingestion did not end: run hypic-rag ingest again"
        }  # fmt: skip
        assert len(server.chat(QUESTION, collection="notes")["documents"]) == 2
    again = cli("ingest", documents, "--collection", "notes")
    assert again.out.startswith("3 new, 0 changed, 2 unchanged, 0 removed; 0 segments prefilled"), again.out
    about = json.loads(cli("info", "--collection", "notes", "--json").out)["collection"]
    assert (about["n_files"], about["n_ready"]) == (5, 5)


def test_a_store_becomes_a_collection(cli, home: Path, tiny_model: Path, documents: Path) -> None:
    assert cli("ingest", documents, "--codec", "int8", "--store", "default").code == 0
    done = cli("collections", "add-store", "default", "notes", "--codec", "int8")
    assert done.out == "5 documents of 5 files are in the collection notes now, 0 were; 5 segments copied\n", done.err
    again = cli("collections", "add-store", "default", "notes", "--codec", "int8", "--json")
    assert json.loads(again.out) == {"n_documents": 0, "n_files": 0, "n_there": 5, "n_copied": 0, "n_cold": 0}
    own, copied = (
        json.loads(cli("ask", QUESTION, *of, "--codec", "int8", "--json").out)
        for of in (("--store", "default"), ("--collection", "notes"))
    )
    assert {one["tier"] for one in copied["sources"]} == {"disk"}
    assert (copied["answer"], copied["n_from_cache"]) == (own["answer"], 5)
    later = cli("ingest", documents, "--collection", "notes", "--codec", "int8")
    assert "5 unchanged, 0 removed; 0 segments prefilled" in later.out, later.out
    with served(home, tiny_model) as server:
        assert {(row["status"], row["n_prefilled"]) for row in files(server).values()} == {("ready", 1)}


def test_without_a_name_all_mean_the_same_collection(cli, home: Path, tiny_model: Path, documents: Path) -> None:
    assert cli("ingest", documents).code == 0
    with served(home, tiny_model) as server:
        assert len(files(server, "default")) == 5
        assert server.chat(QUESTION, collection="default")["documents"][-1]["title"] == "lighthouse"
        here = json.loads(cli("ask", QUESTION, "--json").out)
        assert here["sources"][0]["title"] == "lighthouse" and here["n_from_cache"] == 5
        refused = cli("ingest", documents)
        assert refused.code == 1 and "hypic-rag serve uses" in refused.err
        (documents / "barn.txt").write_text("The barn was painted by Elsa.")
        assert cli("ingest", documents, "--store", "beside").code == 0
    assert cli("ingest", documents).out.startswith("1 new, 0 changed, 5 unchanged")
    assert not (home / "stores" / "default").exists()


def test_llama_index_answers_from_a_collection(cli, home: Path, documents: Path) -> None:
    with pytest.raises(BadInput, match="there is no collection 'default'"):
        HypicQueryEngine.from_collection()
    assert cli("ingest", documents).code == 0
    asked = json.loads(cli("ask", QUESTION, "--json").out)
    llm = pickle.loads(pickle.dumps(HypicLLM.for_collection(max_new_tokens=6)))  # also in another process
    engine = HypicQueryEngine.from_collection(llm=llm, options=SearchOptions(min_similarity=-1.0))
    answer = engine.query(QUESTION)
    assert str(answer) == asked["answer"]
    assert answer.source_nodes[0].metadata["title"] == asked["sources"][0]["title"] == "lighthouse"
    assert {node.metadata["title"] for node in answer.source_nodes} == {one["title"] for one in asked["sources"]}
    assert {one["tier"] for one in answer.metadata["hypic"]["segments"]} <= {"disk", "host"}
    (documents / "barn.txt").write_text("The barn was painted by Elsa.")
    assert cli("ingest", documents).code == 0
    assert "barn" in {node.metadata["title"] for node in engine.query("Who painted the barn?").source_nodes}
    with pytest.warns(UserWarning, match=r"the segments of the collection default.*HypicLLM.for_collection"):
        HypicQueryEngine.from_collection(llm=HypicLLM(engine=llm.engine, namespace="local/another"))


def test_an_older_store_is_asked_until_it_is_a_collection(cli, home: Path, documents: Path) -> None:
    assert cli("ingest", documents, "--store", "default").code == 0
    remedy = "hypic-rag collections add-store default"
    asked = cli("ask", QUESTION, "--json")
    assert asked.code == 0 and json.loads(asked.out)["n_from_cache"] == 5
    assert f"documents are in the store {home / 'stores' / 'default'}" in asked.err and remedy in asked.err
    (documents / "barn.txt").write_text("The barn was painted by Elsa.")
    more = cli("ingest", documents)
    assert more.out.startswith("1 new, 0 changed, 5 unchanged") and remedy in more.err
    assert json.loads(cli("info", "--json").out)["store"]["n_documents"] == 6
    other = cli("ingest", documents, "--tenant", "acme")
    assert other.out.startswith("6 new") and remedy not in other.err  # a store was never another tenant's

    assert cli("collections", "add-store", "default").out.startswith("6 documents of 6 files are in the collection def")
    asked = cli("ask", QUESTION, "--json")
    assert json.loads(asked.out)["n_from_cache"] == 5 and "is not asked" in asked.err
    assert cli("ingest", documents).out.startswith("0 new, 0 changed, 6 unchanged")
    shutil.rmtree(home / "stores" / "default")
    assert remedy not in cli("info").err
    assert json.loads(cli("info", "--json").out)["collection"]["n_documents"] == 6


def test_one_writes_at_a_time(cli, home: Path, documents: Path) -> None:
    (home / "server").mkdir(parents=True)
    with claimed(home / "server", "ingest"):
        for command, words in {
            ("serve", "--port", "0"): "hypic-rag ingest writes to",
            ("ingest", documents, "--collection", "notes"): "another hypic-rag ingest writes to",
        }.items():
            refused = cli(*command)
            assert refused.code == 1 and words in refused.err.splitlines()[-1], refused
    with claimed(home / "server", "serve"):
        for command, words in {
            ("serve", "--port", "0"): "another hypic-rag serve uses",
            ("ingest", documents, "--collection", "notes"): "hypic-rag serve uses",
            ("collections", "add-store", documents, "notes"): "no store in",
        }.items():
            refused = cli(*command)
            assert refused.code == 1 and words in refused.err.splitlines()[-1], refused
    assert json.loads(cli("collections", "ls", "--json").out) == []


REFUSED = {  # arguments; exit code; words
    "an odd name": (("ingest", "DOCS", "--collection", "a/b"), 1, "is no name for a collection"),
    "dots": (("ask", QUESTION, "--collection", ".."), 1, "is no name for a collection"),
    "no name": (("ask", QUESTION, "--collection", ""), 2, "needs a text"),
    "nothing there": (("ask", QUESTION, "--collection", "notes"), 1, "there is no collection 'notes'"),
    "nothing there, chat": (("chat", "--collection", "notes"), 1, "there is no collection 'notes'"),
    "nothing there, info": (("info", "--collection", "notes"), 1, "there is no collection 'notes'"),
    "nothing there, audit": (("audit", "--collection", "notes"), 1, "there is no collection 'notes'"),
    "nothing there, cache": (("cache", "ls", "--collection", "notes"), 1, "there is no collection 'notes'"),
    "an odd tenant": (("ingest", "DOCS", "--collection", "notes", "--tenant", "../x"), 1, "names no tenant"),
    "both": (("ask", QUESTION, "--collection", "notes", "--store", "x"), 2, "not both"),
    "no such path": (("ingest", "/nowhere", "--collection", "notes"), 1, "/nowhere"),
    "no such store": (("collections", "add-store", "x", "notes"), 1, "there is no store in"),
}


@pytest.mark.parametrize("arguments, code, words", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_told(cli, home: Path, documents: Path, arguments, code, words) -> None:
    done = cli(*(documents if argument == "DOCS" else argument for argument in arguments))
    assert (done.code, done.out) == (code, ""), done
    assert words in " ".join(done.err.replace("│", "").split()), done.err
    assert not (home / "server" / "server.sqlite").exists()


def test_another_tenant_has_its_own(cli, documents: Path) -> None:
    assert cli("ingest", documents, "--collection", "notes", "--tenant", "acme").code == 0
    assert "there is no collection 'notes'" in cli("ask", QUESTION, "--collection", "notes").err
    asked = json.loads(cli("ask", QUESTION, "--collection", "notes", "--tenant", "acme", "--json").out)
    assert {one["tier"] for one in asked["sources"]} == {"disk"}
    missed = cli("ask", QUESTION, "--collection", "note", "--tenant", "acme").err
    assert "of the tenant acme. Did you mean notes? All: notes." in missed
