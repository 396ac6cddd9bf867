"""``hypic-rag ask "..."``: one question, one answer."""

import json
from dataclasses import replace
from typing import Annotated

from typer import Argument, BadParameter, Option

from hypic_apps.cli import options
from hypic_rag.config import Settings


@options.with_settings(*options.POLICY, *options.RETRIEVAL, *options.SAMPLING, "log_questions", *options.PLACE)
def run(
    settings: Settings,
    question: Annotated[str, Argument(help="What to ask, in quotes.")],
    stream: Annotated[bool, Option("--stream", help="Print the answer as it comes.")] = False,
    compare: Annotated[bool, Option("--compare", help="Run the same prompt in full as well.")] = False,
    as_json: options.Json = False,
) -> None:
    """Answer one question from the documents."""
    if stream and as_json:
        raise BadParameter("--stream prints text as it comes, --json one object at the end: choose one")
    if compare and settings.mode == "full":
        raise BadParameter("--compare sets cached segments against full recompute: leave --mode full out")

    if compare and settings.mode is None:
        settings = replace(settings, mode="hypic")  # also where calibration says full: the two are to be compared

    from hypic_apps import session

    with session.open_conversation(settings) as conversation:
        from hypic_apps import report
        from hypic_rag.rag.warming import warm_up

        if compare:
            warm_up(conversation.engine, conversation.policy)
        for text in conversation.ask(question):
            if stream:
                print(text, end="", flush=True)
        fields = report.answer_fields(conversation.last, conversation.recompute() if compare else None)
    if as_json:
        print(json.dumps(fields, ensure_ascii=False, indent=2))
    else:
        print(("\n" if stream else "") + report.answer_text(fields, with_answer=not stream))
