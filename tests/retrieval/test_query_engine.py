"""Query engines over a store and over a LlamaIndex index: nodes become segments, in every way of asking."""

import asyncio
import warnings

import pytest
from fake_engine import FakeEmbedder, FakeEngine
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from hypic_rag.cache import SegmentCache
from hypic_rag.errors import BadInput, ContextTooLong, StoreMismatch
from hypic_rag.integrations.llama_index.llm import HypicLLM
from hypic_rag.integrations.llama_index.node_text import title_and_text
from hypic_rag.integrations.llama_index.query_engine import HypicQueryEngine
from hypic_rag.integrations.llama_index.retriever import StoreRetriever
from hypic_rag.integrations.llama_index.synthesizer import HypicSynthesizer
from hypic_rag.rag.unanswered import NOTHING_RELEVANT
from hypic_rag.retrieval.ingest import plan_ingest, run_ingest
from hypic_rag.retrieval.store import Store

QUESTION = "where are the ships"
TEXTS = {
    "harbour": "The ships are in the harbour of Vardal.",
    "bread": "Bread is baked from flour and water.",
    "glass": "Glass is made of sand and ash in a furnace.",
}


@pytest.fixture
def full_store(store, engine, tmp_path):
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.txt").write_text(text)
    run_ingest(plan_ingest(store, engine, [tmp_path / f"{name}.txt" for name in TEXTS]))
    engine.prefilled.clear()
    return store


@pytest.fixture
def index():
    nodes = [
        TextNode(id_=name, text=text, metadata={"title": name, "read_at": "today"}) for name, text in TEXTS.items()
    ]
    return VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=8))


@pytest.fixture
def events():
    class Recorder(BaseEventHandler):
        seen: list

        def handle(self, event, **_):
            self.seen.append(event)

    recorder = Recorder(seen=[])
    root = get_dispatcher()
    root.add_event_handler(recorder)
    yield recorder.seen
    root.event_handlers.remove(recorder)


def names(seen):
    return [event.class_name() for event in seen]


async def ask_async(engine, question=QUESTION):
    response = await engine.aquery(question)
    if isinstance(response, AsyncStreamingResponse):
        return response, "".join([text async for text in response.async_response_gen()])
    return response, str(response)


def ask(engine, question=QUESTION):
    response = engine.query(question)
    return response, "".join(response.response_gen) if isinstance(response, StreamingResponse) else str(response)


WAYS = {  # streaming, how to ask, type of the response
    "query": (False, ask, Response),
    "aquery": (False, lambda engine: asyncio.run(ask_async(engine)), Response),
    "streaming query": (True, ask, StreamingResponse),
    "streaming aquery": (True, lambda engine: asyncio.run(ask_async(engine)), AsyncStreamingResponse),
}
way = pytest.mark.parametrize("streaming, how, kind", WAYS.values(), ids=WAYS)


@way
def test_a_store_answers_from_its_cached_segments(
    full_store, folder, llm, embedder, no_default_llm, streaming, how, kind
):
    engine = HypicQueryEngine.from_store(folder, llm, similarity_top_k=2, streaming=streaming, embedder=embedder)
    response, text = how(engine)
    assert type(response) is kind
    assert text == f"ANSWER 2 documents: {QUESTION}"
    assert response.source_nodes[0].node.metadata["title"] == "harbour"
    about = response.metadata["hypic"]
    assert [use["tier"] for use in about["segments"]] == ["host", "host"]
    ids = [one.node.node_id for one in response.source_nodes]
    assert [use["node_id"] for use in about["segments"]] == ids[::-1]  # the nearest last
    assert about["dropped"] == [] and about["report"]["n_from_cache"] == 2 and about["finish_reason"] == "stop"
    assert about["answered"] is True
    llm.engine.answer = "The documents do not say."
    response, text = how(engine)
    assert text == llm.engine.answer and response.metadata["hypic"]["answered"] is False
    assert llm.engine.prefilled == []
    assert response.metadata[response.source_nodes[0].node.node_id]["title"] == "harbour"


@pytest.mark.parametrize("order, step", [("nearest-first", 1), ("nearest-last", -1), (None, 1)])
def test_nodes_stand_in_the_order_asked_for(full_store, folder, llm, embedder, order, step):
    engine = HypicQueryEngine.from_store(folder, llm, 2, embedder=embedder, order=order)
    ranked = [one.node.node_id for one in engine.retrieve(QueryBundle(QUESTION))]
    response = engine.query(QUESTION)
    assert [one.node.node_id for one in response.source_nodes] == ranked
    assert [use["node_id"] for use in response.metadata["hypic"]["segments"]] == ranked[::step]


