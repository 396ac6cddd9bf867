"""``hypic-rag cache``: the segments in a folder, looked at and moved about. Only ``why`` of a text needs the model.

With --collection those of its namespace, in the server's folder; what is named by digests, ``verify`` and ``gc`` are of
the whole folder.
"""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from typer import Abort, Argument, BadParameter, Exit, Option, confirm

from hypic_apps.cli import options
from hypic_rag.config import Settings, format_bytes
from hypic_rag.paths import exists

Server = Annotated[
    bool,
    Option("--server", help="Of all collections, not of one."),
]
Namespace = Annotated[str | None, Option("--namespace", metavar="NAME", help="Of this namespace alone.")]
Model = Annotated[str | None, Option("--model", metavar="FINGERPRINT", help="Of models whose fingerprint begins so.")]
OlderThan = Annotated[str | None, Option("--older-than", metavar="AGE", help="Not used for so long: 12h, 7d, 4w.")]
Digests = Annotated[list[str], Argument(metavar="DIGEST...", help="Or its beginning, as cache ls shows it.")]
PLACE = (*options.DOCUMENTS, "disk_budget")


@options.with_settings(*PLACE)
def ls(
    settings: Settings,
    server: Server = False,
    namespace: Namespace = None,
    model: Model = None,
    limit: Annotated[int | None, Option("--limit", min=1, help="At most so many.", show_default=False)] = None,
    as_json: options.Json = False,
) -> None:
    """List entries, the newest first."""
    from hypic_apps import cache_folders as folders
    from hypic_rag.cache.tiers.index_queries import EntryFilter

    namespace = folders.namespace_of(settings, server, namespace)
    with folders.opened(settings, server) as cache:
        entries = cache.listed(EntryFilter(namespace=namespace, model=model), limit)
    _show([folders.entry_fields(entry) for entry in entries], folders.list_text(entries), as_json)


@options.with_settings(*PLACE)
def stat(settings: Settings, server: Server = False, as_json: options.Json = False) -> None:
    """Count entries and bytes, by namespace, model and kind."""
    from hypic_apps import cache_folders as folders

    namespace = folders.namespace_of(settings, server, None)
    with folders.opened(settings, server) as cache:
        fields = folders.stat_fields(cache, namespace)
    _show(fields, folders.stat_text(fields), as_json)


@options.with_settings(*PLACE, *options.POLICY, "chunk_tokens", "model", "codec", "dtype", "device")
def why(
    settings: Settings,
    what: Annotated[str, Argument(metavar="DIGEST|TEXT|FILE", help="A digest or its beginning, a text, or a file.")],
    title: Annotated[str, Option("--title", help="Of the text.")] = "",
    namespace: Annotated[
        str | None, Option("--namespace", metavar="NAME", help="In which a text is asked for.", show_default=False)
    ] = None,
    server: Server = False,
    as_json: options.Json = False,
) -> None:
    """Say what is known of a segment: whether it is there and whole, its key, or what became of it.

    A text or file is asked for as the settings ask now, which loads the model; where it is not found, entries of the
    same tokens are named, with what differs in their keys.
    """
    from hypic_apps import cache_folders as folders
    from hypic_apps import cache_why

    asked_in = folders.namespace_of(settings, server, namespace) or ""
    with folders.opened(settings, server) as cache:
        if cache_why.is_digest(cache, what):
            found = cache_why.of_digest(cache, what)
        else:
            found = list(cache_why.of_text(cache, settings, what, title, asked_in, settings.chunk_tokens))
    _show(found, "\n\n".join(map(cache_why.text_of, found)), as_json)


@options.with_settings(*PLACE)
def pin(settings: Settings, digests: Digests, server: Server = False, as_json: options.Json = False) -> None:
    """Never evict these to make room, on disk, until they are unpinned."""
    _pin(settings, digests, server, as_json, pinned=True)


@options.with_settings(*PLACE)
def unpin(settings: Settings, digests: Digests, server: Server = False, as_json: options.Json = False) -> None:
    """Let these be evicted again."""
    _pin(settings, digests, server, as_json, pinned=False)


@options.with_settings(*PLACE)
def evict(
    settings: Settings,
    digests: Annotated[list[str] | None, Argument(metavar="[DIGEST...]", help="Or their beginnings.")] = None,
    namespace: Namespace = None,
    model: Model = None,
    older_than: OlderThan = None,
    everything: Annotated[bool, Option("--all", help="All that are not pinned.")] = False,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
    server: Server = False,
    as_json: options.Json = False,
) -> None:
    """Remove entries from disk; they are prefilled again when they are asked for. Pinned ones stay.

    What a running server has in memory it keeps.
    """
    from hypic_apps import cache_folders as folders
    from hypic_rag.cache.report import Miss
    from hypic_rag.cache.tiers.index_queries import EntryFilter

    filters = (namespace, model, older_than)
    if bool(digests) + any(one is not None for one in filters) + everything != 1:
        raise BadParameter("say which: digests, or --namespace, --model and --older-than, or --all")
    namespace = folders.namespace_of(settings, server, namespace)
    with folders.opened(settings, server) as cache:
        since = None if older_than is None else time.time() - folders.seconds_of(older_than)
        wanted = EntryFilter(namespace=namespace, model=model, unused_since=since)
        found = folders.named(cache, digests) if digests else cache.listed(wanted)
        going = [entry for entry in found if not entry.pinned]
        nbytes = sum(entry.record.nbytes for entry in going)
        if going and not yes:
            try:
                confirm(f"Evict {len(going)} entries, {format_bytes(nbytes)}?", abort=True, err=True)
            except Abort:
                raise Exit(1) from None
        reason = Miss("evicted", "by hypic-rag cache evict")
        n_evicted = cache.discard((entry.record.digest for entry in going), reason)
        if n_evicted < len(going):
            nbytes = sum(entry.record.nbytes for entry in going if not cache.contains(entry.record.digest))
    n_pinned = len(found) - len(going)
    stayed = f"; {n_pinned} pinned stay" if n_pinned else ""
    fields = {"n_evicted": n_evicted, "nbytes": nbytes, "n_pinned": n_pinned}
    _show(fields, f"{n_evicted} entries evicted, {format_bytes(nbytes)}{stayed}", as_json)
    if n_evicted < len(going):
        raise Exit(1)


