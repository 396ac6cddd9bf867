"""``hypic-rag ingest [PATH...]``: documents into a collection or a store, every chunk prefilled once."""

import json
import sys
from typing import Annotated, Literal

from typer import Argument, BadParameter, Exit, Option, confirm

from hypic_apps.cli import options
from hypic_rag.config import Settings


@options.with_settings("chunk_tokens", "seam_tokens", *options.PLACE)
def run(
    settings: Settings,
    paths: Annotated[
        list[str] | None,
        Argument(
            metavar="[PATH...]",
            help="Files, folders; text, web pages, PDF, Office, EPUB, tables, code.",
            show_default=False,
        ),
    ] = None,
    prefill: Annotated[Literal["all", "none"], Option(help="none: prefill when first asked for.")] = "all",
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask where there is not room for all.")] = False,
    remove: Annotated[bool, Option("--remove", help="Remove what is gone, also most of all.")] = False,
    as_json: options.Json = False,
) -> None:
    """Read documents into a collection and prefill their chunks. Run again, only what changed is done.

    They are where hypic-rag serve has them, each file as if it had been uploaded. While a server runs, upload through
    it instead.

    Documents of files that are gone are removed. Where they are more than half of all, or all that it has from
    a PATH, they stay unless --remove is given: a disk that is not mounted looks the same. Where they stay so, or a
    file cannot be read, the others are in all the same, and the exit code is 1.

    Without a PATH no file is read: what is there and the cache lacks is prefilled, as after an upgrade of the
    model, or with another seam or codec.
    """
    from hypic_apps import session
    from hypic_rag.retrieval.readers import read_path

    if not paths and remove:
        raise BadParameter("--remove is for documents that are gone from a PATH: name it")
    if not session.is_there(settings):
        if not paths:
            raise BadParameter("no documents are there yet: name files or folders, e.g. hypic-rag ingest docs/")
        read_path(paths)  # a path that is not there is told now, before a model is loaded and a store made
    with session.open_ingest(settings) as (engine, opened, ledger):
        from hypic_apps import ingestion
        from hypic_rag.retrieval import plan_again, plan_ingest

        if paths:
            plan = plan_ingest(opened, engine, paths, remove, **({"mark": ledger.mark} if ledger else {}))
        else:
            plan, ledger = plan_again(opened, engine), None  # no file changes
        session.say(ingestion.plan_text(plan, prefill))
        if prefill == "all" and engine.policy.mode == "full":
            session.say("Answers are computed in full (see hypic-rag info): --prefill none would save the room.")
        if prefill == "all" and not plan.fits and not yes and sys.stdin.isatty():
            confirm("Go on?", abort=True, err=True)
        report = ingestion.ingest(plan, prefill, ledger)
    for told in filter(None, (ingestion.unread_text(report), ingestion.held_text(report))):
        session.say(told)
    if as_json:
        print(json.dumps(ingestion.fields(plan, report), ensure_ascii=False, indent=2))
    else:
        print(ingestion.report_text(report))
    if report.failures or report.held:
        raise Exit(1)