@way
def test_an_index_answers_and_finds_its_segments_the_second_time(index, llm, no_default_llm, streaming, how, kind):
    engine = HypicQueryEngine.from_index(index, llm, streaming=streaming)
    response, text = how(engine)
    assert type(response) is kind and text == f"ANSWER 3 documents: {QUESTION}"
    assert [use["miss_reason"] for use in response.metadata["hypic"]["segments"]] == ["never_seen"] * 3
    # The file's other metadata ("read_at") is in no segment.
    expected = {llm.engine.format.document(TEXTS[name], name) for name in TEXTS}
    assert set(llm.engine.prefilled) == expected
    response, _ = how(engine)
    assert response.metadata["hypic"]["report"]["n_from_cache"] == 3


@way
def test_as_query_engine_with_the_synthesizer(index, llm, no_default_llm, streaming, how, kind):
    engine = index.as_query_engine(llm=llm, response_synthesizer=HypicSynthesizer(llm, streaming=streaming))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        response, text = how(engine)
    assert type(response) is kind and text == f"ANSWER 2 documents: {QUESTION}"


def test_as_query_engine_with_the_llm_alone_answers_but_warns(index, llm, no_default_llm):
    with pytest.warns(UserWarning, match="segments are lost"):
        text = str(index.as_query_engine(llm=llm).query(QUESTION))
    assert text.startswith("ANSWER 0 documents:") and TEXTS["harbour"] in text


@way
def test_an_empty_store_says_that_nothing_was_retrieved(store, folder, llm, embedder, streaming, how, kind):
    engine = HypicQueryEngine.from_store(folder, llm, streaming=streaming, embedder=embedder)
    response, text = how(engine)
    assert type(response) is kind and text == NOTHING_RELEVANT
    assert response.source_nodes == [] and embedder.embedded == []
    assert response.metadata["hypic"]["answered"] is False


@way
def test_low_ranked_chunks_that_do_not_fit_are_dropped_and_told(full_store, folder, embedder, streaming, how, kind):
    engine = FakeEngine(SegmentCache.open(Store.segments_folder(folder)), context_length=112)
    llm = HypicLLM(engine=engine, max_new_tokens=50)
    query_engine = HypicQueryEngine.from_store(folder, llm, 3, streaming, embedder=embedder)
    ranked = [one.node.node_id for one in query_engine.retrieve(QueryBundle(QUESTION))]
    response, text = how(query_engine)
    n_kept = len(response.source_nodes)
    assert text.startswith(f"ANSWER {n_kept} documents") and 0 < n_kept < 3
    assert [one.node.node_id for one in response.source_nodes] == ranked[:n_kept]
    assert response.metadata["hypic"]["dropped"] == ranked[n_kept:]


@pytest.mark.parametrize("streaming", [False, True])
def test_the_events_of_llama_index_and_our_own_are_sent(full_store, folder, llm, embedder, events, streaming):
    engine = HypicQueryEngine.from_store(folder, llm, 2, streaming, embedder=embedder)
    ask(engine)
    for expected in (
        "QueryStartEvent",
        "RetrievalStartEvent",
        "RetrievalEndEvent",
        "SynthesizeStartEvent",
        "LLMChatStartEvent",
        "LLMChatEndEvent",
        "SynthesizeEndEvent",
        "QueryEndEvent",
    ):
        assert names(events).count(expected) == 1, expected
    [ours] = [event for event in events if event.class_name() == "SegmentsAssembled"]
    assert (ours.query, ours.n_segments, ours.n_hits, ours.n_misses, ours.n_live) == (QUESTION, 2, 2, 0, 0)
    assert ours.ttft_ms == 2.0 and ours.prompt_tokens > ours.computed_tokens > 0


def test_a_stream_that_is_left_early_ends(full_store, folder, llm, embedder):
    engine = HypicQueryEngine.from_store(folder, llm, 2, True, embedder=embedder)
    stream = engine.query(QUESTION).response_gen
    next(stream)
    stream.close()
    assert llm.engine.n_cancelled == 1


def test_texts_without_nodes_are_segments_too(llm):
    synthesizer = HypicSynthesizer(llm)
    assert synthesizer.get_response(
        QUESTION, ["One text of some length, said the captain.", "Another one of the kind."]
    ) == (f"ANSWER 2 documents: {QUESTION}")
    assert llm.engine.prefilled[0] == llm.engine.format.document("One text of some length, said the captain.")
    assert asyncio.run(synthesizer.aget_response(QUESTION, ["x"])).startswith("ANSWER 1")
    assert "".join(HypicSynthesizer(llm, streaming=True).get_response(QUESTION, ["x"])).startswith("ANSWER 1")
    assert synthesizer.get_response(QUESTION, []) == NOTHING_RELEVANT


def test_additional_source_nodes_are_passed_on(llm):
    more = NodeWithScore(node=TextNode(text="elsewhere"))
    nodes = [NodeWithScore(node=TextNode(text="here"))]
    assert HypicSynthesizer(llm).synthesize(QUESTION, nodes, [more]).source_nodes == [*nodes, more]


def test_another_retriever_over_the_same_synthesizer(full_store, folder, llm, embedder):
    engine = HypicQueryEngine.from_store(folder, llm, 1, embedder=embedder)
    wider = engine.with_retriever(StoreRetriever(full_store, 3))
    assert isinstance(wider, HypicQueryEngine) and isinstance(wider, RetrieverQueryEngine)
    assert str(wider.query(QUESTION)).startswith("ANSWER 3")


