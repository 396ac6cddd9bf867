"""The options that are settings: ``--top-k`` is the setting ``top_k`` in every command that takes it."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

from typer import BadParameter, Option

from hypic_rag.config import Settings
from hypic_rag.errors import BadInput

FLAG = ""  # in place of a metavar: said or not said
HELP = {
    "mode": ("MODE", "hypic (cached segments) or full (recompute everything)."),
    "top_k": ("N", "How many chunks to retrieve."),
    "max_new_tokens": ("N", "Most tokens of an answer."),
    "temperature": ("X", "0 takes the likeliest token."),
    "top_p": ("X", "Sample among the likeliest tokens of this share."),
    "seed": ("N", "Makes sampling repeatable."),
    "seam_tokens": ("N", "First tokens of each chunk that are run live."),
    "compose": ("HOW", "exact, last_state or add."),
    "log_questions": ("YES|NO", "Keep the question in the store, for hypic-rag audit."),
    "chunk_tokens": ("N", "Most tokens of a chunk."),
    "store": ("NAME", "A name under HYPIC_HOME/stores, or a folder."),
    "collection": ("NAME", "A collection of the server's (HYPIC_HOME/server), instead of a store."),
    "tenant": ("NAME", "Whose collection; local where the server has no keys."),
    "model": ("NAME", '"default", a local folder, or a hub name ORG/NAME.'),
    "embedder": ("NAME", '"default", a local folder, or a hub name.'),
    "disk_budget": ("SIZE", "Bytes of segments kept on disk: 10GB, unlimited."),
    "host_memory": ("SIZE", "Bytes of segments kept in memory: 2GB, unlimited."),
    "device_memory": ("SIZE", "Bytes of a GPU for segments and running requests: 40GB, auto, 0."),
    "remote": ("ADDRESS", "Where segments are kept for several machines: s3://bucket/folder, file:///mnt/x."),
    "codec": ("NAME", "How segments are stored: none, int8 or int8-kv8."),
    "dtype": ("TYPE", "auto, float32, bfloat16 or float16."),
    "device": ("NAME", "auto, cpu, cuda, cuda:1 or mps."),
    "conversation_memory": ("SIZE", "Bytes of end states held for next turns: 2GB, 0."),
    "host": ("ADDRESS", "Address to listen on; 0.0.0.0 for every one."),
    "port": ("N", "Port to listen on; 0 takes a free one."),
    "max_running": ("N", "Most requests that the engine runs at once."),
    "max_waiting": ("N", "Most requests that wait beyond those."),
    "request_seconds": ("X", "Most seconds of a request, waiting included."),
    "grace_seconds": ("X", "Seconds that requests under way get at the end."),
    "no_keys": (FLAG, "Ask nobody for an API key, whatever the address."),
    "metrics_open": (FLAG, "Give /metrics without an operator's key."),
    "allowed_origins": ("URLS", "Whose web pages may call, with commas between; * for all."),
    "max_body": ("SIZE", "Most bytes of a request that uploads no files: 4MB."),
    "max_upload": ("SIZE", "Most bytes of an uploaded file: 100MB."),
    "max_characters": ("N", "Most characters of text in an uploaded file."),
    "parse_seconds": ("N", "Most seconds that reading an uploaded file takes."),
    "parse_memory": ("SIZE", "Most memory that reading an uploaded file takes: 2GiB."),
    "log_format": ("FORMAT", "text, or json: one object a line."),
    "log_level": ("LEVEL", "debug, info, warning or error."),
}
POLICY = ("mode", "seam_tokens", "compose")
SAMPLING = ("max_new_tokens", "temperature", "top_p", "seed")
DOCUMENTS = ("store", "collection", "tenant")
PLACE = (
    *(*DOCUMENTS, "model", "embedder", "disk_budget", "host_memory", "device_memory"),
    *("remote", "codec", "dtype", "device"),
)
SERVER = ("host", "port", "max_running", "max_waiting", "request_seconds", "grace_seconds", "conversation_memory")
UPLOADS = ("max_upload", "max_characters", "parse_seconds", "parse_memory")
OPERATION = ("no_keys", "metrics_open", "allowed_origins", "max_body", *UPLOADS, "log_format", "log_level")
Json = Annotated[bool, Option("--json", help="Print JSON instead of text, with the same fields.")]


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options; it receives them, read and checked, as its first argument ``settings``.

    A wrong value is bad usage (exit code 2).
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            try:
                settings = Settings.load({name: given.pop(name) for name in names})
            except BadInput as error:
                raise BadParameter(str(error)) from error
            command(settings, **given)

        own = list(inspect.signature(command).parameters.values())[1:]
        run.__signature__ = inspect.Signature([*own, *map(_parameter, names)])  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    metavar, text = HELP[name]
    flag = "--" + name.replace("_", "-")
    annotation: object
    if metavar == FLAG:
        annotation = Annotated[bool | None, Option(flag, help=text, show_default=False)]
    else:
        annotation = Annotated[str | None, Option(flag, help=text, metavar=metavar, show_default=False)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
