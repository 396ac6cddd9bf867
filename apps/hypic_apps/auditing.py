"""An audit of the store: questions drawn, replayed under a progress bar, and told."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hypic_apps import session
from hypic_apps.progress import counting
from hypic_rag.config import Settings
from hypic_rag.engine import SegmentEngine
from hypic_rag.engine.calibration import policy_text
from hypic_rag.rag import Retriever
from hypic_rag.rag.audit import AuditReport, audit, draw_questions
from hypic_rag.rag.order_calibration import order_in_force
from hypic_rag.retrieval import Store


@dataclass(frozen=True)
class Audit:
    """why: where the policy in force comes from. n_questions: different ones, of which the sample was drawn."""

    report: AuditReport
    why: str
    n_questions: int


def audit_store(
    settings: Settings,
    engine: SegmentEngine,
    store: Store,
    search: Retriever,
    questions: Sequence[str],
    sample: int,
    seed: int,
) -> Audit:
    """Replay up to ``sample`` of the questions."""
    with counting("auditing", "questions") as on_progress:
        report = audit(
            engine,
            store,
            draw_questions(questions, sample, seed),
            engine.policy,
            top_k=settings.top_k,
            order=order_in_force(engine.fingerprint, settings.order)[0],
            max_new_tokens=settings.max_new_tokens,
            search=search,
            on_progress=on_progress,
        )
    return Audit(report, session.in_force(settings, engine).why, len(set(questions)))


def fields(done: Audit, min_agreement: float | None) -> dict[str, Any]:
    """Return everything that the text says. enough: whether answers agree as often as was asked for."""
    report = done.report
    return {
        "policy": {**asdict(report.policy), "text": policy_text(report.policy), "why": done.why},
        "n_questions": done.n_questions,
        "n": report.n,
        "same_answer": report.same_answer,
        "same_first": report.same_first,
        "first_kl_mean": report.first_kl_mean,
        "first_kl_worst": report.first_kl_worst,
        "ttft_ms": report.ttft_ms,
        "full_ttft_ms": report.full_ttft_ms,
        "n_segments": sum(one.n_segments for one in report.replays),
        "n_from_cache": sum(one.n_from_cache for one in report.replays),
        "min_agreement": min_agreement,
        "enough": min_agreement is None or report.same_answer >= min_agreement,
        "disagreements": [
            {
                "question": one.question,
                "answer": one.answer,
                "full_answer": one.full_answer,
                "first_kl": one.first_kl,
            }
            for one in report.disagreements
        ],
        "failures": [asdict(one) for one in report.failures],
    }


def text(fields: dict[str, Any]) -> str:
    """Write the same for people."""
    policy = fields["policy"]
    lines = [
        f"{policy['text']} ({policy['why']}), {fields['n']} of {fields['n_questions']} questions",
        f"same answer {fields['same_answer']:.0%}, same first token {fields['same_first']:.0%}, "
        f"first-token KL {fields['first_kl_mean']:.3f} nats (worst {fields['first_kl_worst']:.3f})",
        f"TTFT {fields['ttft_ms']:.0f} ms (full recompute {fields['full_ttft_ms']:.0f} ms), "
        f"{fields['n_from_cache']} of {fields['n_segments']} segments from cache",
    ]
    for one in fields["disagreements"]:
        lines += [
            f"\nQuestion: {one['question']}  (first-token KL {one['first_kl']:.3f})",
            f"Answer: {one['answer']}",
            f"In full: {one['full_answer']}",
        ]
    lines += [f"\ncould not ask {one['question']!r}: {one['reason']}" for one in fields["failures"]]
    if not fields["enough"]:
        lines.append(
            f"\n{fields['same_answer']:.0%} of answers agree, and {fields['min_agreement']:.0%} were asked for"
        )
    return "\n".join(lines)
