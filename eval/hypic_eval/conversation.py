"""Conversations made of a set's questions, by a rule that needs nothing but the set.

So many questions that follow one another in a file are the turns of one conversation. Every turn brings the documents
of its own row, which stay in the prompt behind it, and each earlier turn is answered with its first right answer: all
modes are asked the same, and no mistake of one turn counts again in the next. What is measured of a turn is how well it
is answered behind all that stands before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_eval.measure import MeasuredQuestion, ask, right_answer
from hypic_eval.task import Question, Task
from hypic_rag.errors import ContextTooLong
from hypic_rag.rag.prompting import next_turn

if TYPE_CHECKING:
    from hypic_rag.engine import SegmentEngine


@dataclass(frozen=True)
class AskInTurns:
    """Asks questions as turns of conversations of ``n_turns``. Questions left over at a file's end are not asked."""

    n_turns: int

    def __call__(
        self, engine: "SegmentEngine", path: Path, task: Task, questions: Sequence[Question]
    ) -> list[MeasuredQuestion]:
        whole = len(questions) - len(questions) % self.n_turns
        starts = range(0, whole, self.n_turns)
        return [one for i in starts for one in converse(engine, task, questions[i : i + self.n_turns])]


def converse(engine: "SegmentEngine", task: Task, turns: Sequence[Question]) -> list[MeasuredQuestion]:
    """Build the prompts of one conversation, in the order of its turns; ``about`` tells which, from 1.

    Raises ContextTooLong where a turn has no room behind what stands before it.
    """
    asked = [ask(engine, task, turns[0])]
    for number, question in enumerate(turns[1:], start=2):
        before = asked[-1]
        answer_ids = right_answer(engine, question)
        room = engine.context_length - max(task.max_new_tokens, len(answer_ids))
        said = engine.format.encode(before.question.answers[0])
        documents = [engine.format.document(text, title) for title, text in question.documents]
        prompt, n_dropped = next_turn(engine.format, before.prompt, said, question.text, documents, room)
        if prompt.n_tokens > room or (documents and n_dropped == len(documents)):
            raise ContextTooLong(
                f"question {question.id} is turn {number} of {len(turns)}, and does not fit behind those before it: "
                f"{engine.model_name} takes {engine.context_length} tokens. Ask for fewer --turns, or name another "
                "--model"
            )
        asked.append(MeasuredQuestion(task, question, prompt, n_dropped, answer_ids))
    return [replace(one, about={"turn": number}) for number, one in enumerate(asked, start=1)]
