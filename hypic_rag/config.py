"""Settings: a file, then the environment, then what the caller gives; the last wins. Imports no torch."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

from hypic_rag.errors import BadInput, nearest
from hypic_rag.paths import absolute, reason, utf8
from hypic_rag.rag.answer_length import RULE
from hypic_rag.rag.order import Order
from hypic_rag.setting_values import (
    bounded,
    networks,
    number,
    one_of,
    origins,
    room,
    size,
    some_bytes,
    text,
    url_path,
    whole,
    whole_or_none,
    yes_or_no,
)

CONFIG_NAME = "config.toml"
ENVIRONMENT_PREFIX = "HYPIC_"
HOME_VARIABLE = "HYPIC_HOME"
OTHER_VARIABLES = re.compile(r"HYPIC_(HOME|KEY|EXAMPLES|TEST_\w+)")  # no settings: of clients and of the tests
FLAG = ""  # in place of a metavar: said or not said


def _setting(default: object, parse: Callable[[object], Any], metavar: str, help: str) -> Any:
    """Declare a setting, once for the file, the environment, the command line and the documentation.

    parse: reads what any of them gives, or raises ValueError. metavar: of the value in ``--help``; FLAG: there is none.
    """
    return field(default=default, metadata={"parse": parse, "metavar": metavar, "help": help})


@dataclass(frozen=True)
class Settings:
    """Every setting with its default. The same names serve the file, ``HYPIC_NAME`` and ``--name``."""

    model: str = _setting(
        "default", text, "NAME", '"default" (smollm2-hybrid-155m, Apache-2.0), a local folder, or a hub name ORG/NAME.'
    )
    # Where documents are: a store where one is named, else a collection; None is the one of the name "default".
    collection: str | None = _setting(None, text, "NAME", "A collection, which the server has, too. Default: default.")
    store: str | None = _setting(
        None, text, "NAME", "Instead of a collection a store: a name under HYPIC_HOME/stores, or a folder."
    )
    tenant: str = _setting("local", text, "NAME", "Whose collection; local where the server has no keys.")
    top_k: int = _setting(5, whole(1), "N", "How many chunks to retrieve.")
    # None: the model's calibrated one, without a calibration nearest-last.
    order: str | None = _setting(
        None,
        one_of(*get_args(Order)),
        "HOW",
        f"Passages in the prompt: {', '.join(get_args(Order))}. Default: as calibrated, else nearest-last.",
    )
    search: str = _setting("hybrid", one_of("hybrid", "dense", "lexical"), "HOW", "By vectors and words, or by one.")
    # None: what suits the embedder, 0.35 of the default one.
    min_similarity: float | None = _setting(
        None, number(-1.0, 1.0), "X", "Cosine of the nearest passage below which nothing is relevant; -1 for none."
    )
    neighbours: int = _setting(0, whole(0), "N", "Chunks before and after each that is found to read with it.")
    reranker: str | None = _setting(None, text, "NAME", "A cross-encoder that ranks again: a folder or a hub name.")
    # Of these two, None is the store's own, and for a new one MiniLM, 128 of the model's tokens.
    embedder: str | None = _setting(None, text, "NAME", '"default", a local folder, or a hub name.')
    chunk_tokens: int | None = _setting(None, whole(64), "N", "Most tokens of a chunk.")
    # Of these three, None is the model's calibrated value, and without a calibration 8, exact, hypic.
    seam_tokens: int | None = _setting(None, whole(0), "N", "First tokens of each chunk that are run live.")
    compose: str | None = _setting(None, one_of("exact", "last_state", "add"), "HOW", "exact, last_state or add.")
    mode: str | None = _setting(
        None, one_of("hypic", "full"), "MODE", "hypic (cached segments) or full (recompute everything)."
    )
    log_questions: bool = _setting(False, yes_or_no, "YES|NO", "Keep the question in the store, for hypic-rag audit.")
    # None: what suits the question.
    max_new_tokens: int | None = _setting(None, whole(1), "N", f"Most tokens of an answer. Default: {RULE}.")
    temperature: float = _setting(0.0, number(0.0, 100.0), "X", "0 takes the likeliest token.")
    top_p: float = _setting(
        1.0, number(0.0, 1.0, low_open=True), "X", "Sample among the likeliest tokens of this share."
    )
    seed: int | None = _setting(None, whole_or_none, "N", "Makes sampling repeatable.")
    disk_budget: int | None = _setting(10 * 1000**3, size, "SIZE", "Bytes of segments kept on disk: 10GB, unlimited.")
    host_memory: int | None = _setting(2 * 1000**3, size, "SIZE", "Bytes of segments kept in memory: 2GB, unlimited.")
    # None: most of what is free there.
    device_memory: int | None = _setting(
        None, room, "SIZE", "Bytes of a GPU for segments and running requests: 40GB, auto, 0."
    )
    remote: str | None = _setting(
        None, text, "ADDRESS", "Where segments are kept for several machines: s3://bucket/folder, file:///mnt/x."
    )
    codec: str = _setting(
        "none", one_of("none", "int8", "int8-kv8"), "NAME", "How segments are stored: none, int8 or int8-kv8."
    )
    dtype: str = _setting(
        "auto", one_of("auto", "float32", "bfloat16", "float16"), "TYPE", "auto, float32, bfloat16 or float16."
    )
    device: str = _setting("auto", text, "NAME", "auto, cpu, cuda, cuda:1 or mps.")
    conversation_memory: int = _setting(
        512 * 1024**2, bounded, "SIZE", "Bytes of end states held for next turns: 2GB, 0."
    )
    # Of hypic-rag serve alone:
    host: str = _setting("127.0.0.1", text, "ADDRESS", "Address to listen on; 0.0.0.0 for every one.")
    port: int = _setting(8000, whole(0, 65535), "N", "Port to listen on; 0 takes a free one.")
    served_model_name: str | None = _setting(
        None, text, "NAME", "What the model is called over HTTP; else its own name."
    )
    root_path: str = _setting("", url_path, "PATH", "Where a proxy has put the server: /rag.")
    max_running: int = _setting(8, whole(1), "N", "Most requests that the engine runs at once.")
    max_waiting: int = _setting(64, whole(0), "N", "Most requests that wait beyond those.")
    request_seconds: float = _setting(
        600.0, number(0.0, 86400.0, low_open=True), "X", "Most seconds of a request, waiting included."
    )
    grace_seconds: float = _setting(20.0, number(0.0, 3600.0), "X", "Seconds that requests under way get at the end.")
    no_keys: bool = _setting(False, yes_or_no, FLAG, "Ask nobody for an API key, whatever the address.")
    metrics_open: bool = _setting(False, yes_or_no, FLAG, "Give /metrics without an operator's key.")
    allowed_origins: tuple[str, ...] = _setting(
        (), origins, "URLS", "Whose web pages may call, with commas between; * for all."
    )
    trusted_proxies: tuple[str, ...] = _setting(
        (), networks, "ADDRESSES", "Proxies whose X-Forwarded-For is believed: 127.0.0.1, 10.0.0.0/8; * for all."
    )
    max_body: int = _setting(4 * 1000**2, some_bytes, "SIZE", "Most bytes of a request that uploads no files: 4MB.")
    max_upload: int = _setting(100 * 1000**2, some_bytes, "SIZE", "Most bytes of an uploaded file: 100MB.")
    max_characters: int = _setting(10_000_000, whole(1), "N", "Most characters of text in an uploaded file.")
    parse_seconds: int = _setting(120, whole(1), "N", "Most seconds that reading an uploaded file takes.")
    parse_memory: int = _setting(
        2 * 1024**3, some_bytes, "SIZE", "Most memory that reading an uploaded file takes: 2GiB."
    )
    log_format: str = _setting("text", one_of("text", "json"), "FORMAT", "text, or json: one object a line.")
    log_level: str = _setting(
        "info", one_of("debug", "info", "warning", "error"), "LEVEL", "debug, info, warning or error."
    )

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
        Where one of them names a store or a collection, what those before it named of these two is None.
        Raises BadInput for an unknown name in any of them, for a value out of its range, and where a store
        and a collection are given side by side.
        """
        environment = os.environ if environment is None else environment
        file = home(environment) / CONFIG_NAME if file is None else file
        in_file = {name: _parse(name, raw, f"{name} in {file}") for name, raw in _read_file(file).items()}
        in_environment = {
            name: _parse(name, raw, variable)
            for variable, raw in environment.items()
            if raw and variable.startswith(ENVIRONMENT_PREFIX) and not OTHER_VARIABLES.fullmatch(variable)
            for name in (variable.removeprefix(ENVIRONMENT_PREFIX).lower(),)
        }
        by_caller = {
            name: _parse(name, raw, "--" + name.replace("_", "-"))
            for name, raw in (given or {}).items()
            if raw is not None
        }
        merged: dict[str, Any] = {}
        for layer in (in_file, in_environment, by_caller):
            if "store" in layer and "collection" in layer:
                raise BadInput(
                    f"documents are in one place: give the store {layer['store']!r} or the collection "
                    f"{layer['collection']!r}, not both"
                )
            if {"store", "collection"} & layer.keys():
                merged.pop("store", None)
                merged.pop("collection", None)
            merged |= layer
        return cls(**merged)

    @property
    def torch_dtype(self) -> str | None:
        """The dtype's name for the engine; None lets it choose."""
        return None if self.dtype == "auto" else self.dtype

    @property
    def torch_device(self) -> str | None:
        """The device's name for the engine; None lets it choose."""
        return None if self.device == "auto" else self.device


SETTINGS = {one.name: one.metadata for one in fields(Settings)}
"""What is declared of each setting: ``parse``, ``metavar``, ``help``."""


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


def _read_file(file: Path) -> dict[str, Any]:
    try:
        if file.is_fifo():
            raise ValueError("it is a pipe, which may never end")
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadInput(f"the settings file {file} cannot be opened: {reason(error)}. Check {HOME_VARIABLE}") from error
    except (ValueError, RecursionError) as error:  # of TOML, UTF-8, numbers without end
        raise BadInput(f"the settings file {file} cannot be read: {error}. Mend it or delete it") from error
    return values


def _parse(name: str, raw: object, where: str) -> Any:
    if name not in SETTINGS:
        near = nearest(name, list(SETTINGS))
        raise BadInput(f"{where}: there is no setting {name!r}.{near} All: {', '.join(sorted(SETTINGS))}")
    try:
        return SETTINGS[name]["parse"](raw)
    except ValueError as error:
        raise BadInput(f"{where}: {error}") from error