def test_the_system_text_can_be_given(full_store, folder, llm, embedder):
    seen = []
    stream = llm.engine.stream
    llm.engine.stream = lambda prompt, *rest: seen.append(prompt) or stream(prompt, *rest)
    HypicQueryEngine.from_store(folder, llm, embedder=embedder, system="Answer like a sailor.").query(QUESTION)
    assert seen[0].parts[0].ids == llm.engine.format.leading("Answer like a sailor.")


RENDERINGS = {
    "title": ({"title": "A", "file_name": "b.txt"}, "A"),
    "an empty title": ({"title": "", "file_name": "b.txt"}, ""),
    "file name": ({"file_name": "b.txt", "date": "1999"}, "b.txt"),
    "neither": ({"date": "1999"}, ""),
    "line ends in a title": ({"title": " A\n B "}, "A B"),
}


@pytest.mark.parametrize("metadata, title", RENDERINGS.values(), ids=RENDERINGS)
def test_which_title_and_text_of_a_node_are_read(metadata, title):
    assert title_and_text(TextNode(text="The text.", metadata=metadata)) == (title, "The text.")


def test_nodes_of_a_store_know_where_they_are_from(full_store, tmp_path):
    [one] = StoreRetriever(full_store, 1).retrieve(QUESTION)
    [chunk] = full_store.chunks(str(tmp_path / "harbour.txt"))
    assert one.node.node_id == f"chunk:{chunk.id}"
    assert one.node.ref_doc_id == str(tmp_path / "harbour.txt")
    assert one.node.metadata["path"] == str(tmp_path / "harbour.txt") and one.node.metadata["ordinal"] == 0
    assert one.score == pytest.approx(
        float(
            full_store.embedder.embed_query(QUESTION) @ full_store.embedder.embed([f"harbour\n{TEXTS['harbour']}"])[0]
        )
    )


def test_a_retriever_gives_what_there_is(full_store):
    assert len(StoreRetriever(full_store, 50).retrieve(QUESTION)) == 3
    assert len(asyncio.run(StoreRetriever(full_store, 2).aretrieve(QUESTION))) == 2


MISTAKES = {
    "an empty question": (lambda engine, index, llm: engine.query("  "), BadInput, "the question is empty"),
    "an empty question to an index": (
        lambda engine, index, llm: HypicQueryEngine.from_index(index, llm).query(" "),
        BadInput,
        "the question is empty",
    ),
    "top-k of 0": (
        lambda engine, index, llm: StoreRetriever(engine.retriever.store, 0),
        BadInput,
        "top-k is 0",
    ),
    "another LLM": (
        lambda engine, index, llm: HypicSynthesizer(MockLLM()),
        BadInput,
        "needs a HypicLLM, but got a MockLLM",
    ),
    "a chunk longer than the context": (
        lambda engine, index, llm: HypicSynthesizer(llm).get_response(QUESTION, ["long " * 5000]),
        ContextTooLong,
        "do not fit",
    ),
}


@pytest.mark.parametrize("mistake, error, message", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_told(full_store, folder, embedder, index, llm, mistake, error, message):
    engine = HypicQueryEngine.from_store(folder, llm, embedder=embedder)
    with pytest.raises(error, match=message):
        mistake(engine, index, llm)


def test_an_llm_with_another_cache_answers_with_a_warning(full_store, folder, embedder):
    with pytest.warns(UserWarning, match=r"does not read the segments of .*HypicLLM.for_store"):
        engine = HypicQueryEngine.from_store(folder, HypicLLM(engine=FakeEngine()), 2, embedder=embedder)
    assert str(engine.query(QUESTION)) == f"ANSWER 2 documents: {QUESTION}"


def test_another_model_or_embedder_than_the_stores_is_refused(full_store, folder, embedder):
    other = FakeEngine(fingerprint="e" * 64)
    with pytest.raises(StoreMismatch, match=r"other weights of the model fake/model .* hypic-rag ingest"):
        HypicQueryEngine.from_store(folder, HypicLLM(engine=other), embedder=embedder)
    other.model_name = "other/model"
    with pytest.raises(StoreMismatch, match="--model fake/model"):
        HypicQueryEngine.from_store(folder, HypicLLM(engine=other), embedder=embedder)
    with pytest.raises(StoreMismatch, match="--embedder fake-embedder"):
        HypicQueryEngine.from_store(folder, HypicLLM(engine=FakeEngine()), embedder=FakeEmbedder("other"))


def test_no_store_is_told(tmp_path, llm):
    with pytest.raises(BadInput, match="hypic-rag ingest"):
        HypicQueryEngine.from_store(tmp_path / "nowhere", llm)
    with pytest.raises(BadInput, match="hypic-rag ingest"):
        HypicLLM.for_store(tmp_path / "nowhere")
