"""Every error that a user can cause; each message says what happened and what to do."""

import difflib


class HypicError(Exception):
    """Base of all errors of this package. ``str(error)`` is complete: cause and remedy."""


class BadInput(HypicError, ValueError):
    """Something given by the user cannot be used: an empty question, an unreadable file, an unknown option."""


class UnsupportedModel(HypicError):
    """No file in ``engine/models/`` knows this architecture."""


class ModelNotReady(HypicError):
    """The model folder is missing, incomplete or damaged and could not be built."""


class StoreMismatch(HypicError):
    """A store was made with another model, embedder or prompt format than the one in use."""


class StoreDamaged(HypicError):
    """A store's files contradict each other or cannot be read."""


class ContextTooLong(HypicError, ValueError):
    """A prompt and the tokens asked for do not fit the model's context."""


class RequestTooLarge(BadInput):
    """A prompt does not fit the device's pools, though nothing else is there."""


class GrammarTooComplex(BadInput):
    """An answer cannot be held to its schema or expression any further: one token would take more work than it may."""


class PassInterrupted(HypicError):
    """Ctrl-C, or what else ends a thread, came during a pass that a request shared: its answer is lost."""


class NoRoom(HypicError):
    """The disk is full or cannot be written, at the start as well."""

    def __init__(self, reason: str, what_to_do: str = "Free space there, then try again") -> None:
        """reason: what the system said."""
        super().__init__(f"this cannot be stored: {reason}. {what_to_do}")


def nearest(name: str, known: list[str]) -> str:
    """Ask `` Did you mean X?`` with the nearest known names, or nothing where none is near."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""
