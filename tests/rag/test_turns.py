"""Finished turns are held within a budget, each namespace's apart."""

from hypic_rag.engine import Policy
from hypic_rag.prompt import Prompt
from hypic_rag.rag import Message
from hypic_rag.rag.turns import Setting, Turn, Turns


def test_turns_keep_to_their_budget_and_go_with_their_namespace() -> None:
    def turn(n: int) -> Turn:
        return Turn(Prompt.build((), (), range(n)), (), ())

    setting = Setting("a/", Policy())
    held = Turns(budget=3 * turn(100).nbytes)
    for i in range(4):
        held.remember(setting, [Message("user", str(i))], turn(100))
        held.find(setting, [Message("user", "0")])
    assert held.nbytes == held.budget
    assert [held.find(setting, [Message("user", str(i))]) is not None for i in range(4)] == [True, False, True, True]
    held.remember(setting, [Message("user", "5")], turn(1000))  # larger than all of it
    assert held.nbytes == 0
    held.remember(setting, [Message("user", "6")], turn(10))
    assert held.find(Setting("b/", Policy()), [Message("user", "6")]) is None
    held.forget("a/")
    assert held.nbytes == 0 and held.find(setting, [Message("user", "6")]) is None
