"""Retrieval in the loop: the documents of all rows in one store, and each question by the product's own path."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hypic_eval.measure import MeasuredQuestion, right_answer
from hypic_eval.task import Question, Task, read_questions
from hypic_rag.config import Settings
from hypic_rag.rag.order import DEFAULT_ORDER

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine
    from hypic_rag.rag import Passage, RagPipeline, Retriever
    from hypic_rag.retrieval.store import Store


SEARCHING = ("top_k", "order", "search", "min_similarity", "neighbours", "reranker", "chunk_tokens")
"""The settings that decide what a question is answered from; all of them are ``hypic-rag ask``'s and ``ingest``'s."""


class AskRetrieved:
    """Questions over the passages that a store finds for each, as ``hypic-rag ask`` would ask them."""

    def __init__(self, settings: Settings, folder: Path | None = None):
        """settings: those of SEARCHING count. folder: where the stores are kept, one a file and size of chunks; None:
        HYPIC_HOME/evaluation."""
        self.settings, self.folder = settings, folder

    def __call__(
        self, engine: "SegmentEngine", path: Path, task: Task, questions: Sequence[Question]
    ) -> list[MeasuredQuestion]:
        """Ask over what is found among the documents of every row of the file, asked or not."""
        from hypic_rag.config import home
        from hypic_rag.rag import RagPipeline, SearchOptions, StoreSearch
        from hypic_rag.retrieval.chunking import DEFAULT_CHUNK_TOKENS

        _, everyone = read_questions(path, task.name)
        chunk_tokens = self.settings.chunk_tokens or DEFAULT_CHUNK_TOKENS
        folder = (self.folder or home() / "evaluation") / f"{path.stem}-{digest_of(engine, everyone, chunk_tokens)}"
        with pooled(engine, folder, everyone, chunk_tokens) as store:
            pipeline, search = RagPipeline(engine), StoreSearch(store, SearchOptions.of(self.settings))
            return [ask_retrieved(pipeline, search, task, question, self.settings) for question in questions]


def searching(settings: Settings) -> dict[str, Any]:
    """Name what decides which passages a question is answered from, for the figures made of it."""
    return {name: getattr(settings, name) for name in SEARCHING} | {"order": settings.order or DEFAULT_ORDER}


def digest_of(engine: "SegmentEngine", questions: Iterable[Question], chunk_tokens: int) -> str:
    """Name a pool of documents, the most tokens of its chunks, and the model whose tokens these are."""
    texts = [
        engine.fingerprint,
        engine.format.version,
        str(chunk_tokens),
        *(repr(question.documents) for question in questions),
    ]
    return sha256("\0".join(texts).encode()).hexdigest()[:12]


def pooled(engine: "SegmentEngine", folder: Path, questions: Iterable[Question], chunk_tokens: int) -> "Store":
    """Open the store with the documents of all questions, each once; a new one is made, and an unfinished one ended.

    Segments are made when they are asked for, as everywhere in an evaluation.
    """
    from hypic_rag.retrieval.ingest import plan_documents, run_ingest
    from hypic_rag.retrieval.readers.document import SourceDocument
    from hypic_rag.retrieval.store import Store

    documents = dict.fromkeys(one for question in questions for one in question.documents if one[1].strip())
    source = "evaluation"
    about = {"path": source, "format": "evaluation"}
    given = [
        SourceDocument(sha256(repr(document).encode()).hexdigest(), document[0], document[1], about)
        for document in documents
    ]
    store = Store.create_or_open(folder, engine, chunk_tokens=chunk_tokens)
    try:
        if len(store.documents()) < len(given):
            run_ingest(plan_documents(store, engine, given, source), prefill="none")
    except BaseException:
        store.close()
        raise
    return store


def ask_retrieved(
    pipeline: "RagPipeline", search: "Retriever", task: Task, question: Question, settings: Settings
) -> MeasuredQuestion:
    """Build the prompt over the passages found, with room for the answer. Its rows tell ``gold_found``, the share of
    the documents that the answer is in among them; None where the data set tells of none.

    Where nothing relevant is found the product says so without asking the model, and that is the answer.
    """
    from hypic_rag.engine import Sampling
    from hypic_rag.rag import Message, NothingFound, Order, RagRequest

    engine = pipeline.engine
    answer_ids = right_answer(engine, question)
    n_answer = max(task.max_new_tokens, len(answer_ids))
    request = RagRequest(
        (Message("user", question.text),),
        engine.policy,
        Sampling(max_new_tokens=n_answer),
        n_answer,
        top_k=settings.top_k,
        order=cast(Order, settings.order or DEFAULT_ORDER),
    )
    about = {"retrieved": settings.top_k, "searching": searching(settings)}
    try:
        ready = pipeline.prepare(request, retriever=search)
    except NothingFound as nothing:
        about["gold_found"] = gold_found(question, ())
        prompt = engine.format.prompt(question.text)
        return MeasuredQuestion(task, replace(question, documents=()), prompt, 0, answer_ids, about, str(nothing))
    about["gold_found"] = gold_found(question, ready.sources)
    found = tuple((source.title, source.text) for source in ready.sources)
    return MeasuredQuestion(task, replace(question, documents=found), ready.prompt, ready.n_dropped, answer_ids, about)


def gold_found(question: Question, sources: "Sequence[Passage]") -> float | None:
    """Share of the documents with the answer of which a passage was found, 0 to 1; None where none is known."""
    if not question.gold:
        return None
    found = [
        any(" ".join(title.split()) == " ".join(source.title.split()) and source.text in text for source in sources)
        for title, text in question.gold
    ]
    return sum(found) / len(found)
