"""A model's calibration: measured under a progress bar, stored, and told as a table and as JSON."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hypic_apps import session
from hypic_apps.demonstration import DOCUMENTS
from hypic_apps.progress import counting
from hypic_rag.config import Settings, format_bytes
from hypic_rag.engine import Policy, SegmentEngine
from hypic_rag.engine import calibration as library
from hypic_rag.engine.calibration import Calibration, Measurement, Thresholds, policy_text
from hypic_rag.errors import BadInput, HypicError
from hypic_rag.rag import SearchOptions, StoreSearch
from hypic_rag.rag.order_calibration import choose_order, measure_orders
from hypic_rag.rag.unanswered import no_documents
from hypic_rag.retrieval import Embedder, Store
from hypic_rag.retrieval.chunking import DEFAULT_CHUNK_TOKENS, check_sizes
from hypic_rag.retrieval.sample_prompts import sample_prompts

QUESTIONS_A_PROMPT = 4  # an order costs a quarter of what a policy does, and differs less from another


def calibrate_model(
    settings: Settings, data: Path | None, limit: int, thresholds: Mapping[str, float | None], out: Path | None
) -> tuple[Calibration, Path]:
    """Calibrate a model; return the calibration and the file that has it: the one that puts it in force, or ``out``.

    The order of passages is chosen too, where the settings' collection or store has documents: on these. thresholds:
    fields of Thresholds, None for the default. Nothing that is measured is kept in any store's cache.
    Raises BadInput for data, documents or a file that cannot be used, before anything is measured.
    """
    path = DOCUMENTS if data is None else data.expanduser()
    limits = Thresholds(**{name: value for name, value in thresholds.items() if value is not None})
    with (
        session.open_engine(replace(settings, host_memory=None), policy=Policy()) as engine,
        _documents(settings, engine) as store,
    ):
        file = library.calibration_file(engine.fingerprint) if out is None else out.expanduser().absolute()
        library.check_writable(file)
        chunk_tokens = settings.chunk_tokens or min(DEFAULT_CHUNK_TOKENS, engine.context_length // 4)
        check_sizes(chunk_tokens, 0, engine.context_length)
        prompts = sample_prompts(
            path,
            engine.format,
            limit=limit,
            n_documents=settings.top_k,
            chunk_tokens=chunk_tokens,
            max_tokens=library.prompt_room(engine),
        )
        n_documents = sum(len(prompt.documents) for prompt in prompts)
        session.say(f"{len(prompts)} prompts of {path.name}, {n_documents} segments, {engine.model_name}")
        with counting("calibrating", "runs") as on_progress:
            name = "bundled documents" if data is None else path.name
            found = library.calibrate(engine, prompts, name, limits, on_progress)
        if store is not None:
            found = _with_order(found, engine, store, settings, QUESTIONS_A_PROMPT * limit)
    library.write(found, file)
    return found, file


def _with_order(
    found: Calibration, engine: SegmentEngine, store: Store, settings: Settings, n_questions: int
) -> Calibration:
    """Choose the order under the policy that was chosen. Where that cannot be measured, the policy stands all the
    same."""
    search = StoreSearch(store, SearchOptions.of(settings))
    with counting("ordering", "questions") as on_progress:
        try:
            measured = measure_orders(
                engine,
                store,
                search,
                found.policy,
                n_questions=n_questions,
                top_k=settings.top_k,
                on_progress=on_progress,
            )
        except HypicError as error:
            return replace(found, order_reason=str(error))
    order, why = choose_order(measured)
    return replace(found, order=order, order_reason=why, orders=measured)


@contextlib.contextmanager
def _documents(settings: Settings, engine: SegmentEngine) -> Iterator[Store | None]:
    """Open the settings' store or collection, to be read. None where none is named, and there is no default one with
    documents of the engine's model. Raises BadInput, StoreMismatch."""
    is_named = settings.store is not None or settings.collection is not None
    if not is_named and not session.is_there(settings):
        yield None
        return
    folder = session.documents_folder(settings)
    embedder = None if settings.embedder is None else Embedder(settings.embedder)
    with contextlib.ExitStack() as opened:
        store: Store | None = None
        try:
            store = opened.enter_context(Store.open(folder, embedder=embedder))
            store.check_engine(engine)
        except HypicError:
            if is_named:
                raise
            store = None
        if store is not None and not store.counts()[1]:
            if is_named:
                named_so = settings.store or settings.collection
                raise BadInput(no_documents("store" if settings.store else "collection", named_so))
            store = None
        yield store


def print_table(found: Calibration) -> None:
    """Print a row a policy, full recompute first, the chosen one marked. behind: ids of an isolation prefix."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "seam", "compose", "behind"):
        table.add_column(heading, no_wrap=True)
    for heading in ("first\nKL", "KL a\ntoken", "same\nanswer", "same\nfirst", "TTFT\nms", "bytes a\nsegment"):
        table.add_column(heading, no_wrap=True, justify="right")
    for one in found.measurements:
        table.add_row("*" if one.policy == found.policy or _is_full(one, found) else "", *_cells(one))
    print(_title(found))
    Console().print(table)
    for order in found.orders:
        print(f"{'*' if order.order == found.order else ' '}  {order.order:<13}  {order.nll:.3f} nats a token")


def outcome_text(found: Calibration, file: Path, in_force: bool) -> str:
    """Say what was chosen and why, and what it means for answers from now on."""
    lines = [f"{policy_text(found.policy)}: {found.reason}."]
    if found.order is not None:
        lines.append(f"Passages {found.order}: {found.order_reason}.")
    else:
        why = found.order_reason or "that takes documents: ingest, then calibrate again"
        lines.append(f"No order of passages was chosen: {why}.")
    if not in_force:
        return "\n".join([*lines, f"Written to {file}; nothing was put in force."])
    lines.append(f"In force for {found.model} wherever no policy is given ({file}).")
    if found.policy.mode == "full":
        lines.append("Answers are computed in full; ingest with --prefill none, and --mode hypic reuses all the same.")
    else:
        lines.append(
            "Stored segments of another seam or prefix will be computed again when asked for, or by hypic-rag ingest."
        )
    return "\n".join(lines)


def fields(found: Calibration, file: Path) -> dict[str, Any]:
    """Return everything that the table and the text say."""
    return {"file": str(file), **found.fields()}


def _title(found: Calibration) -> str:
    first = found.measurements[0]
    return f"{found.model} on {found.data}: n={found.n} prompts, {first.n_tokens} tokens of answers, {found.device}"


def _is_full(one: Measurement, found: Calibration) -> bool:
    return one.policy.mode == found.policy.mode == "full"


def _cells(one: Measurement) -> tuple[str, ...]:
    policy = one.policy
    shown = (str(policy.seam_tokens), policy.compose, " ".join(map(str, policy.isolation_prefix)) or "-")
    return (
        *(("full", "", "") if policy.mode == "full" else shown),
        f"{one.first_kl:.3f}",
        f"{one.kl:.3f}",
        f"{one.same_answer:.0%}",
        f"{one.same_first:.0%}",
        f"{one.ttft_ms:.0f}",
        format_bytes(one.segment_bytes) if one.segment_bytes else "-",
    )
