"""Retrieval in the loop: the documents of all rows in one store, and each question by the product's own path."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_eval.measure import MeasuredQuestion, right_answer
from hypic_eval.task import Question, Task, read_questions

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine
    from hypic_rag.rag import Passage, RagPipeline, Retriever
    from hypic_rag.retrieval.store import Store


class AskRetrieved:
    """Questions over the ``top_k`` passages that a store finds for each, as ``hypic-rag ask`` would ask them."""

    def __init__(self, top_k: int, folder: Path | None = None):
        """folder: where the stores are kept, one a file; None: HYPIC_HOME/evaluation."""
        self.top_k, self.folder = top_k, folder

    def __call__(
        self, engine: "SegmentEngine", path: Path, task: Task, questions: Sequence[Question]
    ) -> list[MeasuredQuestion]:
        """Ask over what is found among the documents of every row of the file, asked or not."""
        from hypic_rag.config import home
        from hypic_rag.rag import RagPipeline, StoreSearch

        _, everyone = read_questions(path, task.name)
        folder = (self.folder or home() / "evaluation") / f"{path.stem}-{digest_of(engine, everyone)}"
        with pooled(engine, folder, everyone) as store:
            pipeline, search = RagPipeline(engine), StoreSearch(store)
            return [ask_retrieved(pipeline, search, task, question, self.top_k) for question in questions]


def digest_of(engine: "SegmentEngine", questions: Iterable[Question]) -> str:
    """Name a pool of documents and the model whose tokens its chunks are measured in."""
    texts = [engine.fingerprint, engine.format.version, *(repr(question.documents) for question in questions)]
    return sha256("\0".join(texts).encode()).hexdigest()[:12]


def pooled(engine: "SegmentEngine", folder: Path, questions: Iterable[Question]) -> "Store":
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
    store = Store.create_or_open(folder, engine)
    try:
        if len(store.documents()) < len(given):
            run_ingest(plan_documents(store, engine, given, source), prefill="none")
    except BaseException:
        store.close()
        raise
    return store


def ask_retrieved(
    pipeline: "RagPipeline", search: "Retriever", task: Task, question: Question, top_k: int
) -> MeasuredQuestion:
    """Build the prompt over the passages found, with room for the answer. Its rows tell ``gold_found``, the share of
    the documents that the answer is in among them; None where the data set tells of none."""
    from hypic_rag.engine import Sampling
    from hypic_rag.rag import Message, RagRequest

    engine = pipeline.engine
    answer_ids = right_answer(engine, question)
    n_answer = max(task.max_new_tokens, len(answer_ids))
    sampling = Sampling(max_new_tokens=n_answer)
    request = RagRequest((Message("user", question.text),), engine.policy, sampling, n_answer, top_k=top_k)
    ready = pipeline.prepare(request, retriever=search)
    about = {"retrieved": top_k, "gold_found": gold_found(question, ready.sources)}
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
