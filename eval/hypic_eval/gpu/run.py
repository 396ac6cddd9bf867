"""A run of the figures that are asked for: checks first, results on disk after every figure."""

import gc
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from hypic_eval.gpu import bench, checks
from hypic_eval.gpu.bench import Bench, WorkloadSizes
from hypic_eval.gpu.figures import breakdown, decode, host, load, prefill, storage, ttft
from hypic_eval.gpu.page import line
from hypic_eval.machine import describe_machine, installed_version
from hypic_eval.results import ResultRow, Results

FIGURES: dict[str, Callable[[Bench], Iterable[ResultRow]]] = {
    "ttft": ttft.measure,
    "breakdown": breakdown.measure,
    "prefill": prefill.measure,
    "bytes": storage.measure,
    "host": host.measure,
    "decode": decode.measure,
    "load": load.measure,
}


def run_gpu(
    name: str,
    config: Any,
    sizes: WorkloadSizes,
    device: torch.device,
    dtype: torch.dtype,
    device_memory: int | None,
    figures: Sequence[str],
    counts: bool,
    say: Callable[[str], None],
    out: Path,
    thorough: bool = False,
) -> tuple[Results, list[str]]:
    """Return results, written to ``out`` as they come, and what went wrong: checks that fail,
    figures that could not be had.

    A figure that fails does not end the run: the time on the device is dear, and the others stand.
    """
    say("start")
    results = Results("gpu", {**describe_machine(), **packages()}, [])
    failures: list[str] = []

    def note(checked: Sequence[checks.Check]) -> None:
        for check in checked:
            results.details.append(check.fields())
            say(" ".join(map(str, check.fields().values())))
        failures.extend(f"check: {check.what}" for check in checked if not check.holds)
        results.save(out)

    note(checks.small(device, say))
    release(device)
    made = bench.make(name, config, sizes, device, dtype, device_memory, counts, say)
    made.plain.thorough = thorough
    made.notes, made.samples = results.notes, results.samples
    note(checks.large(made))
    for figure in figures:
        say(f"figure {figure}")
        try:
            for row in FIGURES[figure](made):
                results.rows.append(void_where(row, failures))
                results.save(out)
                say(": ".join(line(row)[i] for i in (0, 2)))
        except Exception as error:  # out of memory, a kernel that is not there: told, and the next one measured
            traceback.print_exc()
            failures.append(f"figure {figure}: {type(error).__name__}")
            results.notes.append(f"{figure} was not measured: {type(error).__name__}: {first_line(error)}")
        results.save(out)
        say(f"figure {figure}: saved")
        release(device)
    return results, failures


def void_where(row: ResultRow, failures: Sequence[str]) -> ResultRow:
    """Mark a row after a failed check: a wrong answer's time is no figure."""
    if failed := [failure for failure in failures if failure.startswith("check")]:
        row.settings["void"] = row.settings["void"] or failed[0]
    return row


def release(device: torch.device) -> None:
    """Give back to the device what nobody refers to any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def packages() -> dict[str, str]:
    names = {"fla": "flash-linear-attention", "triton": "triton"}
    return {name: installed_version(package) for name, package in names.items()}


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")