@options.with_settings(*PLACE)
def verify(
    settings: Settings,
    repair: Annotated[bool, Option("--repair", help="Remove what is damaged; it is prefilled again.")] = False,
    server: Server = False,
    as_json: options.Json = False,
) -> None:
    """Read and check every file. The exit code is 1 where something is wrong; with --repair, where it stays so."""
    from hypic_apps import cache_folders as folders

    with folders.opened(settings, server) as cache:
        problems = cache.verify()
        if repair and problems:
            folders.repair(cache, problems)
        left = cache.verify() if repair and problems else problems
        n_entries = cache.totals()[0]
    fields = {"n_entries": n_entries, "problems": [vars(one) for one in problems], "n_left": len(left)}
    summary = f"{n_entries} entries, {len(problems)} problems" + (f", {len(left)} left" if repair else "")
    _show(fields, "\n".join(filter(None, (folders.problem_text(problems), summary))), as_json)
    if left:
        raise Exit(1)


@options.with_settings(*PLACE)
def gc(settings: Settings, server: Server = False, as_json: options.Json = False) -> None:
    """Remove files of no entry, entries without a file, and unfinished files of writers that died."""
    from hypic_apps import cache_folders as folders

    with folders.opened(settings, server) as cache:
        removed = cache.gc()
    text = "\n".join(filter(None, (folders.problem_text(removed), f"{len(removed)} removed")))
    _show([vars(one) for one in removed], text, as_json)


@options.with_settings(*PLACE)
def export(
    settings: Settings,
    file: Annotated[Path, Argument(metavar="FILE.tar", help="Replaced where it exists.")],
    digests: Annotated[list[str] | None, Argument(metavar="[DIGEST...]", help="These alone.")] = None,
    namespace: Namespace = None,
    model: Model = None,
    limit: Annotated[int | None, Option("--limit", min=1, help="The newest so many.", show_default=False)] = None,
    server: Server = False,
    as_json: options.Json = False,
) -> None:
    """Copy entries into a tar file, for another machine with the same model. What is damaged is left out."""
    from hypic_apps import cache_folders as folders
    from hypic_rag.cache import archive
    from hypic_rag.cache.tiers.index_queries import EntryFilter

    namespace = folders.namespace_of(settings, server, namespace)
    with folders.opened(settings, server) as cache:
        wanted = EntryFilter(namespace=namespace, model=model)
        entries = folders.named(cache, digests) if digests else cache.listed(wanted, limit)
        moved = archive.export(cache, entries, file)
    _show_moved(moved, f"{moved.outcomes['stored']} entries, {format_bytes(moved.nbytes)}, in {file}", as_json)


@options.with_settings(*PLACE)
def import_(
    settings: Settings,
    file: Annotated[Path, Argument(metavar="FILE.tar", help="As cache export makes it.")],
    server: Server = False,
    as_json: options.Json = False,
) -> None:
    """Take entries in from such a file, each checked. What is there stays, and nothing is evicted."""
    from hypic_apps import cache_folders as folders
    from hypic_rag.cache import archive

    if not exists(file):
        raise BadParameter(f"there is no file {file}")
    with folders.opened(settings, server, create=True) as cache:
        moved = archive.import_(cache, file)
    n = moved.outcomes
    text = f"{n['stored']} entries taken in, {format_bytes(moved.nbytes)}; {n['exists']} were there"
    if n["refused"]:
        text += f"; {n['refused']} did not fit: raise disk_budget, or evict some"
    _show_moved(moved, text, as_json)


def _pin(settings: Settings, digests: list[str], server: bool, as_json: bool, pinned: bool) -> None:
    from hypic_apps import cache_folders as folders

    with folders.opened(settings, server) as cache:
        names = [entry.record.digest for entry in folders.named(cache, digests)]
        n_changed = cache.pin(names, pinned)
    what = "pinned" if pinned else "unpinned"
    _show({"digests": names, "n_changed": n_changed}, f"{len(names)} {what}, {n_changed} of them now", as_json)


def _show_moved(moved: Any, text: str, as_json: bool) -> None:
    """Exit code 1 where anything was left out."""
    from hypic_apps.cache_folders import problem_text

    fields = {"outcomes": dict(moved.outcomes), "nbytes": moved.nbytes, "problems": [vars(p) for p in moved.problems]}
    if moved.problems:
        print(problem_text(moved.problems), file=sys.stderr)
    _show(fields, text, as_json)
    if moved.problems or moved.outcomes["refused"]:
        raise Exit(1)


def _show(fields: Any, text: str, as_json: bool) -> None:
    print(json.dumps(fields, ensure_ascii=False, indent=2) if as_json else text)
