"""An answer, and what it cost, as text and as JSON; both say the same."""

from typing import Any

from hypic_rag.engine import Generation
from hypic_rag.rag.passage import Passage
from hypic_rag.rag.session import Answer


def answer_fields(answer: Answer, full: Generation | None = None) -> dict[str, Any]:
    """Return everything that the text says, and the policy behind it. ``full``: the same prompt recomputed."""
    report = answer.generation.report if answer.generation else None
    return {
        "question": answer.question,
        "answer": answer.text,
        "answered": answer.answered,
        "finish_reason": answer.generation.finish_reason if answer.generation else None,
        "max_new_tokens": answer.sampling.max_new_tokens if answer.sampling else None,
        "sources": _sources(answer),
        "n_dropped": answer.n_dropped,
        "mode": report.policy.mode if report else None,
        "seam_tokens": report.policy.seam_tokens if report else None,
        "compose": report.policy.compose if report else None,
        "isolation_prefix": list(report.policy.isolation_prefix) if report else None,
        "ttft_ms": round(report.ttft_ms, 3) if report else None,
        "n_segments": len(report.segments) if report else 0,
        "n_from_cache": report.n_from_cache if report else 0,
        "prompt_tokens": report.prompt_tokens if report else 0,
        "computed_tokens": report.computed_tokens if report else 0,
        "resumed_tokens": report.resumed_tokens if report else 0,
        "full_answer": full.text if full else None,
        "full_ttft_ms": round(full.report.ttft_ms, 3) if full else None,
    }


def sources_text(fields: dict[str, Any]) -> str:
    """Write a line a source, with the place its segment came from or why it was not in the cache."""
    lines = []
    for number, source in enumerate(fields["sources"], 1):
        name = "  ".join(filter(None, (source["title"], source["path"]))) or source["doc_id"]
        name += page_text(source["page_label"])
        where = source["tier"] or f"computed: {source['miss_reason']}"
        lines.append(f"  {number}. {name}  (similarity {source['similarity']:.2f}, {where})")
    if fields["n_dropped"]:
        lines.append(f"  {fields['n_dropped']} more did not fit the model's context and were left out")
    return "\n".join(lines)


def page_text(page_label: str | None) -> str:
    """Write ``, page 7`` or ``, pages 7–8``, or nothing."""
    if page_label is None:
        return ""
    return f", page{'s' * ('–' in page_label)} {page_label}"


def cost_text(fields: dict[str, Any]) -> str:
    """Write ``TTFT 123 ms (full recompute 1234 ms), 4 of 5 segments from cache, 87 of 912 tokens computed``."""
    full = "" if fields["full_ttft_ms"] is None else f" (full recompute {fields['full_ttft_ms']:.0f} ms)"
    return (
        f"TTFT {fields['ttft_ms']:.0f} ms{full}, "
        f"{fields['n_from_cache']} of {fields['n_segments']} segments from cache, "
        f"{fields['computed_tokens']} of {fields['prompt_tokens']} tokens computed"
    )


def answer_text(fields: dict[str, Any], with_answer: bool = True) -> str:
    """Write the answer, its sources and its cost, as ``ask`` and ``demo`` print them."""
    parts = [fields["answer"]] if with_answer else []
    if fields["full_answer"] is not None:
        parts.append(f"In full: {fields['full_answer']}")
    if fields["sources"] or fields["n_dropped"]:
        heading = "Sources" if fields["answered"] else "Read, and none of them says it"
        parts.append(f"{heading}:\n{sources_text(fields)}")
    if fields["finish_reason"] == "length":
        limit = fields["max_new_tokens"]
        parts.append(f"Cut off after {limit} tokens, the most for this question: --max-new-tokens N gives others")
    if fields["ttft_ms"] is not None:
        parts.append(cost_text(fields))
    return "\n".join(parts)


def _sources(answer: Answer) -> list[dict[str, Any]]:
    """List them, the most similar first, whatever their order in the prompt.

    tier: host, disk, conversation, live; None where the segment was computed, for ``miss_reason``.
    """
    n_new = len(answer.sources)
    uses = answer.generation.report.segments[-n_new:] if answer.generation and n_new else ()
    pairs = zip(answer.sources, uses, strict=True)
    return [
        {
            "title": one.title,
            "path": _path(one),
            "page_label": one.page_label,
            "doc_id": one.metadata["doc_id"],
            "ordinal": one.metadata["ordinal"],
            "similarity": round(one.similarity or 0.0, 4),
            "n_tokens": use.n_tokens,
            "tier": use.tier,
            "miss_reason": use.miss_reason,
        }
        for one, use in sorted(pairs, key=lambda pair: -(pair[0].similarity or 0.0))
    ]


def _path(one: Passage) -> Any:
    """Return a passage's path; of what was uploaded, whose path is its id, the name that it came with."""
    path, file_id = one.metadata.get("path"), one.metadata.get("file_id")
    return one.metadata.get("filename") if path is not None and path == file_id else path
