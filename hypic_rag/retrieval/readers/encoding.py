"""From the bytes of a text file to text, or the reason why not."""

from __future__ import annotations

import codecs

BYTE_ORDER_MARKS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
CONTROL_BYTES = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1b")) + b"\x7f"
MAX_HIGH_SHARE = 0.3  # of bytes >= 128 in a western text; Cyrillic, Greek or Japanese encodings have far more


class NotText(Exception):
    """The bytes are not text in an encoding that is read; ``is_binary`` if they are not text at all."""

    def __init__(self, reason: str, is_binary: bool) -> None:
        super().__init__(reason)
        self.is_binary = is_binary


def decode(raw: bytes, declared: str | None = None) -> tuple[str, str]:
    """Decode a text; return it and the name of its encoding.

    A byte order mark decides; then the ``declared`` encoding if it fits; then UTF-8 (a few damaged bytes
    become U+FFFD); then cp1252 or latin-1, only if the bytes look like a western text. Raises NotText.
    """
    for mark, name in BYTE_ORDER_MARKS:
        if raw.startswith(mark):
            return _decode_marked(raw, name)
    if b"\0" in raw:
        raise NotText("is a binary file (it holds NUL bytes)", is_binary=True)
    for name in [declared, "utf-8"] if declared else ["utf-8"]:
        try:
            return raw.decode(name), name
        except (UnicodeDecodeError, LookupError):
            continue
    text = raw.decode("utf-8", "replace")
    if _is_damaged_utf8(text):
        return text, "utf-8, damaged"
    return _decode_western(raw)


def _decode_marked(raw: bytes, name: str) -> tuple[str, str]:
    try:
        return raw.decode(name), name
    except UnicodeDecodeError as error:
        raise NotText(f"begins as {name}, but is not: {error.reason} at byte {error.start}", False) from error


def _is_damaged_utf8(text: str) -> bool:
    n_bad = text.count("\ufffd")
    n_good = sum(character > "\x7f" for character in text) - n_bad
    return n_bad < n_good


def _decode_western(raw: bytes) -> tuple[str, str]:
    if len(raw.translate(None, CONTROL_BYTES)) < len(raw):
        raise NotText("is a binary file (it holds control bytes)", is_binary=True)
    n_high = len(raw.translate(None, bytes(range(128))))
    if n_high > MAX_HIGH_SHARE * len(raw):
        raise NotText("is neither UTF-8 nor a western encoding. Save it as UTF-8", is_binary=False)
    try:
        return raw.decode("cp1252"), "cp1252"
    except UnicodeDecodeError:
        return raw.decode("latin-1"), "latin-1"
