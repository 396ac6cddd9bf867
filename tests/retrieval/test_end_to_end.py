"""The real default model and the real embedder: ingest, then answer out of the cache, as a user would."""

import asyncio
from collections import Counter

import pytest

from hypic_rag import HypicLLM, HypicQueryEngine
from hypic_rag.cache import DiskTier, SegmentCache
from hypic_rag.engine import Policy, SegmentEngine
from hypic_rag.retrieval import Store, plan_ingest, run_ingest

TEXTS = {
    "Vardal": "Vardal is a small town in Norway. It was founded in 1871 by the merchant Ole Bakken.",
    "Kestrel": "The Kestrel is a sailing ship with two masts. It was built in Bergen and carries salt.",
    "Rye bread": "Rye bread is baked from rye flour, water and salt. It keeps for two weeks.",
}
QUESTION = "Who founded the town of Vardal?"


@pytest.fixture(scope="module")
def made(default_model_folder, tmp_path_factory):
    """(store folder, engine) after ingesting the texts."""
    place = tmp_path_factory.mktemp("made")
    for title, text in TEXTS.items():
        (place / f"{title}.txt").write_text(text)
    store_folder = place / "store"
    cache = SegmentCache.open(Store.segments_folder(store_folder), None, None)
    engine = SegmentEngine.from_pretrained(default_model_folder, cache=cache, policy=Policy())
    with Store.create_or_open(store_folder, engine) as store:
        plan = plan_ingest(store, engine, [place / f"{title}.txt" for title in TEXTS])
        report = run_ingest(plan)
    assert report.n_prefilled == 3 and report.n_cold == 0
    stored = cache.stats().tiers["disk"]
    assert stored.n_entries == 4  # with the system text's
    assert 0.9 * stored.nbytes < plan.forecast_bytes * 4 / 3
    return store_folder, engine


def test_the_answer_comes_from_the_cache_and_is_right(made):
    store_folder, engine = made
    llm = HypicLLM(engine=engine, max_new_tokens=12)
    response = HypicQueryEngine.from_store(store_folder, llm, similarity_top_k=2).query(QUESTION)
    assert "Ole Bakken" in str(response)
    assert response.source_nodes[0].node.metadata["title"] == "Vardal" and response.source_nodes[0].score > 0.5
    about = response.metadata["hypic"]["report"]
    assert about["n_from_cache"] == about["n_segments"] == 2
    seams_and_question = 2 * 8 + len(engine.format.question(QUESTION))
    assert about["computed_tokens"] == seams_and_question < about["prompt_tokens"]


def test_it_is_asked_once_of_a_segment_whether_it_is_cached(made, tmp_path, monkeypatch):
    """From the file to the stored entry; and once more where nothing is to be done."""
    _, engine = made
    engine = engine.within("counted")
    asked = Counter()

    def counted(name):
        original = getattr(DiskTier, name)

        def ask(self, key):
            asked[getattr(key, "digest", key)] += 1
            return original(self, key)

        monkeypatch.setattr(DiskTier, name, ask)

    counted("contains")
    counted("get")
    (tmp_path / "harbour.txt").write_text(" ".join(f"Pier {i} was built of stone in {1870 + i}." for i in range(40)))
    with Store.create_or_open(tmp_path / "store", engine, chunk_tokens=64) as store:
        for _ in range(2):
            report = run_ingest(plan_ingest(store, engine, [tmp_path / "harbour.txt"]))
            chunks = [engine.format.document(chunk.text, chunk.title) for chunk in store.chunks()]
            keys = [engine.segment_key(engine.format.leading(), "leading"), *map(engine.segment_key, chunks)]
            assert asked == Counter({key.digest: 1 for key in keys})
            asked.clear()
    assert len(chunks) > 3 and report.n_prefilled == 0


def test_another_process_opens_the_model_that_the_store_names_and_streams(made):
    """As after a restart: nothing but the folder is given, and what is read comes from the disk."""
    store_folder, _ = made
    engine = HypicQueryEngine.from_store(
        store_folder, HypicLLM.for_store(store_folder, max_new_tokens=12), 2, streaming=True
    )

    async def ask():
        response = await engine.aquery(QUESTION)
        return response, "".join([text async for text in response.async_response_gen()])

    response, text = asyncio.run(ask())
    assert "Ole Bakken" in text
    assert [use["tier"] for use in response.metadata["hypic"]["segments"]] == ["disk", "disk"]
