"""PrefillSegments in an IngestionPipeline: what it stores is what the query engine asks for."""

import asyncio
import pickle

import pytest
from fake_engine import in_mode
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.ingestion.pipeline import get_transformation_hash
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import TextNode

from hypic_rag.errors import BadInput
from hypic_rag.integrations.llama_index.query_engine import HypicQueryEngine
from hypic_rag.integrations.llama_index.transform import PrefillSegments

DOCUMENTS = [
    Document(
        text=" ".join(f"{name} sentence number {i} of the text." for i in range(30)),
        metadata={"title": name, "fetched": "today"},
        id_=name,
    )
    for name in ("ships", "bread")
]


def pipeline(engine):
    splitter = SentenceSplitter(chunk_size=80, chunk_overlap=0, tokenizer=engine.format.encode)
    return IngestionPipeline(transformations=[splitter, PrefillSegments(engine)])


def test_a_question_after_the_pipeline_computes_no_segment(engine, llm, no_default_llm):
    nodes = pipeline(engine).run(documents=DOCUMENTS)
    assert len(engine.prefilled) == len(nodes) > 4
    index = VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=8))
    response = HypicQueryEngine.from_index(index, llm, similarity_top_k=4).query("which sentence")
    assert response.metadata["hypic"]["report"]["n_from_cache"] == 4


def test_it_passes_nodes_on_and_reports_and_does_nothing_twice(engine):
    nodes = [
        TextNode(text="A harbour of grey stone, built long ago."),
        TextNode(text="short"),
        TextNode(text="A harbour of grey stone, built long ago."),
    ]
    prefill = PrefillSegments(engine)
    assert prefill(nodes) is nodes
    assert (prefill.report.n_segments, prefill.report.n_prefilled, prefill.report.n_hits) == (1, 1, 0)
    assert asyncio.run(prefill.acall(nodes)) is nodes
    assert (prefill.report.n_segments, prefill.report.n_prefilled, prefill.report.n_hits) == (1, 0, 1)
    assert len(engine.prefilled) == 1


def test_a_pipeline_skips_it_for_nodes_it_has_seen(engine):
    once = pipeline(engine)
    once.run(documents=DOCUMENTS)
    engine.cache.discard([engine.segment_key(ids).digest for ids in engine.prefilled])
    engine.prefilled.clear()
    once.run(documents=DOCUMENTS)
    assert engine.prefilled == []
    once.disable_cache = True
    once.run(documents=DOCUMENTS)
    assert len(engine.prefilled) > 4


def test_another_policy_is_another_transformation(engine):
    nodes = [TextNode(text="x")]
    first = get_transformation_hash(nodes, PrefillSegments(engine))
    assert first == get_transformation_hash(nodes, PrefillSegments(engine))
    assert first != get_transformation_hash(nodes, PrefillSegments(in_mode(engine, seam_tokens=32)))


def test_it_is_not_sent_to_workers(engine):
    with pytest.raises(BadInput, match="without num_workers"):
        pickle.dumps(PrefillSegments(engine))
