"""``hypic-eval ttft``: time to the first token by every way, and the ingestion rate."""

import tempfile
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from hypic_eval.commands.options import Device, Dtype, Model, open_engine, progress_bar, settings
from hypic_eval.commands.report_results import show


def run(
    data: Annotated[Path, Option("--data", exists=True, dir_okay=False, help="HotpotQA questions, jsonl.")],
    n: Annotated[int, Option("--n", min=1, help="Repetitions of each way.")] = 5,
    only: Annotated[Literal["documents", "segments"] | None, Option(help="One of the two prompts alone.")] = None,
    out: Annotated[Path, Option("--out", help="Where the results go.")] = Path("ttft.json"),
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
) -> None:
    """Time the first token: warm, cold, prefix-only, full, the plain Hugging Face model; and the ingestion.

    On ten documents a question, and on 8 segments of 512 tokens cut from the documents. The ways take turns,
    so that noise hits all of them. Goals stand beside the figures.
    """
    chosen = settings(model, device, dtype)

    from hypic_eval.hf_baseline import PlainModel
    from hypic_eval.task import read_questions
    from hypic_eval.ttft import run_ttft
    from hypic_eval.workloads import long_segments, ten_documents
    from hypic_rag.config import home

    _, questions = read_questions(data)
    home().mkdir(parents=True, exist_ok=True)
    # Under the home folder, so that the disk is the one that real stores lie on.
    with tempfile.TemporaryDirectory(dir=home(), prefix="ttft-", ignore_cleanup_errors=True) as folder:
        engine = open_engine(chosen, Path(folder))
        workloads = [] if only == "segments" else [ten_documents(engine.format, questions, n)]
        workloads += [] if only == "documents" else [long_segments(engine.format, questions)]
        plain = PlainModel(chosen.model, engine.model.dtype, engine.device)
        with progress_bar() as on_progress:
            run_ttft(engine, plain, workloads, n, on_progress).save(out)
        engine.cache.close()
    show(out)
