"""The order of passages that suits a model and a store: what is measured, what is chosen of it, what is in force."""

from types import SimpleNamespace

import pytest
from fake_engine import FakeEngine
from test_ingest import BREAD, HARBOUR

from hypic_rag import Policy
from hypic_rag.engine.calibration import Calibration, OrderMeasurement, Thresholds, calibration_file, write
from hypic_rag.errors import BadInput
from hypic_rag.rag.order_calibration import ORDERS, choose_order, measure_orders, order_in_force
from hypic_rag.rag.search import SearchOptions, StoreSearch
from hypic_rag.retrieval.ingest import plan_ingest, run_ingest
from hypic_rag.retrieval.sample_prompts import continued


class Reader(FakeEngine):
    """Finds an answer the likelier, the nearer its document stands to the question, or to the beginning."""

    likes_last = True

    def score(self, prompt, answer, policy=None):
        follows = self.tokenizer.decode(answer)
        (place,) = [i for i, ids in enumerate(prompt.documents) if follows in self.tokenizer.decode(ids)]
        self.asked = [*getattr(self, "asked", []), (prompt.documents, answer, policy)]
        return SimpleNamespace(nll=float(len(prompt.documents) - place if self.likes_last else place))


@pytest.fixture
def reader(engine, tmp_path, store):
    (tmp_path / "harbour.txt").write_text(HARBOUR)
    (tmp_path / "bread.md").write_text(BREAD)
    run_ingest(plan_ingest(store, engine, [tmp_path / "harbour.txt", tmp_path / "bread.md"]))
    return Reader(engine.cache)


@pytest.mark.parametrize("likes_last, best, worst", [(True, "nearest-last", "nearest-first"),
                                                     (False, "nearest-first", "nearest-last")])  # fmt: skip
def test_the_order_is_chosen_in_which_the_model_finds_what_follows(store, reader, likes_last, best, worst):
    reader.likes_last = likes_last
    search, seen = StoreSearch(store, SearchOptions(min_similarity=-1.0)), []
    policy = Policy(seam_tokens=16)
    measured = measure_orders(
        reader, store, search, policy, n_questions=6, top_k=3, on_progress=lambda *at: seen.append(at)
    )
    assert [one.order for one in measured] == list(ORDERS) and {one.n for one in measured} == {len(measured[0].each)}
    of = {one.order: one.nll for one in measured}
    assert of[best] == min(of.values()) < of[worst] == max(of.values())
    assert seen[-1] == (len(seen), len(seen)) and {asked[2] for asked in reader.asked} == {policy}
    chosen, why = choose_order(measured)
    assert chosen == best and f"(n={measured[0].n})" in why
    asked = {}  # the same passages for an answer, in every order
    for documents, answer, _ in reader.asked:
        asked.setdefault(answer, []).append(documents)
    assert all(len(set(each)) == len(each) for each in asked.values())  # none is scored twice
    assert all(len(set(map(frozenset, each))) == 1 for each in asked.values()) and max(map(len, asked.values())) > 1


def test_too_few_passages_are_told(store, engine):
    with pytest.raises(BadInput, match="cannot be measured: 0 of 0 passages"):
        measure_orders(Reader(engine.cache), store, StoreSearch(store), Policy(), n_questions=6, top_k=3)


def figures(**each):
    measured = dict.fromkeys(ORDERS, (1.0, 2.0, 3.0, 4.0)) | {k.replace("_", "-"): v for k, v in each.items()}
    return [
        OrderMeasurement(order, len(values), sum(values) / len(values), values) for order, values in measured.items()
    ]


CHOICES = {  # nats a token of questions where they are not 1, 2, 3, 4; the choice; what is said
    "all alike": ({}, "nearest-last", "likeliest"),
    "another is better": ({"ends": (0.5, 1.4, 2.5, 3.4)}, "ends", "better than nearest-last"),
    "better on the whole, but not beyond noise": ({"ends": (0.0, 3.0, 0.0, 6.0)}, "nearest-last", "beyond noise"),
    "the default is better": ({"nearest_last": (0.5, 1.4, 2.5, 3.4)}, "nearest-last", "likeliest"),
    "the best of two": ({"ends": (0.5, 1.4, 2.5, 3.4), "document": (0.2, 1.1, 2.2, 3.1)}, "document", "better than"),
}


@pytest.mark.parametrize("each, order, said", CHOICES.values(), ids=CHOICES)
def test_the_choice_is_beyond_noise(each, order, said):
    chosen, why = choose_order(figures(**each))
    assert chosen == order and said in why


def test_what_is_given_goes_before_what_was_calibrated_and_that_before_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("HYPIC_HOME", str(tmp_path))
    assert order_in_force("f", None) == ("nearest-last", "default")

    def put(order):
        found = Calibration(
            "m", "f", Policy(), "why", "2026-05-01T10:00:00+00:00", "d", 3, Thresholds(), (), "float32", "cpu", {},
            order, "", tuple(figures()) if order else (),
        )  # fmt: skip
        write(found, calibration_file("f"))

    put("ends")
    assert order_in_force("f", None) == ("ends", "calibrated on 2026-05-01 (n=4)")
    assert order_in_force("f", "document") == ("document", "given")
    assert order_in_force("g", None) == ("nearest-last", "default")
    put(None)
    assert order_in_force("f", None) == ("nearest-last", "default")
    put("backwards")
    with pytest.raises(BadInput, match=r"'backwards'.* is none of nearest-first, nearest-last"):
        order_in_force("f", None)


TEXTS = {  # text, what follows in the question's passage
    "a sentence": ("One two three four five six seven eight nine ten.", "seven eight nine ten."),
    "short": ("One two.", None),
    "nothing": ("", None),
    "one word": ("x" * 500, None),
}


@pytest.mark.parametrize("text, follows", TEXTS.values(), ids=TEXTS)
def test_a_question_asks_how_a_passage_goes_on(text, follows):
    found = continued(text)
    if follows is None:
        assert found is None
    else:
        question, answer = found
        assert text.endswith(answer) and len(answer.split()) > 2
        assert question.split('"')[1] in text and f"{question.split(chr(34))[1]} {answer}" in text
