"""Which stored documents are no longer in their folders, and whether so many may go unasked."""

import hashlib
import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence, Set

from hypic_rag.paths import GONE
from hypic_rag.retrieval.readers import ReadFailure
from hypic_rag.retrieval.store import Store, StoredDocument

Pair = tuple[str, str]  # title and text of a chunk
Read = Sequence[tuple[StoredDocument, Sequence[Pair]]]  # documents that are there, with their chunks


def missing_documents(
    stored: Iterable[StoredDocument], read: Container[str], roots: Set[str], unknown: Set[str]
) -> list[StoredDocument]:
    """Find those from one of ``roots``, or below it, whose id is not among ``read``, and whose file was looked for.

    unknown: paths that could not be looked at or read; what is known of them, or of what is below them, is not missing.
    """
    found = []
    for one in stored:
        above = set(places(one.source))
        if one.doc_id not in read and above & roots and not above & unknown:
            found.append(one)
    return found


def unknown_paths(failures: Iterable[ReadFailure]) -> set[str]:
    """Collect paths of which nothing is known, also by another name: where a file or folder is read under one, and
    something there could not be read, nothing is known of the others."""
    failures = list(failures)
    unknown = {one.path for one in failures if one.says_nothing}
    at_or_above = {place for path in unknown for place in places(path)}
    for one in failures:
        if one.same_as and (one.same_as in at_or_above or not unknown.isdisjoint(places(one.same_as))):
            unknown.add(one.path)
    return unknown


def is_absent(source: str) -> bool:
    """Return whether the file system says that there is no such file. Raises nothing:
    what cannot be looked at is there."""
    try:
        os.stat(source)
    except GONE:
        return True
    except (OSError, ValueError):
        return False
    return False


def held_back(
    store: Store, stored: Sequence[StoredDocument], missing: Sequence[StoredDocument], read: Read, roots: Set[str]
) -> list[StoredDocument]:
    """Choose of the missing those whose content was not read elsewhere (moved, renamed), where they are too many.

    That is more than half of the store, or all that it has from one of ``roots``: so it looks where a disk is not
    mounted. One alone is never too many: it is soon made again, and a store of one could not be changed otherwise.
    """
    if not _too_many(stored, missing, read, roots):
        return []
    here = {_content(chunks) for _, chunks in read}
    lost = [
        one for one in missing if _content((chunk.title, chunk.text) for chunk in store.chunks(one.doc_id)) not in here
    ]
    return lost if _too_many(stored, lost, read, roots) else []


def places(path: str) -> Iterator[str]:
    """Yield a path and every folder above it."""
    yield path
    while (above := os.path.dirname(path)) != path:
        yield (path := above)


def _too_many(stored: Sequence[StoredDocument], lost: Sequence[StoredDocument], read: Read, roots: Set[str]) -> bool:
    if 2 * len(lost) > len(stored):
        return len(lost) > 1
    n_lost = Counter(place for one in lost for place in places(one.source) if place in roots)
    for document, _ in read:
        for place in places(document.source):
            n_lost.pop(place, None)
    return any(n > 1 for n in n_lost.values())


def _content(chunks: Iterable[Pair]) -> bytes:
    """Hash texts: equal for equal ones, however they are split, and whatever their
    titles, which may be the file's name."""
    return hashlib.sha256("".join(word for _, text in chunks for word in text.split()).encode()).digest()
