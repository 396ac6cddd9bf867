"""Which fields a request may have: those that are honoured, and others with a value that asks for what happens anyway.

An allow-list: a field that is passed over may have been meant to change the answer.
"""

import json
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

from hypic_apps.server.errors import ApiError

OVER_DOCUMENTS = {"messages", "documents", "collection"}
ALIKE = 0.85  # of 1; "document" is, to "documents"
LONGEST_NAME = 60  # characters of an unknown field that are told

NEUTRAL: dict[str, tuple[Any, ...]] = {  # the values, beside null, that ask for what happens anyway
    "best_of": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (False, True),  # of tools, of which there are none
    "functions": ([],),
    "function_call": ("none", "auto"),
    "top_logprobs": (0,),
    "prompt_logprobs": (False,),
    "length_penalty": (1,),
    "bad_words": ([],),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template_kwargs": ({},),
    "modalities": (["text"],),
    "store": (False,),
    "echo": (False,),
    "suffix": ("",),
}
ABOUT = {  # who asks, and how the request is billed, routed or found again: no answer is another for it
    "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "request_id", "priority",
}  # fmt: skip


def refuse_elsewhere(given: object, fields: Collection[str]) -> None:
    """Raise ApiError for what asks over documents, where that is none of these fields."""
    for name in OVER_DOCUMENTS.difference(fields):
        if isinstance(given, dict) and given.get(name) is not None:
            text = f"{name} is for /v1/chat/completions: ask there, or leave it out"
            raise ApiError(400, text, code="unsupported_parameter", param=name)


def refuse_unknown(given: object, fields: Collection[str]) -> None:
    """Raise ApiError for a field that is none of these, and not neutral or about the request alone. Null asks for
    nothing, whatever its name."""
    if not isinstance(given, dict):
        return
    for name in given.keys() - ABOUT - {*fields}:
        if given[name] is None:
            continue
        neutral = NEUTRAL.get(name)
        if neutral is None:
            raise _unknown(name, [*fields, *NEUTRAL])
        if not any(_same(given[name], one) for one in neutral):
            text = f"{name} is not supported here: leave it out, or give {json.dumps(neutral[-1])}"
            raise ApiError(400, text, code="unsupported_parameter", param=name)


def refuse_misspelt(given: object, fields: Collection[str]) -> None:
    """Raise ApiError for a field of a part of the request that is much like one of these."""
    for name in given.keys() - {*fields} if isinstance(given, dict) else ():
        if len(name) <= LONGEST_NAME and get_close_matches(name, fields, n=1, cutoff=ALIKE):
            raise _unknown(name, fields)


def _unknown(name: str, known: Iterable[str]) -> ApiError:
    """Make the refusal of a field that nobody knows."""
    told = name[:LONGEST_NAME]
    found = get_close_matches(told, known, n=1, cutoff=ALIKE)
    to_do = f"did you mean {found[0]}?" if found else "leave it out"
    return ApiError(400, f"{told} is not a field of this request: {to_do}", code="unknown_parameter", param=told)


def _same(given: object, neutral: object) -> bool:
    """Compare, where a truth value is no number."""
    return given == neutral and isinstance(given, bool) == isinstance(neutral, bool)
