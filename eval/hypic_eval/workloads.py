"""Prompts whose time to the first token is measured, made from a file of questions with documents."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

from hypic_eval.task import Question
from hypic_rag.errors import BadInput
from hypic_rag.prompt import Prompt

if TYPE_CHECKING:
    from hypic_rag.prompt import PromptFormat

N_DOCUMENTS = 10
N_SEGMENTS, SEGMENT_TOKENS = 8, 512


@dataclass(frozen=True)
class Workload:
    """Prompts of one shape; repetitions take them in turn. goal: how many times faster warm is than full."""

    name: str
    prompts: tuple[Prompt, ...]
    goal: float


def ten_documents(form: "PromptFormat", questions: Sequence[Question], n_prompts: int) -> Workload:
    """Take the first questions that have ten documents, as they are. Raises BadInput where none has."""
    chosen = [question for question in questions if len(question.documents) == N_DOCUMENTS][:n_prompts]
    if not chosen:
        raise BadInput(f"no question has {N_DOCUMENTS} documents; give --data a HotpotQA file")
    prompts = tuple(form.prompt(question.text, question.documents) for question in chosen)
    return Workload(f"{N_DOCUMENTS} documents", prompts, goal=8)


def long_segments(form: "PromptFormat", questions: Sequence[Question]) -> Workload:
    """Put the first question behind segments of exactly 512 tokens, cut from all documents one after another.

    Where the documents are too few they come again, cut elsewhere. Raises BadInput for equal segments.
    """
    stream = document_tokens(form, questions)
    segments = [tuple(islice(stream, SEGMENT_TOKENS)) for _ in range(N_SEGMENTS)]
    if len(set(segments)) < N_SEGMENTS:
        raise BadInput(f"{N_SEGMENTS} segments of {SEGMENT_TOKENS} tokens need more documents; give --data more rows")
    prompt = Prompt.build(form.leading(), segments, form.question(questions[0].text))
    return Workload(f"{N_SEGMENTS} segments of {SEGMENT_TOKENS}", (prompt,), goal=15)


def document_tokens(form: "PromptFormat", questions: Sequence[Question]) -> Iterator[int]:
    """Yield the tokens of all documents, again and again."""
    for title, text in cycle(document for question in questions for document in question.documents):
        yield from form.document(text, title)
