"""The options that are settings: ``--top-k`` is the setting ``top_k`` in every command that takes it."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

from typer import BadParameter, Option

from hypic_apps.older_store import heeding_older_store
from hypic_rag.config import FLAG, SETTINGS, Settings
from hypic_rag.errors import BadInput

POLICY = ("mode", "seam_tokens", "compose")
RETRIEVAL = ("top_k", "order", "search", "min_similarity", "neighbours", "reranker")
SAMPLING = ("max_new_tokens", "temperature", "top_p", "seed")
DOCUMENTS = ("store", "collection", "tenant")
PLACE = (
    *(*DOCUMENTS, "model", "embedder", "disk_budget", "host_memory", "device_memory"),
    *("remote", "codec", "dtype", "device"),
)
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
            if set(DOCUMENTS) <= set(names):
                settings = heeding_older_store(settings)
            command(settings, **given)

        own = list(inspect.signature(command).parameters.values())[1:]
        run.__signature__ = inspect.Signature([*own, *map(_parameter, names)])  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    flag, metavar = "--" + name.replace("_", "-"), SETTINGS[name]["metavar"]
    option = Option(flag, help=SETTINGS[name]["help"], metavar=metavar or None, show_default=False)
    annotation = Annotated[bool | None, option] if metavar == FLAG else Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
