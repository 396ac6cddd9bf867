"""``hypic-rag audit``: real questions in both modes, and how often the answers agree."""

import json
from pathlib import Path
from typing import Annotated

from typer import BadParameter, Exit, Option

from hypic_apps.cli import options
from hypic_rag.config import Settings


@options.with_settings(*options.POLICY, *options.RETRIEVAL, "max_new_tokens", *options.PLACE)
def run(
    settings: Settings,
    questions: Annotated[
        Path | None,
        Option("--questions", help="One a line, or jsonl rows with question. Else the store's log (log_questions)."),
    ] = None,
    sample: Annotated[int, Option("--sample", min=1, help="Most questions, drawn at random.")] = 20,
    seed: Annotated[int, Option("--seed", min=0, help="Of the draw.")] = 0,
    min_agreement: Annotated[
        float | None,
        Option("--min-agreement", min=0, max=1, help="Exit code 1 where a smaller share of answers is equal."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Ask the store real questions out of cached segments and in full, and compare the greedy answers.

    The policy is the one in force (see info). The exit code is also 1 where a question could not be asked.
    """
    if settings.mode == "full":
        raise BadParameter("an audit sets cached segments against full recompute: leave --mode full out")

    from hypic_apps import session
    from hypic_rag.rag.question_log import questions_to_ask

    known = questions_to_ask(session.documents_folder(settings) if questions is None else None, questions)
    with session.open_search(settings) as (engine, store, search):
        from hypic_apps import auditing

        done = auditing.audit_store(settings, engine, store, search, known, sample, seed)
    fields = auditing.fields(done, min_agreement)
    print(json.dumps(fields, ensure_ascii=False, indent=2) if as_json else auditing.text(fields))
    if done.report.failures or not fields["enough"]:
        raise Exit(1)
