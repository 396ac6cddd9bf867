"""``audit``: questions from a file or from the log, in both modes, and what cannot be audited."""

import json
import re
from pathlib import Path

import pytest
from hypic_apps import auditing

from hypic_rag import Policy
from hypic_rag.config import Settings
from hypic_rag.errors import BadInput
from hypic_rag.rag.audit import AuditReport, Replay, draw_questions

QUESTIONS = ("Who built the lighthouse?", "Where is the fair?", "What drove the saw mill?")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.txt"
    file.write_text("\n".join((*QUESTIONS, QUESTIONS[0])))
    return file


def test_it_tells_the_same_in_text_and_json_and_as_ask(asking, questions: Path) -> None:
    done = asking("audit", "--questions", questions, "--top-k", "3", "--json")
    fields = json.loads(done.out)
    assert done.code == 0
    assert (fields["n"], fields["n_questions"], fields["failures"]) == (3, 3, [])
    assert fields["policy"]["text"] == "hypic, seam 8, exact" and fields["policy"]["why"] == "default"
    assert (fields["n_segments"], fields["n_from_cache"]) == (9, 9)
    assert fields["first_kl_worst"] >= fields["first_kl_mean"] > 0
    differing = {one["question"]: one for one in fields["disagreements"]}
    for question in QUESTIONS:
        asked = json.loads(asking("ask", question, "--compare", "--top-k", "3", "--json").out)
        assert (question in differing) == (asked["answer"] != asked["full_answer"])
        if found := differing.get(question):
            assert (found["answer"], found["full_answer"]) == (asked["answer"], asked["full_answer"])
    assert fields["same_answer"] == pytest.approx(1 - len(differing) / 3)
    text = asking("audit", "--questions", questions, "--top-k", "3").out
    assert text.startswith("hypic, seam 8, exact (default), 3 of 3 questions\n")
    assert f"same answer {fields['same_answer']:.0%}, same first token {fields['same_first']:.0%}" in text
    assert re.findall(r"^Question: (.*)  \(first-token KL", text, re.M) == list(differing)
    assert re.search(r"^TTFT \d+ ms \(full recompute \d+ ms\), 9 of 9 segments from cache$", text, re.M)


def test_what_is_given_is_audited(asking, questions: Path) -> None:
    everything = ("--seam-tokens", "4096")  # all documents are live, as in full
    done = asking("audit", "--questions", questions, *everything, "--min-agreement", "1", "--json")
    fields = json.loads(done.out)
    assert done.code == 0
    assert (fields["same_answer"], fields["enough"], fields["disagreements"]) == (1, True, [])
    assert fields["first_kl_worst"] < 1e-5
    assert fields["policy"]["why"] == "given: seam_tokens; the rest default"


def test_answers_that_differ_are_shown_and_may_be_too_many(
    asking, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model says the same in both modes, so the report is made up."""
    replays = (
        Replay("Who?", "Ada", "Ada", True, 0.1, 10.0, 100.0, 5, 5),
        Replay("Where?", "Lund", "Vardal", False, 0.9, 20.0, 300.0, 5, 4),
        Replay("When?", "1871", "1871", True, 0.2, 60.0, 200.0, 5, 5),
    )
    report = AuditReport(Policy(seam_tokens=16), replays, ())
    monkeypatch.setattr(auditing, "audit", lambda *_, **__: report)
    done = asking("audit", "--questions", questions, "--min-agreement", "0.7")
    assert done.code == 1
    assert done.out.splitlines() == [
        "hypic, seam 16, exact (default), 3 of 3 questions",
        "same answer 67%, same first token 67%, first-token KL 0.400 nats (worst 0.900)",
        "TTFT 20 ms (full recompute 200 ms), 14 of 15 segments from cache",
        "",
        "Question: Where?  (first-token KL 0.900)",
        "Answer: Lund",
        "In full: Vardal",
        "",
        "67% of answers agree, and 70% were asked for",
    ]
    assert asking("audit", "--questions", questions, "--min-agreement", "0.6").code == 0
    assert asking("audit", "--questions", questions).code == 0


def test_the_log_is_off_until_asked_for_and_then_audited(asking, home: Path) -> None:
    (collection,) = (home / "server" / "collections" / "local").iterdir()
    log = collection / "questions.jsonl"
    asking("ask", QUESTIONS[0])
    assert not log.exists()
    done = asking("audit")
    assert done.code == 1 and "no question was logged" in done.err and "log_questions" in done.err
    asking("ask", QUESTIONS[0], "--log-questions", "yes")
    (home / "config.toml").write_text("log_questions = true\n")
    asking("chat", stdin=f"{QUESTIONS[1]}\nAnd when?\n/new\n{QUESTIONS[2]}\n")
    assert [json.loads(line)["question"] for line in log.read_text().splitlines()] == list(QUESTIONS)
    fields = json.loads(asking("audit", "--json", "--sample", "2", "--seed", "3").out)
    assert (fields["n"], fields["n_questions"]) == (2, 3)
    assert len(log.read_text().splitlines()) == 3  # an audit is no question


def test_a_draw_is_repeatable_and_of_different_questions() -> None:
    asked = [f"Question {n % 30}?" for n in range(60)]
    first = draw_questions(asked, 10, seed=1)
    assert first == draw_questions(asked, 10, seed=1) != draw_questions(asked, 10, seed=2)
    assert len(set(first)) == 10
    assert first == sorted(first, key=asked.index)
    assert draw_questions(asked, 100, seed=1) == asked[:30]


def test_a_question_that_cannot_be_asked_is_listed_and_the_others_are_replayed(asking, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(json.dumps({"question": one}) for one in ("word " * 2500, QUESTIONS[0])))
    done = asking("audit", "--questions", file)
    assert done.code == 1
    assert ", 1 of 2 questions" in done.out
    assert "could not ask 'word word" in done.out


BAD = {
    "no such file": (["--questions", "nothing.txt"], "cannot be read"),
    "an empty file": (["--questions", "empty.txt"], "has no question"),
    "no such store": (["--questions", "some.txt", "--store", "another"], "make one with hypic-rag ingest"),
    "no question that fits": (["--questions", "long.txt"], "none of 1 questions could be replayed: "),
}


@pytest.mark.parametrize("arguments, message", BAD.values(), ids=BAD)
def test_what_cannot_be_audited_is_told(
    asking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (("empty", ""), ("some", "Who?"), ("long", "word " * 2500)):
        (tmp_path / f"{name}.txt").write_text(content)
    done = asking("audit", *arguments)
    assert (done.code, done.out) == (1, "")
    assert message in done.err.splitlines()[-1]


def test_a_store_without_documents_is_told(cli, tmp_path: Path, questions: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("no JSON")
    cli("ingest", tmp_path / "rows.jsonl")
    done = cli("audit", "--questions", questions)
    assert done.code == 1 and "has no documents" in done.err


def test_full_against_full_is_refused(asking, questions: Path) -> None:
    assert asking("audit", "--questions", questions, "--mode", "full").code == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYPIC_MODE", "full")
        assert asking("audit", "--questions", questions).code == 2


def test_the_setting_is_yes_or_no(tmp_path: Path) -> None:
    for raw, value in (("yes", True), ("no", False), ("TRUE", True), ("0", False)):
        assert Settings.load(environment={"HYPIC_LOG_QUESTIONS": raw}, file=tmp_path / "no").log_questions is value
    with pytest.raises(BadInput, match="needs yes or no, not 'perhaps'"):
        Settings.load({"log_questions": "perhaps"}, environment={}, file=tmp_path / "no")
