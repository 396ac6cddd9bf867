"""Settings: a file, then the environment, then what the caller gives; the last wins. Imports no torch."""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hypic_rag.errors import BadInput
from hypic_rag.paths import absolute, reason, utf8

CONFIG_NAME = "config.toml"
ENVIRONMENT_PREFIX = "HYPIC_"
HOME_VARIABLE = "HYPIC_HOME"


@dataclass(frozen=True)
class Settings:
    """Every setting with its default. The same names serve the file, ``HYPIC_NAME`` and ``--name``."""

    model: str = "default"  # "default", a local folder or a hub name ORG/NAME
    store: str = "default"  # a name under HOME/stores, or a folder path
    collection: str | None = None  # a collection of the server's (HOME/server), in the place of a store
    tenant: str = "local"  # whose collection; "local" is everybody's, where the server has no keys
    embedder: str | None = None  # a folder or a hub name; None: the store's own, for a new one MiniLM
    top_k: int = 5
    chunk_tokens: int | None = None  # of the model; None: the store's own, for a new one 512
    seam_tokens: int | None = None  # of these three, what is None is the model's calibrated value
    compose: str | None = None  # (hypic-rag calibrate), and without a calibration 8, exact, hypic
    mode: str | None = None
    log_questions: bool = False  # keep what ask and chat are asked in the store, for hypic-rag audit
    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    disk_budget: int | None = 10 * 1000**3  # bytes; None: unlimited
    host_memory: int | None = 2 * 1000**3  # bytes; None: unlimited
    device_memory: int | None = None  # bytes of a GPU; None: most of what is free there, 0: none
    remote: str | None = None  # where segments are kept below the disk, for several machines: "s3://bucket/folder"
    codec: str = "none"  # how segments are stored: "none" (as computed), "int8", "int8-kv8"
    dtype: str = "auto"  # "auto", "float32", "bfloat16", "float16"
    device: str = "auto"  # "auto", "cpu", "cuda", "cuda:1", "mps"
    conversation_memory: int = 512 * 1024**2  # bytes of end states held for the next turns of conversations
    host: str = "127.0.0.1"  # from here on: hypic-rag serve
    port: int = 8000  # 0: one that is free
    max_running: int = 8  # requests that share the engine's passes
    max_waiting: int = 64  # requests beyond those, before one is refused
    request_seconds: float = 600.0  # a request takes at most so long, its time in the queue included
    grace_seconds: float = 20.0  # at the end, for what is under way
    no_keys: bool = False  # ask nobody for an API key, whatever the address
    metrics_open: bool = False  # /metrics without an operator's key
    allowed_origins: tuple[str, ...] = ()  # whose web pages may call: "https://app.example", or "*" for all
    max_body: int = 4 * 1000**2  # bytes of a request that uploads no files
    max_upload: int = 100 * 1000**2  # bytes of one file that is sent to the server
    max_characters: int = 10_000_000  # of the text that one such file may hold
    parse_seconds: int = 120  # that reading one such file may take
    parse_memory: int = 2 * 1024**3  # bytes that reading one such file may take
    log_format: str = "text"  # "text", or "json": one object a line
    log_level: str = "info"  # "debug", "info", "warning", "error"

    @classmethod
    def load(
        cls,
        given: Mapping[str, object] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> Settings:
        """Load defaults, then HOME/config.toml, then ``HYPIC_*``, then ``given`` (None there means: not given).

        environment: instead of ``os.environ``. file: instead of HOME/config.toml; need not exist.
        Where one of them names a store, the collection of those before it is none.
        Raises BadInput for an unknown name in the file or in ``given``, for a value out of its range, and where a store
        and a collection are given side by side.
        """
        environment = os.environ if environment is None else environment
        file = home(environment) / CONFIG_NAME if file is None else file
        in_file = {name: _parse(name, raw, f"{name} in {file}") for name, raw in _read_file(file).items()}
        in_environment = {
            name: _parse(name, environment[variable], variable)
            for name in _PARSERS
            if environment.get(variable := ENVIRONMENT_PREFIX + name.upper())
        }
        by_caller = {
            name: _parse(name, raw, "--" + name.replace("_", "-"))
            for name, raw in (given or {}).items()
            if raw is not None
        }
        values: dict[str, Any] = {}
        for layer in (in_file, in_environment, by_caller):
            if "store" in layer and "collection" in layer:
                raise BadInput(
                    f"documents are in one place: give the store {layer['store']!r} or the collection "
                    f"{layer['collection']!r}, not both"
                )
            if "store" in layer:
                values.pop("collection", None)
            values |= layer
        return cls(**values)

    @property
    def torch_dtype(self) -> str | None:
        """The dtype's name for the engine; None lets it choose."""
        return None if self.dtype == "auto" else self.dtype

    @property
    def torch_device(self) -> str | None:
        """The device's name for the engine; None lets it choose."""
        return None if self.device == "auto" else self.device


def home(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder under which everything is kept: ``$HYPIC_HOME``, or ``~/.hypic-rag``. Not made here.

    Raises BadInput where it is none that can be used.
    """
    given = (os.environ if environment is None else environment).get(HOME_VARIABLE)
    return utf8(absolute(given or "~/.hypic-rag"))


def store_folder(store: str, environment: Mapping[str, str] | None = None) -> Path:
    """Return where a store lies: a name under HOME/stores; what has a slash, or begins with . or ~, is a path.

    Raises BadInput as ``home``.
    """
    if "/" in store or os.sep in store or store.startswith((".", "~")):
        return absolute(store)
    return home(environment) / "stores" / store


def parse_bytes(text: str) -> int:
    """Parse ``10GB`` (1000s), ``512MiB`` (1024s), ``1.5 GB`` or ``4096`` to bytes. Raises BadInput."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?", text.strip(), re.IGNORECASE)
    if match is None or (match[3] and not match[2]):
        raise BadInput(f"{text!r} is not a size. Write it like 10GB, 512MiB or 4096 (bytes)")
    power = " kmgtp".index(match[2].lower() or " ")
    n_bytes = float(match[1]) * (1024 if match[3] else 1000) ** power
    if n_bytes >= 2**63:
        raise BadInput(f"{text.strip()[:40]!r} is more than any disk holds. Write unlimited for no bound")
    return int(n_bytes)


def format_bytes(n_bytes: float) -> str:
    """Write a size for people, in 1000s: ``4.1 MB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "bytes" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


def format_budget(n_bytes: int | None) -> str:
    """Write a budget for people."""
    return "unlimited" if n_bytes is None else format_bytes(n_bytes)


def nearest(name: str, known: list[str]) -> str:
    """Ask `` Did you mean X?`` with the nearest known names, or nothing where none is near."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _read_file(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadInput(f"the settings file {file} cannot be opened: {reason(error)}. Check {HOME_VARIABLE}") from error
    except (ValueError, RecursionError) as error:  # of TOML, UTF-8, numbers without end
        raise BadInput(f"the settings file {file} cannot be read: {error}. Mend it or delete it") from error
    return values


def _parse(name: str, raw: object, where: str) -> Any:
    if name not in _PARSERS:
        near = nearest(name, list(_PARSERS))
        raise BadInput(f"{where}: there is no setting {name!r}.{near} All: {', '.join(sorted(_PARSERS))}")
    try:
        return _PARSERS[name](raw)
    except ValueError as error:
        raise BadInput(f"{where}: {error}") from error


def _text(raw: object) -> str:
    if not isinstance(raw, (str, Path)) or not str(raw).strip():
        raise ValueError(f"needs a text, not {raw!r}")
    if "\0" in str(raw):
        raise ValueError(f"has a NUL character, which no name can have: {raw!r}")
    return str(raw)


def _one_of(*choices: str) -> Callable[[object], str]:
    def parse(raw: object) -> str:
        if raw not in choices:
            raise ValueError(f"{raw!r} is none of {', '.join(choices)}.{nearest(str(raw), list(choices))}")
        return str(raw)

    return parse


def _whole(least: int, most: int | None = None) -> Callable[[object], int]:
    def parse(raw: object) -> int:
        is_number = isinstance(raw, int) and not isinstance(raw, bool)
        if not is_number and not (isinstance(raw, str) and re.fullmatch(r"\s*-?\d+\s*", raw)):
            raise ValueError(f"needs a whole number, not {raw!r}")
        value = int(str(raw))
        if value < least:
            raise ValueError(f"needs a whole number of at least {least}, not {value}")
        if most is not None and value > most:
            raise ValueError(f"needs a whole number of at most {most}, not {value}")
        return value

    return parse


def _number(low: float, high: float, low_open: bool = False) -> Callable[[object], float]:
    def parse(raw: object) -> float:
        try:
            value = math.nan if isinstance(raw, bool) else float(str(raw))
        except ValueError:
            value = math.nan
        if not (low < value if low_open else low <= value) or not value <= high:
            least = f"above {low:g}" if low_open else f"from {low:g}"
            raise ValueError(f"needs a number {least} to {high:g}, not {raw!r}")
        return value

    return parse


def _yes_or_no(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    word = raw.strip().lower() if isinstance(raw, str) else raw
    if word not in ("yes", "no", "true", "false", "1", "0"):
        raise ValueError(f"needs yes or no, not {raw!r}")
    return word in ("yes", "true", "1")


def _size(raw: object) -> int | None:
    if isinstance(raw, str) and raw.strip().lower() in ("unlimited", "none"):
        return None
    if isinstance(raw, (bool, float)) or not isinstance(raw, (int, str)):
        raise ValueError(f"{raw!r} is not a size. Write it like 10GB, 512MiB or unlimited")
    return parse_bytes(str(raw))


def _room(raw: object) -> int | None:
    if isinstance(raw, str) and raw.strip().lower() == "auto":
        return None
    return _bounded(raw, "a size like 40GB, auto or 0")


def _bounded(raw: object, what: str = "a size like 2GB, or 0") -> int:
    size = _size(raw)
    if size is None:
        raise ValueError(f"needs {what}, not {raw!r}")
    return size


def _some_bytes(raw: object) -> int:
    size = _size(raw)
    if not size:
        raise ValueError(f"needs a size like 100MB, not {raw!r}")
    return size


def _origins(raw: object) -> tuple[str, ...]:
    """Split a list, or a text with commas between."""
    given = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(given, (list, tuple)) or not all(isinstance(one, str) for one in given):
        raise ValueError(f"needs origins like https://app.example, with commas between, not {raw!r}")
    origins = tuple(one.strip().rstrip("/") for one in given if one.strip())
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s,*]+", origin):
            raise ValueError(
                f"{origin!r} is no origin. Write it like https://app.example or http://localhost:3000, or *"
            )
    return origins


def _seed(raw: object) -> int | None:
    if isinstance(raw, str) and raw.strip().lower() == "none":
        return None
    seed = _whole(0)(raw)
    if seed >= 2**63:
        raise ValueError(f"needs a whole number below {2**63}, not {seed}")
    return seed


_PARSERS: dict[str, Callable[[object], Any]] = {
    "model": _text,
    "store": _text,
    "collection": _text,
    "tenant": _text,
    "embedder": _text,
    "top_k": _whole(1),
    "chunk_tokens": _whole(64),
    "seam_tokens": _whole(0),
    "compose": _one_of("exact", "last_state", "add"),
    "mode": _one_of("hypic", "full"),
    "log_questions": _yes_or_no,
    "max_new_tokens": _whole(1),
    "temperature": _number(0.0, 100.0),
    "top_p": _number(0.0, 1.0, low_open=True),
    "seed": _seed,
    "disk_budget": _size,
    "host_memory": _size,
    "device_memory": _room,
    "remote": _text,
    "codec": _one_of("none", "int8", "int8-kv8"),
    "dtype": _one_of("auto", "float32", "bfloat16", "float16"),
    "device": _text,
    "conversation_memory": _bounded,
    "host": _text,
    "port": _whole(0, 65535),
    "max_running": _whole(1),
    "max_waiting": _whole(0),
    "request_seconds": _number(0.0, 86400.0, low_open=True),
    "grace_seconds": _number(0.0, 3600.0),
    "no_keys": _yes_or_no,
    "metrics_open": _yes_or_no,
    "allowed_origins": _origins,
    "max_body": _some_bytes,
    "max_upload": _some_bytes,
    "max_characters": _whole(1),
    "parse_seconds": _whole(1),
    "parse_memory": _some_bytes,
    "log_format": _one_of("text", "json"),
    "log_level": _one_of("debug", "info", "warning", "error"),
}
assert set(_PARSERS) == {field.name for field in fields(Settings)}
