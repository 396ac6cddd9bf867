"""Conversations: a client sends all messages each time, and the next turn resumes from the last one's end state."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tiny
from hypic_apps.server.app_state import Service
from hypic_apps.server.errors import ApiError
from tiny_server import Running, running, turns

from hypic_rag.collections.tenant import Tenant
from hypic_rag.rag import Passage
from hypic_rag.rag.turns import Turns

DOCUMENTS = [
    {"title": "Lighthouse", "text": "The lighthouse of Porto Vells was built in 1871 by Ada Marrow. It has 212 steps."},
    {"title": "Fair", "text": "The harvest fair of Lund is in September. The largest pumpkin weighed 412 kilograms."},
]
POOL = {
    "steps": ["lighthouse one, a tall tower of 212 steps on a rock", "lighthouse two, with a lamp that turns at night"],
    "lamp": ["lighthouse two, with a lamp that turns at night", "an oil lamp with a wick of cotton and a glass"],
}


class Shelf:
    """A collection: what it finds is decided by the first of its words in the question."""

    namespace = "local/shelf"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def retriever(self, tenant: Tenant, name: str) -> "Shelf":
        if name != "shelf":
            raise ApiError(404, f"there is no collection {name}", code="collection_not_found")
        return self

    is_empty = False

    def retrieve(self, question: str, top_k: int) -> Sequence[Passage]:
        self.asked.append(question)
        texts: list[str] = next((texts for word, texts in POOL.items() if word in question), [])
        of = {"file_id": "file-1", "filename": "a.txt"}
        return [Passage("", text, 0.5 - i / 10, metadata=of) for i, text in enumerate(texts[:top_k])]


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "documents": {"documents": DOCUMENTS},
    "a collection": {"collection": "shelf", "n_documents": 2},
    "full, over documents": {"documents": DOCUMENTS, "mode": "full"},
    "plain, a system text": {"system": "Be brief."},
    "documents, a system text": {"documents": DOCUMENTS, "system": "Be brief."},
}


def say(server: Running, system: str | None, *texts: str, **fields: Any) -> Any:
    messages = [*([{"role": "system", "content": system}] if system else []), *turns(*texts)]
    return server.chat(messages=messages, **fields)


def text_of(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


def forget_all(server: Running) -> None:
    server.service.rag.turns = Turns()
    while server.engine.conversations.drop():
        pass


@pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)
def test_the_next_turn_resumes_exactly(server: Running, fields: dict[str, Any]) -> None:
    server.service.collections = Shelf()
    fields = dict(fields)
    system = fields.pop("system", None)
    texts = ["How many steps?"]
    for question in ("And the lamp?", "Are you sure?"):
        last = say(server, system, *texts, **fields)
        texts += [text_of(last), question]
        got = say(server, system, *texts, **fields)
        ran = last["hypic"]["prompt_tokens"] + last["usage"]["completion_tokens"] - 1  # the last token is not run
        assert got["hypic"]["resumed_tokens"] == ran
        strip = got["hypic"]["segments"]
        assert sum(one["n_tokens"] for one in strip if one["tier"] == "conversation") == ran
        assert sum(one["n_tokens"] for one in strip) == got["hypic"]["prompt_tokens"]
    prompt = got["hypic"]["prompt_tokens"]
    forget_all(server)
    again = say(server, system, *texts, **fields)  # built anew, from texts
    assert again["hypic"]["resumed_tokens"] == 0
    assert abs(again["hypic"]["prompt_tokens"] - prompt) <= 8  # an answer's text may have other ids than were drawn
    kinds = [[one["kind"] for one in made["hypic"]["segments"] if one["kind"] != "live"] for made in (got, again)]
    assert kinds[0] == kinds[1]


def test_a_resumed_answer_is_that_of_the_same_ids(server: Running) -> None:
    first = server.chat("How many steps?", documents=DOCUMENTS)
    texts = ["How many steps?", text_of(first), "And when?"]
    resumed = server.chat(*texts, documents=DOCUMENTS)
    assert resumed["hypic"]["resumed_tokens"] > 0
    while server.engine.conversations.drop():
        pass
    same_ids = server.chat(*texts, documents=DOCUMENTS)
    assert same_ids["hypic"]["resumed_tokens"] == 0
    assert same_ids["hypic"]["prompt_tokens"] == resumed["hypic"]["prompt_tokens"]
    assert text_of(same_ids) == text_of(resumed)


CHANGES: dict[str, tuple[int, str]] = {"the question": (0, "How many stairs?"), "the answer": (1, "212, I think.")}


@pytest.mark.parametrize("at, text", CHANGES.values(), ids=CHANGES)
def test_an_edited_history_is_built_anew(server: Running, at: int, text: str) -> None:
    texts = ["How many steps?", text_of(server.chat("How many steps?", documents=DOCUMENTS)), "And when?"]
    texts[at] = text
    got = server.chat(*texts, documents=DOCUMENTS)
    assert got["hypic"]["resumed_tokens"] == 0
    assert [one["tier"] for one in got["documents"]] == ["host", "host"]


def test_other_documents_or_another_policy_are_another_conversation(server: Running) -> None:
    texts = ["How many steps?", text_of(server.chat("How many steps?", documents=DOCUMENTS)), "And when?"]
    for other in ({"documents": DOCUMENTS[:1]}, {"documents": DOCUMENTS, "seam_tokens": 4}, {}):
        assert server.chat(*texts, **other)["hypic"]["resumed_tokens"] == 0


def test_a_stop_string_that_was_cut_off_is_not_read_again(server: Running) -> None:
    whole = text_of(server.chat("Go on.", max_tokens=20))
    first = server.chat("Go on.", max_tokens=20, stop=whole[-12:-8])
    next_turn = server.chat("Go on.", text_of(first), "And?")
    forget_all(server)
    assert text_of(server.chat("Go on.", text_of(first), "And?")) == text_of(next_turn)


def test_a_collection_tells_each_document_once(server: Running) -> None:
    server.service.collections = shelf = Shelf()
    first = server.chat("How many steps?", collection="shelf", n_documents=2)
    assert [one["text"] for one in first["documents"]] == POOL["steps"][::-1]  # the nearest last
    assert [(one["similarity"], one["file_id"], one["source"]) for one in first["documents"]] == [
        (0.4, "file-1", "a.txt"), (0.5, "file-1", "a.txt"),
    ]  # fmt: skip
    texts = ["How many steps?", text_of(first), "And the lamp?"]
    second = server.chat(*texts, collection="shelf", n_documents=3)
    assert [one["text"] for one in second["documents"]] == [*POOL["steps"][::-1], POOL["lamp"][1]]
    # To this question: the first was found again for it, the second for it and the question before together.
    assert [one["similarity"] for one in second["documents"]] == [0.5, 0.5, 0.4]
    assert [one["tier"] for one in second["documents"]][:2] == ["conversation", "conversation"]
    assert [one["document"] for one in second["hypic"]["segments"] if one["kind"] == "document"] == [0, 1, 2]
    third = server.chat(*texts, text_of(second), "And what else?", collection="shelf", n_documents=3)
    assert [one["similarity"] for one in third["documents"]] == [0.5, None, 0.4]  # the second was found before, not now
    assert shelf.asked[-2:] == ["And what else?", "And the lamp? And what else?"]
    del shelf.asked[-2:]
    forget_all(server)
    again = server.chat(*texts, collection="shelf", n_documents=3)
    assert [one["text"] for one in again["documents"]] == [one["text"] for one in second["documents"]]
    assert [one["similarity"] for one in again["documents"]] == [0.5, 0.5, 0.4]
    assert [one["tier"] for one in again["documents"]] == ["host"] * 3
    joined = "How many steps? And the lamp?"
    assert shelf.asked == ["How many steps?", "And the lamp?", joined] * 2


def test_that_nothing_is_found_is_told_and_why(server: Running) -> None:
    server.service.collections = shelf = Shelf()

    def code(name: str) -> str:
        got = server.post("/v1/chat/completions", messages=turns("Nothing of the kind?"), collection=name)
        assert got.status_code in (400, 404)
        return str(got.json()["error"]["code"])

    assert code("shelf") == "nothing_relevant"
    assert code("other") == "collection_not_found"
    shelf.is_empty = True
    assert code("shelf") == "collection_empty"


def test_the_calibrated_order_is_used_where_none_is_given(make_service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hypic_apps.server.app_state.order_in_force", lambda fingerprint, given: (given or "ends", ""))
    assert make_service().order == "ends" and make_service(order="document").order == "document"


ORDERS = {"nearest-first": [0, 1], "nearest-last": [1, 0], "ends": [0, 1], None: [1, 0]}


@pytest.mark.parametrize("order, expected", ORDERS.items())
def test_passages_stand_in_the_order_asked_for_and_stay_there(
    server: Running, order: str | None, expected: list[int]
) -> None:
    server.service.collections = Shelf()
    fields = {"collection": "shelf", "n_documents": 3, "order": order}
    first = server.chat("How many steps?", **fields)
    steps = [POOL["steps"][i] for i in expected]
    assert [one["text"] for one in first["documents"]] == steps
    second = server.chat("How many steps?", text_of(first), "And the lamp?", **fields)
    assert [one["text"] for one in second["documents"]] == [*steps, POOL["lamp"][1]]
    assert second["hypic"]["resumed_tokens"] > 0
    other = server.chat("How many steps?", text_of(first), "And the lamp?", **{**fields, "order": "document"})
    assert other["hypic"]["resumed_tokens"] == 0


def test_an_order_that_there_is_not_is_refused(server: Running) -> None:
    got = server.post("/v1/chat/completions", messages=turns("How many steps?"), collection="shelf", order="best")
    assert got.status_code == 400 and "nearest-last" in got.json()["error"]["message"]


def test_found_documents_without_room_are_left_out_and_given_ones_are_not(make_service: Callable[..., Service]) -> None:
    engine = tiny.engine("qwen3_5_text", {"max_position_embeddings": 256})
    long = ["one " * 60, "two " * 60, "three " * 60]

    class Long(Shelf):
        def retrieve(self, question: str, top_k: int) -> Sequence[Passage]:
            return [Passage("", text) for text in long]

    with running(make_service(engine)) as server:
        server.service.collections = Long()
        found = server.chat("Which?", collection="shelf", max_tokens=60)
        assert [one["text"] for one in found["documents"]] == long[1::-1]
        assert found["hypic"]["n_dropped"] == 1
        given = server.post("/v1/chat/completions", messages=turns("Which?"), documents=long * 2, max_tokens=60)
        assert given.json()["error"]["code"] == "context_length_exceeded"
        texts = ["Which?", text_of(found), "And now?"]
        more = server.chat(*texts, collection="shelf", max_tokens=20)
        assert more["hypic"]["n_dropped"] == 1 and more["hypic"]["resumed_tokens"] > 0
        full = server.chat(*texts, collection="shelf", max_tokens=60)  # earlier turns stay, and the answer is shorter
        assert full["hypic"]["max_tokens"] == 256 - full["usage"]["prompt_tokens"] < 60


def test_the_former_name_of_n_documents_is_taken_with_a_warning(server: Running) -> None:
    server.service.collections = shelf = Shelf()
    for fields, n in (({"top_k": 1}, 1), ({"top_k": -1}, 2), ({"top_k": 0, "n_documents": 1}, 1)):
        body = {"messages": turns("How many steps?"), "collection": "shelf", "max_tokens": 1, **fields}
        for stream in (False, True):
            got = server.post("/v1/chat/completions", **body, stream=stream)
            assert got.status_code == 200 and ("n_documents" in got.headers.get("Warning", "")) == (
                fields == {"top_k": 1}
            )
            if not stream:
                assert len(got.json()["documents"]) == n
    assert len(shelf.asked) == 6
