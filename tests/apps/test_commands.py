"""Each command from its arguments to what it prints, on a tiny model."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypic_apps import demonstration
from hypic_apps.session import open_conversation
from safetensors.torch import load_file, save_file

from hypic_rag.config import Settings
from hypic_rag.rag import Session

COST = re.compile(
    r"^TTFT (\d+) ms(?: \(full recompute (\d+) ms\))?, (\d+) of (\d+) segments from cache, "
    r"(\d+) of (\d+) tokens computed$",
    re.M,
)

CODEC = ("--codec", "int8")


def test_ingest_says_what_comes_then_what_was_done(cli, documents: Path) -> None:
    first = cli("ingest", documents)
    assert first.code == 0
    forecast = first.err.splitlines()[0]
    assert forecast.startswith("5 documents (5 new, 0 changed, 0 unchanged, 0 removed), 5 chunks: 5 to prefill, ")
    assert "fits (room for " in forecast and "of disk free" in forecast
    assert first.out.startswith("5 new, 0 changed, 0 unchanged, 0 removed; 5 segments prefilled, ")
    (documents / "violin.txt").unlink()
    (documents / "engine.txt").write_text("The engine was sold in 1901, and its boiler became a water tank.")
    again = cli("ingest", documents)
    assert again.code == 0
    assert again.out.startswith("0 new, 1 changed, 3 unchanged, 1 removed; 1 segments prefilled")


def test_ingest_json_has_what_the_text_says(cli, documents: Path) -> None:
    done = cli("ingest", "--json", documents)
    fields = json.loads(done.out)
    numbers = set(re.findall(r"\d+", done.err.splitlines()[0].split(" to prefill")[0]))
    assert numbers == {str(fields[name]) for name in ("n_documents", "n_new", "n_changed", "n_chunks")}
    assert (fields["n_prefilled"], fields["fits"], fields["failures"]) == (5, True, [])


def test_a_file_that_cannot_be_read_is_listed_and_the_others_are_in(cli, documents: Path) -> None:
    (documents / "broken.pdf").write_bytes(b"%PDF-1.7 and nothing more")
    (documents / "picture.png").write_bytes(b"\x89PNG")
    done = cli("ingest", documents)
    assert done.code == 1
    assert re.search(r"^could not read .*broken\.pdf: ", done.err, re.M)
    assert re.search(r"^passed over .*picture\.png: ", done.err, re.M)
    assert done.out.startswith("5 new")
    assert json.loads(cli("info", "--json").out)["store"]["n_documents"] == 5


def test_an_empty_folder_is_an_error(cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = cli("ingest", tmp_path / "empty")
    assert (done.code, done.out) == (1, "")
    assert done.err.splitlines()[-1].startswith("error: ")


def test_what_has_no_room_is_told_and_computed_when_asked_for(cli, documents: Path) -> None:
    done = cli("ingest", documents, "--disk-budget", "100kB")
    assert done.code == 0
    assert "does NOT fit (room for " in done.err and "More room: --disk-budget SIZE" in done.err
    assert re.search(r"[1-5] segments will be computed when asked for \(no more room\)", done.out)
    assert cli("ask", "Who built the lighthouse?").code == 0


def test_ask_tells_the_same_in_text_and_json(asking) -> None:
    question = "Who built the lighthouse?"
    text = asking("ask", question, "--compare").out
    fields = json.loads(asking("ask", question, "--compare", "--json").out)
    assert fields["question"] == question
    assert fields["answer"].strip()
    assert text.startswith(fields["answer"]) and f"In full: {fields['full_answer']}" in text
    sources = re.findall(r"^  \d\. (.*?)  (\S+)  \(similarity (-?\d\.\d\d), (\w+)\)$", text, re.M)
    assert sources == [(s["title"], s["path"], f"{s['similarity']:.2f}", s["tier"]) for s in fields["sources"]]
    assert fields["sources"][0]["path"].endswith("lighthouse.txt")
    cost = COST.search(text)
    assert cost is not None and cost[2] is not None and fields["full_ttft_ms"] > 0
    counts = ("n_from_cache", "n_segments", "computed_tokens", "prompt_tokens")
    assert [int(number) for number in cost.groups()[2:]] == [fields[name] for name in counts]
    assert fields["n_from_cache"] == fields["n_segments"] == 5
    assert fields["computed_tokens"] < fields["prompt_tokens"]


def test_what_is_not_relevant_is_not_answered_from(asking) -> None:
    floor = ("--min-similarity", "0.35", "--json")
    fields = json.loads(asking("ask", "Who built the lighthouse?", *floor).out)
    assert [Path(source["path"]).name for source in fields["sources"]][:1] == ["lighthouse.txt"]
    assert len(fields["sources"]) < 5
    nothing = json.loads(asking("ask", "What is the refund policy?", *floor).out)
    assert nothing["answer"].startswith("The documents do not say: nothing relevant")
    assert (nothing["answered"], nothing["sources"], fields["answered"]) == (False, [], True)


def test_the_limit_of_an_answer_suits_the_question_unless_it_is_given(asking, tiny_model: Path) -> None:
    assert json.loads(asking("ask", "Who built the lighthouse?", "--json").out)["max_new_tokens"] == 6  # environment
    cut = asking("ask", "Who built the lighthouse?", "--max-new-tokens", "2").out
    assert "Cut off after 2 tokens, the most for this question: --max-new-tokens N gives others" in cut
    with open_conversation(Settings.load({"model": str(tiny_model), "min_similarity": -1})) as conversation:
        for question, limit in (("Who built the lighthouse?", 64), ("What of the lighthouse?", 256)):
            conversation.start_anew()
            assert "".join(conversation.ask(question)) == conversation.last.text
            assert conversation.last.sampling and conversation.last.sampling.max_new_tokens == limit


def test_a_stream_has_the_same_answer(asking) -> None:
    whole = asking("ask", "How heavy was the pumpkin?").out
    streamed = asking("ask", "How heavy was the pumpkin?", "--stream").out
    assert whole.split("TTFT")[0] == streamed.split("TTFT")[0]


def test_full_mode_takes_nothing_from_the_cache(asking) -> None:
    fields = json.loads(asking("ask", "Where is the fair?", "--mode", "full", "--json", "--top-k", "2").out)
    assert (fields["mode"], fields["n_segments"], fields["n_from_cache"]) == ("full", 2, 0)
    assert fields["computed_tokens"] == fields["prompt_tokens"]
    assert {source["tier"] for source in fields["sources"]} == {"live"}


def test_what_was_not_prefilled_is_computed_once(cli, documents: Path) -> None:
    done = cli("ingest", documents, "--prefill", "none")
    assert "none will be prefilled" in done.err
    assert "5 segments will be computed when asked for" in done.out
    cold, warm = (json.loads(cli("ask", "Where is the fair?", "--json").out) for _ in range(2))
    assert {source["miss_reason"] for source in cold["sources"]} == {"never_seen"}
    assert (cold["n_from_cache"], warm["n_from_cache"]) == (0, 5)
    assert cold["answer"] == warm["answer"]


def test_an_empty_question_is_an_error(asking) -> None:
    done = asking("ask", "  ")
    assert (done.code, done.out) == (1, "")
    assert "the question is empty" in done.err


def test_documents_beyond_the_context_are_dropped_and_told(cli, documents: Path) -> None:
    for n in range(6):
        (documents / f"long{n}.txt").write_text(f"Chapter {n} of the long book about ships. " * 50)
    cli("ingest", documents, "--chunk-tokens", "512")
    done = cli("ask", "What is in the long book about ships?", "--top-k", "8")
    assert done.code == 0
    assert re.search(r"^  [1-7] more did not fit the model's context and were left out$", done.out, re.M)


def test_chat_resumes_from_the_turn_before(asking) -> None:
    asked = "Who built the lighthouse?\n\nHow many steps has the lighthouse?\n/quit\nWho?\n"
    done = asking("chat", "--top-k", "2", stdin=asked)
    assert done.code == 0
    first, second = COST.findall(done.err)
    assert first[3] == "2"
    assert int(second[4]) < int(first[5])  # of the second turn only what is new was computed
    assert int(second[5]) > int(first[5])
    assert len(done.out.splitlines()) >= 2


def test_chat_starts_anew_where_the_context_ends(cli, documents: Path) -> None:
    for n in range(6):
        (documents / f"long{n}.txt").write_text(f"Chapter {n} of the long book about ships. " * 50)
    cli("ingest", documents, "--chunk-tokens", "512")
    asked = "".join(f"What does chapter {n} of the long book say about {'ships ' * 100}?\n" for n in range(6))
    done = cli("chat", "--top-k", "3", stdin=asked)
    assert done.code == 0
    assert "The conversation has outgrown the model's context" in done.err
    assert len(COST.findall(done.err)) == 6


def test_chat_goes_on_after_a_question_that_failed(asking) -> None:
    done = asking("chat", stdin="word " * 2000 + "\nWho built the lighthouse?\n")
    assert done.code == 1
    assert "error: " in done.err
    assert len(COST.findall(done.err)) == 1


def test_an_interrupt_stops_an_answer_and_not_the_chat(asking, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, questions = Session.ask, []

    def interrupted_once(conversation: Session, question: str) -> Iterator[str]:
        questions.append(question)
        for text in ask(conversation, question):
            yield text
            if len(questions) == 1:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(10)

    monkeypatch.setattr(Session, "ask", interrupted_once)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        done = asking("chat", stdin="Who built the lighthouse?\nAnd when?\n")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.code == 0 and questions == ["Who built the lighthouse?", "And when?"]
    assert "stopped" in done.err and len(COST.findall(done.err)) == 1


def test_info_shows_model_index_and_tiers(asking) -> None:
    before = asking("info", "--store", "another")
    assert before.code == 0
    assert "none yet: hypic-rag ingest PATH" in before.out
    fields, text = json.loads(asking("info", "--json", "--disk-budget", "1GB").out), asking("info").out
    assert fields["model"]["families"] == {"attention": 1, "gdn": 3}
    assert (fields["store"]["n_documents"], fields["store"]["n_chunks"]) == (5, 5)
    assert fields["cache"]["disk"]["n_entries"] >= 5
    assert fields["cache"]["disk"]["budget_bytes"] == 10**9
    assert "1 attention + 3 gdn layers" in text and "5 documents, 5 chunks" in text
    assert re.search(r"^cache, disk +\d+ segments, .* of 10\.0 GB$", text, re.M)


def test_a_codec_is_part_of_what_is_stored(cli, documents: Path) -> None:
    as_computed, stored = (json.loads(cli("ingest", "--json", documents, *more).out) for more in ([], CODEC))
    assert stored["n_prefilled"] == 5 and stored["forecast_bytes"] < as_computed["forecast_bytes"]
    asked = json.loads(cli("ask", "--json", "Who built the lighthouse?", *CODEC).out)
    assert asked["n_from_cache"] == asked["n_segments"] == 5
    info = cli("info", *CODEC).out
    assert re.search(r"^codec +int8$", info, re.M) and re.search(r"^codec +none$", cli("info").out, re.M)


def test_without_documents_nothing_is_answered(cli, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("no JSON")
    for place, of in (("collection default", ()), ("store empty", ("--store", "empty"))):
        assert cli("ingest", tmp_path / "rows.jsonl", *of).code == 1
        for command in (("ask", "Which one?", "--json"), ("chat",)):
            done = cli(*command, *of)
            assert (done.code, done.out) == (1, "") and f"the {place} has no documents" in done.err, done


def test_a_store_can_lie_anywhere(cli, documents: Path, tmp_path: Path, home: Path) -> None:
    assert cli("ingest", documents, "--store", tmp_path / "elsewhere").code == 0
    done = cli("info", "--json", "--store", tmp_path / "elsewhere")
    assert json.loads(done.out)["store"]["n_documents"] == 5
    assert not (home / "stores").exists()


def test_other_chunk_sizes_need_another_store(cli, documents: Path) -> None:
    cli("ingest", documents, "--chunk-tokens", "64")
    done = cli("ingest", documents, "--chunk-tokens", "128")
    assert done.code == 1
    assert "64" in done.err and "128" in done.err


def test_after_an_upgrade_of_the_model_one_command_makes_its_segments_again(
    cli, documents: Path, tmp_path: Path, tiny_model: Path
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    given = ("--model", model)
    cli("ingest", documents, *given)
    n_bytes = json.loads(cli("info", "--json", *given).out)["cache"]["disk"]["n_bytes"]
    weights = load_file(model / "model.safetensors")
    save_file({name: weight * 1.01 for name, weight in weights.items()}, model / "model.safetensors", {"format": "pt"})
    refused = cli("ask", "Who built the lighthouse?", *given)
    assert (refused.code, refused.out) == (1, "")
    assert re.search(r"other weights of the model .*as an upgrade brings.*one command: hypic-rag ingest ", refused.err)
    shutil.rmtree(documents)  # the store has the texts
    again = cli("ingest", *given)
    assert again.code == 0 and "these segments are removed, and made again" in again.err
    assert again.out.startswith("0 new, 0 changed, 5 unchanged, 0 removed; 5 segments prefilled, ")
    asked = json.loads(cli("ask", "--json", "Who built the lighthouse?", *given).out)
    assert asked["n_from_cache"] == asked["n_segments"] == 5
    assert json.loads(cli("info", "--json", *given).out)["cache"]["disk"]["n_bytes"] == n_bytes  # the former are gone
    assert cli("ingest", *given).out.startswith("0 new, 0 changed, 5 unchanged, 0 removed; 0 segments prefilled, ")


def test_the_demo_prints_three_answers_with_their_cost(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(demonstration.DOCUMENTS.read_text(encoding="utf-8").split("\n")[:8]))
    monkeypatch.setattr(demonstration, "DOCUMENTS", few)
    done = cli("demo")
    assert done.code == 0
    assert len(re.findall(r"^Question: .+\nAnswer: ", done.out, re.M)) == 3
    costs = COST.findall(done.out)
    assert len(costs) == 3 and all(full for _, full, *_ in costs)
    again = cli("demo", "--json")
    assert "to prefill" in again.err and "0 new, 0 changed" in again.err
    answers = json.loads(again.out)
    assert len(answers) == 3 and all(fields["n_from_cache"] == fields["n_segments"] > 0 for fields in answers)


def test_the_demo_of_another_installation_finds_the_same_documents(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = demonstration.DOCUMENTS.read_text(encoding="utf-8").split("\n")[:4]
    installed = [tmp_path / name / demonstration.DOCUMENTS.name for name in ("first", "second")]
    for few in installed:
        few.parent.mkdir()
        few.write_text("\n".join(lines))
    monkeypatch.setattr(demonstration, "DOCUMENTS", installed[0])
    assert cli("demo").code == 0
    (made,) = json.loads(cli("collections", "ls", "--json").out)
    # As a former version put them there: under the path of its own installation.
    assert cli("ingest", str(installed[0]), "--collection", made["name"]).out.startswith("4 new, ")
    monkeypatch.setattr(demonstration, "DOCUMENTS", installed[1])
    done = cli("demo", "--json")
    assert done.code == 0 and "0 new, 0 changed, 4 unchanged, 4 removed; 0 segments prefilled" in done.err, done.err
    for fields in json.loads(done.out):
        assert fields["sources"] and all(one["doc_id"].startswith(demonstration.SOURCE) for one in fields["sources"])
    (listed,) = json.loads(cli("collections", "ls", "--json").out)
    assert (listed["n_documents"], listed["n_files"]) == (4, 1) and listed["n_ready"] == 1
