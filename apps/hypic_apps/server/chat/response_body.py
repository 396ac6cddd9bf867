"""What is told of an answer beside its text: usage, documents, and where its tokens came from."""

from typing import Any

from hypic_apps.server.chat.rag_chat import StreamedAnswer
from hypic_rag.engine import Generation, Report, SegmentUse
from hypic_rag.engine.assemble import cached_seam
from hypic_rag.prompt import Part
from hypic_rag.rag import PreparedRequest
from hypic_rag.rag.unanswered import is_answer


def usage(answer: StreamedAnswer) -> dict[str, Any]:
    """Count tokens as OpenAI does. Cached is what was not computed for this prompt."""
    generation = answer.generation
    n_prompt, n_answer = generation.report.prompt_tokens, sum(len(one.token_ids) for one in answer.generations)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_answer,
        "total_tokens": n_prompt + n_answer,
        "prompt_tokens_details": {"cached_tokens": generation.report.cached_tokens},
    }


def finish_reason(generation: Generation) -> str:
    """Tell it in OpenAI's words, which know of no repetition: such an answer has no end of its own, either."""
    reason = generation.finish_reason
    return "length" if reason == "repetition" else reason


def about(answer: StreamedAnswer) -> dict[str, Any]:
    return {"documents": documents(answer.ready, answer.generation.report.segments), "hypic": hypic(answer)}


def about_told(answer: StreamedAnswer) -> dict[str, Any]:
    """Describe it without the documents' texts, which have been sent before."""
    told = about(answer)
    for one in told["documents"]:
        del one["text"]
    return told


def annotations(answer: StreamedAnswer, generation: Generation, passages_url: str | None) -> list[dict[str, Any]]:
    """Cite the collection's passages of which an answer was made, in OpenAI's form. All stand for the whole of it, as
    nobody knows which sentence is from which. passages_url: of a file, with ``{}`` for its id."""
    if passages_url is None:
        return []
    cited = [
        {
            "title": source.title or source.metadata["filename"],
            "url": passages_url.replace("{}", source.metadata["file_id"]),
            "start_index": 0,
            "end_index": len(generation.text),
            "file_id": source.metadata["file_id"],
            "filename": source.metadata["filename"],
            "page_label": source.page_label,
            "document": i,
        }
        for i, source in enumerate(answer.ready.sources)
        if "file_id" in source.metadata
    ]
    return [{"type": "url_citation", "url_citation": one} for one in cited]


def documents(ready: PreparedRequest, uses: tuple[SegmentUse, ...] | None = None) -> list[dict[str, Any]]:
    """Describe the documents of the prompt, in its order. Without ``uses``, before it is run, nothing of tiers."""
    made = [
        {
            "index": i,
            "title": source.title,
            "source": source.metadata.get("filename"),
            "page_label": source.page_label,
            "text": source.text,
            "similarity": source.similarity,
            "file_id": source.metadata.get("file_id"),
            "n_tokens": len(ids),
        }
        for i, (source, ids) in enumerate(zip(ready.sources, ready.prompt.documents, strict=True))
    ]
    if uses is not None:
        for one, use in zip(made, uses, strict=True):
            one |= {"tier": use.tier, "miss_reason": use.miss_reason}
    return made


def hypic(answer: StreamedAnswer) -> dict[str, Any]:
    """Describe how the answer was made, times in ms. ttft and decode are the engine's own. queue runs from the
    request's arrival to its admission to the engine, and so has the search for documents and the making of the prompt
    in it; total runs from its arrival, too."""
    report, stream = answer.generation.report, answer.stream
    return {
        "mode": report.policy.mode,
        "seam_tokens": report.policy.seam_tokens,
        "compose": report.policy.compose,
        "prompt_tokens": report.prompt_tokens,
        "computed_tokens": report.computed_tokens,
        "cached_tokens": report.cached_tokens,
        "resumed_tokens": report.resumed_tokens,
        "n_dropped": answer.ready.n_dropped,
        "max_tokens": answer.ready.sampling.max_new_tokens,
        "finish_reason": answer.generation.finish_reason,
        "answered": is_answer(answer.generation.text) if answer.ready.prompt.documents else None,
        "ms": {
            "queue": round(stream.queue_ms, 3),
            "prefill": round(report.prefill_ms, 3),
            "assemble": round(report.assemble_ms, 3),
            "ttft": round(report.ttft_ms, 3),
            "decode": round(report.decode_ms, 3),
            "total": round(answer.total_ms, 3),
        },
        "segments": _segments(answer.ready.prompt.parts, report),
    }


def _segments(parts: tuple[Part, ...], report: Report) -> list[dict[str, Any]]:
    """List the segments in the prompt's order, every token once. Live text that an earlier turn ran
    is of the tier ``conversation``."""
    made: list[dict[str, Any]] = []
    at = n_documents = 0
    for part in parts:
        if part.kind == "live":
            n_resumed = min(len(part.ids), max(0, report.resumed_tokens - at))
            made += [
                _segment("live", n_tokens, 0, SegmentUse(n_tokens, tier))
                for n_tokens, tier in ((n_resumed, "conversation"), (len(part.ids) - n_resumed, "live"))
                if n_tokens
            ]
        else:
            seam, document = cached_seam(part, report.policy) or 0, None
            use = report.leading
            if part.kind == "document":
                use, document = report.segments[n_documents], n_documents
                n_documents += 1
            assert use is not None
            made.append(_segment(part.kind, len(part.ids), seam, use, document))
        at += len(part.ids)
    return made


def _segment(
    kind: str, n_tokens: int, seam_tokens: int, use: SegmentUse, document: int | None = None
) -> dict[str, Any]:
    return {
        "kind": kind,
        "n_tokens": n_tokens,
        "seam_tokens": seam_tokens,
        "tier": use.tier,
        "miss_reason": use.miss_reason,
        "document": document,
    }
