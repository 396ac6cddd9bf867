"""What a setting's value may be: each function reads one, given as text or as of TOML, or raises ValueError."""

import ipaddress
import math
import re
from collections.abc import Callable
from pathlib import Path

from hypic_rag.errors import BadInput, nearest


def text(raw: object) -> str:
    if not isinstance(raw, (str, Path)) or not str(raw).strip():
        raise ValueError(f"needs a text, not {raw!r}")
    if "\0" in str(raw):
        raise ValueError(f"has a NUL character, which no name can have: {raw!r}")
    return str(raw)


def one_of(*choices: str) -> Callable[[object], str]:
    def parse(raw: object) -> str:
        if raw not in choices:
            raise ValueError(f"{raw!r} is none of {', '.join(choices)}.{nearest(str(raw), list(choices))}")
        return str(raw)

    return parse


def whole(least: int, most: int | None = None) -> Callable[[object], int]:
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


def number(low: float, high: float, low_open: bool = False) -> Callable[[object], float]:
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


def yes_or_no(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    word = raw.strip().lower() if isinstance(raw, str) else raw
    if word not in ("yes", "no", "true", "false", "1", "0"):
        raise ValueError(f"needs yes or no, not {raw!r}")
    return word in ("yes", "true", "1")


def size(raw: object) -> int | None:
    if isinstance(raw, str) and raw.strip().lower() in ("unlimited", "none"):
        return None
    if isinstance(raw, (bool, float)) or not isinstance(raw, (int, str)):
        raise ValueError(f"{raw!r} is not a size. Write it like 10GB, 512MiB or unlimited")
    return parse_bytes(str(raw))


def room(raw: object) -> int | None:
    if isinstance(raw, str) and raw.strip().lower() == "auto":
        return None
    return bounded(raw, "a size like 40GB, auto or 0")


def bounded(raw: object, what: str = "a size like 2GB, or 0") -> int:
    n_bytes = size(raw)
    if n_bytes is None:
        raise ValueError(f"needs {what}, not {raw!r}")
    return n_bytes


def some_bytes(raw: object) -> int:
    n_bytes = size(raw)
    if not n_bytes:
        raise ValueError(f"needs a size like 100MB, not {raw!r}")
    return n_bytes


def origins(raw: object) -> tuple[str, ...]:
    """Split a list, or a text with commas between."""
    given = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(given, (list, tuple)) or not all(isinstance(one, str) for one in given):
        raise ValueError(f"needs origins like https://app.example, with commas between, not {raw!r}")
    found = tuple(one.strip().rstrip("/") for one in given if one.strip())
    for origin in found:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s,*]+", origin):
            raise ValueError(
                f"{origin!r} is no origin. Write it like https://app.example or http://localhost:3000, or *"
            )
    return found


def networks(raw: object) -> tuple[str, ...]:
    """Split a list of addresses and networks, or a text with commas between."""
    given = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(given, (list, tuple)) or not all(isinstance(one, str) for one in given):
        raise ValueError(f"needs addresses like 127.0.0.1 or 10.0.0.0/8, with commas between, not {raw!r}")
    found = tuple(one.strip() for one in given if one.strip())
    for one in found:
        try:
            one == "*" or ipaddress.ip_network(one)
        except ValueError as error:
            raise ValueError(f"{error}. Write it like 127.0.0.1, ::1 or 10.0.0.0/8, or *") from error
    return found


def url_path(raw: object) -> str:
    """Read where in a site something lies: a path without a slash at its end, empty for the whole site."""
    if not isinstance(raw, str) or not re.fullmatch(r"(/[\w.~-]+)*/?", raw):
        raise ValueError(f"needs a path like /rag, not {raw!r}")
    return raw.rstrip("/")


def whole_or_none(raw: object) -> int | None:
    if isinstance(raw, str) and raw.strip().lower() == "none":
        return None
    return whole(0, 2**63 - 1)(raw)


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
