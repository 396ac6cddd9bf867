"""What a figure was measured on: processor, library versions, commit of the code."""

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any


@cache
def commit() -> str:
    """Return the short hash of the checked-out code, ``-dirty`` if changed; outside a
    repository the package version."""
    folder = Path(__file__).resolve().parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return f"version {installed_version('hypic-rag')}"


def describe_machine() -> dict[str, Any]:
    """Describe processor, cores usable and used, accelerator if any, and versions of what does the arithmetic."""
    import torch

    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": installed_version("transformers"),
    }


@cache
def versions() -> dict[str, str]:
    """Tell the versions of what decides an answer."""
    return {package: installed_version(package) for package in ("hypic-rag", "torch", "transformers")}


@cache
def device_name(device: Any) -> str:
    """Name the accelerator, or the processor where there is none. device: of torch."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def installed_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
