"""The demo: bundled documents, three questions, cached segments against full recompute."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypic_apps import ingestion, report, session
from hypic_rag.collections.ledger import Ledger
from hypic_rag.config import Settings
from hypic_rag.engine import Sampling, SegmentEngine
from hypic_rag.paths import path_text
from hypic_rag.rag import SearchOptions, Session, StoreSearch
from hypic_rag.rag.order_calibration import order_in_force
from hypic_rag.rag.warming import warm_up
from hypic_rag.retrieval.plan import IngestPlan, plan_documents
from hypic_rag.retrieval.readers import SourceDocument, read_path
from hypic_rag.retrieval.store import Store

DATA = Path(__file__).with_name("data")
DOCUMENTS = DATA / "hotpotqa_docs.jsonl"
QUESTIONS = DATA / "demo_questions.json"
MAX_ANSWER_TOKENS = 48
SOURCE = "hypic-rag demo/hotpotqa_docs.jsonl"
"""Where the documents are said to be from, and what their ids begin with: not the file, of which each installation has
its own, while the collection is everybody's."""


def demonstrate(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the fields of each answer, as of ``ask --compare``. Says on stderr what is being done."""
    settings = replace(settings, store=None, collection=_collection_name(settings))
    with session.open_to_write(settings) as (engine, store, ledger):
        plan = _plan(store, engine, ledger)
        session.say(ingestion.plan_text(plan))
        if not plan.is_empty:
            session.say(ingestion.report_text(ingestion.ingest(plan, "all", ledger)))
        options = SearchOptions.of(settings)
        policy = replace(engine.policy, mode="hypic")  # cached segments are what is shown
        for question in json.loads(QUESTIONS.read_text(encoding="utf-8")):
            conversation = Session(
                engine,
                StoreSearch(store, options),
                policy,
                Sampling(),
                settings.top_k,
                order=order_in_force(engine.fingerprint, settings.order)[0],
                max_tokens=MAX_ANSWER_TOKENS,
            )
            warm_up(engine, policy)
            for _ in conversation.ask(question):
                pass
            yield report.answer_fields(conversation.last, conversation.recompute())


def _plan(store: Store, engine: SegmentEngine, ledger: Ledger) -> IngestPlan:
    """Plan the bundled documents, in the place of those that an installation left under its own path."""
    own_path = path_text(DOCUMENTS)
    documents = []
    for found in read_path(DOCUMENTS):
        assert isinstance(found, SourceDocument)
        doc_id = SOURCE + found.doc_id.removeprefix(own_path)
        documents.append(ledger.mark(replace(found, doc_id=doc_id, metadata=found.metadata | {"path": SOURCE})))
    plan = plan_documents(store, engine, documents, SOURCE)
    former = [one for one in store.documents() if one.source != SOURCE and Path(one.source).name == DOCUMENTS.name]
    return replace(plan, removed=(*plan.removed, *former))


def _collection_name(settings: Settings) -> str:
    """Name one for each model, for its store holds the segments of one."""
    if settings.model == "default":
        return "demo"
    return "demo-" + re.sub("[^A-Za-z0-9._-]+", "-", settings.model).strip("-")[-59:]
