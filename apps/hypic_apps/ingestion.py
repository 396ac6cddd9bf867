"""What an ingestion will do, its progress, and what it did, told to a person."""

import dataclasses
import shutil
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hypic_rag.config import format_budget, format_bytes
from hypic_rag.retrieval import run_ingest
from hypic_rag.retrieval.ingest import IngestPlan, IngestProgress, IngestReport

if TYPE_CHECKING:
    from hypic_rag.collections.ledger import Ledger

SHOWN_SKIPPED = 5
SHOWN_HELD = 3


def ingest(plan: IngestPlan, prefill: Literal["all", "none"] = "all", ledger: "Ledger | None" = None) -> IngestReport:
    """Carry out the plan under a progress bar on stderr. ledger: of the collection that the plan's store is of."""
    columns = (
        TextColumn("ingesting"),
        BarColumn(),
        TextColumn("{task.fields[documents]} documents, {task.fields[tokens]} tokens"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None, documents="", tokens="")

        def show(progress: IngestProgress) -> None:
            if ledger is not None:
                ledger.progress(progress.n_documents, progress.lost)
            by_tokens = prefill == "all" and progress.total_tokens > 0
            bar.update(
                task,
                completed=progress.n_tokens if by_tokens else progress.n_documents,
                total=progress.total_tokens if by_tokens else progress.total_documents,
                documents=f"{progress.n_documents} of {progress.total_documents}",
                tokens=f"{progress.n_tokens:,} of {progress.total_tokens if by_tokens else 0:,}",
            )

        if ledger is not None:
            ledger.begin(plan)
        show(IngestProgress(0, len(plan.documents), 0, plan.prefill_tokens))
        report = run_ingest(plan, prefill, show)
        if ledger is not None:
            ledger.end()
        return report


def plan_text(plan: IngestPlan, prefill: Literal["all", "none"] = "all") -> str:
    """Say what is to come, in one line: documents, chunks, bytes, and whether there is room for them."""
    changes = ", ".join(f"{len(plan.of(change))} {change}" for change in ("new", "changed", "unchanged"))
    changes += f", {len(plan.removed)} removed" + (f", {len(plan.held)} held" if plan.held else "")
    documents = f"{len(plan.documents)} documents ({changes}), {plan.n_chunks} chunks"
    if prefill == "none":
        return f"{documents}: none will be prefilled"
    budget = plan.engine.cache.stats().tiers["disk"].budget
    limits = (
        f"room for {format_bytes(plan.room_bytes)}: budget {format_budget(budget)}, "
        f"{format_bytes(shutil.disk_usage(plan.store.folder).free)} of disk free"
    )
    outcome = f"fits ({limits})"
    if not plan.fits:
        outcome = (
            f"does NOT fit ({limits}); what has no room will be computed when asked for. More room: --disk-budget SIZE"
        )
    return (
        f"{documents}: {plan.n_segments} to prefill, {plan.prefill_tokens:,} tokens, "
        f"{format_bytes(plan.forecast_bytes)}, {outcome}"
    )


def report_text(report: IngestReport) -> str:
    """Say what was done, in one line."""
    n_same = report.n_unchanged + report.n_metadata
    text = (
        f"{report.n_new} new, {report.n_changed} changed, {n_same} unchanged, {report.n_removed} removed; "
        f"{report.n_prefilled} segments prefilled, {report.prefill_tokens:,} tokens in {report.seconds:.1f} s"
    )
    if report.n_cold:
        why = " (no more room)" if report.is_full else ""
        text += f"; {report.n_cold} segments will be computed when asked for{why}"
    return text


def unread_text(report: IngestReport) -> str:
    """Write a line for every file that could not be read, and for the first that were passed over."""
    lines = [f"could not read {failure}" for failure in report.failures]
    lines += [f"passed over {skipped}" for skipped in report.skipped[:SHOWN_SKIPPED]]
    if len(report.skipped) > SHOWN_SKIPPED:
        lines.append(f"passed over {len(report.skipped) - SHOWN_SKIPPED} more (--json lists all)")
    return "\n".join(lines)


def held_text(report: IngestReport) -> str:
    """Say how many documents are gone but were not removed, some of them, and how to be rid of them."""
    if not report.held:
        return ""
    shown = ", ".join(report.held[:SHOWN_HELD])
    more = f" and {len(report.held) - SHOWN_HELD} more" if len(report.held) > SHOWN_HELD else ""
    return (
        f"not removed: {len(report.held)} documents that are gone, more than half of the store or all from a path: "
        f"{shown}{more}. Is a disk not mounted? If they are to go, give the same command with --remove"
    )


def fields(plan: IngestPlan, report: IngestReport) -> dict[str, Any]:
    """Return everything that the texts say."""
    done = dataclasses.asdict(report)
    for name in ("failures", "skipped"):
        done[name] = [{"path": one.path, "line": one.line, "reason": one.reason} for one in getattr(report, name)]
    return {
        "n_documents": len(plan.documents),
        "n_chunks": plan.n_chunks,
        "forecast_segments": plan.n_segments,
        "forecast_tokens": plan.prefill_tokens,
        "forecast_bytes": plan.forecast_bytes,
        "room_bytes": plan.room_bytes,
        "fits": plan.fits,
        **done,
    }
