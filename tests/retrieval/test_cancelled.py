"""An async call that is cancelled stops, whichever it is, and takes no thread of asyncio's."""

import asyncio
import threading
import time

import pytest
from fake_engine import FakeEngine
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.core.schema import NodeWithScore, TextNode

from hypic_rag.integrations.llama_index.background import result_of
from hypic_rag.integrations.llama_index.llm import HypicLLM
from hypic_rag.integrations.llama_index.query_engine import HypicQueryEngine
from hypic_rag.integrations.llama_index.retriever import StoreRetriever
from hypic_rag.integrations.llama_index.synthesizer import HypicSynthesizer
from hypic_rag.integrations.llama_index.transform import PrefillSegments

QUESTION = "where are all of the many ships that were in the old harbour of Vardal"
NODES = [TextNode(text=f"{i} ships are in the harbour of Vardal, all of grey wood.", id_=str(i)) for i in range(9)]
SCORED = [NodeWithScore(node=node) for node in NODES]


async def drain(stream):
    async for _ in await stream:
        pass


async def drain_response(response):
    async for _ in (await response).async_response_gen():
        pass


def query_engine(llm, streaming=False):
    index = VectorStoreIndex(NODES, embed_model=MockEmbedding(embed_dim=8))
    return HypicQueryEngine.from_index(index, llm, 2, streaming)


CALLS = {
    "acomplete": lambda llm: llm.acomplete(QUESTION),
    "achat": lambda llm: llm.achat([ChatMessage(content=QUESTION)]),
    "astream_complete": lambda llm: drain(llm.astream_complete(QUESTION)),
    "astream_chat": lambda llm: drain(llm.astream_chat([ChatMessage(content=QUESTION)])),
    "asynthesize": lambda llm: HypicSynthesizer(llm).asynthesize(QUESTION, SCORED),
    "aget_response": lambda llm: HypicSynthesizer(llm).aget_response(QUESTION, ["x"]),
    "aquery": lambda llm: query_engine(llm).aquery(QUESTION),
    "streamed aquery": lambda llm: drain_response(query_engine(llm, streaming=True).aquery(QUESTION)),
    "acall": lambda llm: PrefillSegments(llm.engine).acall(NODES),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_that_is_cancelled_stops_and_gives_its_thread_back(call):
    engine = FakeEngine(delay=0.05)
    llm = HypicLLM(engine=engine)

    async def cancel():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call(llm), 0.12)
        while "hypic-stream" in {thread.name for thread in threading.enumerate()}:
            await asyncio.sleep(0.01)

    asyncio.run(cancel())
    if call is CALLS["acall"]:
        assert len(engine.prefilled) < len(NODES)
    else:
        assert engine.n_cancelled == 1


def test_a_search_that_is_cancelled_is_not_waited_for(store, monkeypatch):
    """Nor does it take a thread that others need: of asyncio's own there are a few."""
    monkeypatch.setattr(store, "counts", lambda: time.sleep(0.2) or (0, 0))

    async def cancel():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(StoreRetriever(store).aretrieve(QUESTION), 0.02)
        return [one.name for one in threading.enumerate() if one.name.startswith("asyncio")]

    assert asyncio.run(cancel()) == []


def test_what_the_work_raises_comes_out():
    def work(stop):
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(result_of(work))
