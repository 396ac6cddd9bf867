"""Questions over documents as prompts that fit the model's context beside their answer."""

from collections.abc import Sequence

from hypic_rag.engine import SegmentEngine
from hypic_rag.errors import ContextTooLong
from hypic_rag.prompt import Ids, Prompt, PromptFormat, fit_documents


def prompt_over(
    engine: SegmentEngine,
    question: str,
    documents: Sequence[tuple[str, str]],
    max_new_tokens: int,
    system: str | None = None,
) -> tuple[Prompt, int]:
    """Return the prompt of a question over (title, text) documents, and how many were dropped.

    Documents that do not fit the context beside an answer of ``max_new_tokens`` are dropped whole, the last first.
    Raises ContextTooLong where not even the first fits, BadInput for an empty question.
    """
    return fit_first_turn(engine, engine.format.prompt(question, documents, system), max_new_tokens)


def fit_first_turn(engine: SegmentEngine, whole: Prompt, max_new_tokens: int) -> tuple[Prompt, int]:
    """Fit a prompt with all its documents, as ``prompt_over`` does."""
    room = engine.context_length - max_new_tokens
    prompt, n_dropped = fit_documents(whole, room)
    if prompt.n_tokens > room or (whole.documents and not prompt.documents):
        raise ContextTooLong(
            f"the question and its first document do not fit: {engine.model_name} takes {engine.context_length} "
            f"tokens, {max_new_tokens} of them kept for the answer, and the prompt with all {len(whole.documents)} "
            f"documents has {whole.n_tokens}. Ask for a shorter answer (a smaller max_new_tokens), or use smaller "
            "chunks or a model with a longer context"
        )
    return prompt, n_dropped


def next_turn(
    form: PromptFormat, before: Prompt, answer_ids: Sequence[int], question: str, documents: Sequence[Ids], room: int
) -> tuple[Prompt, int]:
    """Return the next turn, and how many of its documents were left out, the last first, to have at most ``room``
    tokens.

    Earlier turns stay whole, so that it may be longer even without any.
    """
    prompt, n_dropped = fit_documents(form.follow_up(before, answer_ids, question, documents), room)
    if n_dropped > len(documents):
        return form.follow_up(before, answer_ids, question), len(documents)
    return prompt, n_dropped
