"""``calibrate``: the table and the JSON, what is in force afterwards, and what cannot be done."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypic_apps import calibration, demonstration
from hypic_apps.session import open_conversation

from hypic_rag import HypicLLM, HypicQueryEngine, Policy
from hypic_rag.config import Settings
from hypic_rag.engine.calibration import Calibration, Thresholds, calibration_file, read, write

ANYTHING = ("--max-kl", "1000", "--min-same-first", "0")  # a random model is near to nothing


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two seams and answers of two tokens: what is tested here is not the measuring."""
    monkeypatch.setattr("hypic_rag.engine.calibration.measurement.ANSWER_TOKENS", 2)
    monkeypatch.setattr("hypic_rag.engine.calibration.measurement.SEAMS", (0, 16))
    yield


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "voyage.txt"
    file.write_text(" ".join(f"On day {n} the ship had sailed {n * 31} miles from the harbour." for n in range(40)))
    return file


def put_in_force(fingerprint: str, policy: Policy) -> None:
    versions = {"hypic-rag": "0", "torch": "0", "transformers": "0"}
    found = Calibration(
        "tiny", fingerprint, policy, "for a test", "2026-05-01T10:00:00+00:00", "text", 3, Thresholds(), (),
        "float32", "cpu", versions,
    )  # fmt: skip
    write(found, calibration_file(fingerprint))


def test_what_is_chosen_is_stored_shown_and_used(cli, home: Path, text: Path, documents: Path, tiny_model) -> None:
    done = cli("calibrate", tiny_model, "--data", text, "--chunk-tokens", "64", "--limit", "2", "--json", *ANYTHING)
    assert done.code == 0
    assert "2 prompts of voyage.txt, 10 segments" in done.err
    fields = json.loads(done.out)
    assert (fields["n"], fields["data"], fields["thresholds"]["max_kl"]) == (2, "voyage.txt", 1000)
    measured = fields["measurements"]
    assert len(measured) == 1 + 2 * 2 * 2
    for one in measured:
        assert {*one} == {
            "policy", "n", "n_tokens", "first_kl", "kl", "same_answer", "same_first", "ttft_ms", "segment_bytes",
        }  # fmt: skip
    stored = json.loads(Path(fields["file"]).read_text())
    assert stored == {name: value for name, value in fields.items() if name != "file"}
    assert Path(fields["file"]).parent == home / "calibrations"

    policy = fields["policy"]
    assert policy["seam_tokens"] in (0, 16)  # and not the default, 8
    info = json.loads(cli("info", "--json").out)["policy"]
    assert {name: info[name] for name in policy} == policy
    assert (info["calibrated_on"], info["given"]) == (fields["date"], [])
    assert re.search(rf"^policy +hypic, seam {policy['seam_tokens']}, .*calibrated on 20..-..-.. \(n=2\)$",
                     cli("info").out, re.M)  # fmt: skip

    assert cli("ingest", documents).code == 0
    asked = json.loads(cli("ask", "Where is the fair?", "--json").out)
    assert {name: asked[name] for name in ("mode", "seam_tokens", "compose")} == {
        name: policy[name] for name in ("mode", "seam_tokens", "compose")
    }
    assert asked["n_from_cache"] == asked["n_segments"] == 5  # ingested under the same policy
    given = json.loads(cli("ask", "Where is the fair?", "--json", "--seam-tokens", "4").out)
    assert (given["seam_tokens"], given["compose"], given["n_from_cache"]) == (4, policy["compose"], 0)
    llm = HypicQueryEngine.from_collection()._response_synthesizer._hypic_llm
    assert llm.engine.policy == llm._policy == read(fields["fingerprint"]).policy
    assert HypicLLM(tiny_model, policy=Policy())._policy == Policy()


def test_the_table_says_what_the_json_says(cli, home: Path, text: Path, tmp_path: Path) -> None:
    arguments = ("calibrate", "--data", text, "--chunk-tokens", "64", "--limit", "1", *ANYTHING)
    fields = json.loads(cli(*arguments, "--json", "--out", tmp_path / "a.json").out)
    assert fields["file"] == str(tmp_path / "a.json") and (tmp_path / "a.json").exists()
    assert not (home / "calibrations").exists()
    done = cli(*arguments, "--out", tmp_path / "b.json")
    assert "nothing was put in force" in done.out and not (home / "calibrations").exists()
    rows = re.findall(
        r"^ *(\*?) +(full|\d+) +(exact|last_state|) +(\d+|-|) +([\d.]+) +([\d.]+) +(\d+)% +(\d+)% +\d+ +(.+?) *$",
        done.out,
        re.M,
    )
    assert len(rows) == len(fields["measurements"])
    for row, one in zip(rows, fields["measurements"], strict=True):
        policy = one["policy"]
        assert row[1] == ("full" if policy["mode"] == "full" else str(policy["seam_tokens"]))
        assert (float(row[4]), float(row[5])) == pytest.approx((one["first_kl"], one["kl"]), abs=2e-3)
        assert row[7] == f"{one['same_first']:.0%}".rstrip("%")
        assert bool(row[0]) == (policy == fields["policy"])


def test_where_nothing_is_good_enough_full_is_in_force(cli, text: Path, documents: Path) -> None:
    done = cli("calibrate", "--data", text, "--chunk-tokens", "64", "--limit", "1", "--max-kl", "0")
    assert done.code == 0
    assert re.search(r"^full: no policy is good enough: the nearest \(hypic, seam ", done.out, re.M)
    assert re.search(r"^ *\* +full ", done.out, re.M)
    assert "--prefill none would save the room" in cli("ingest", documents).err
    asked = json.loads(cli("ask", "Where is the fair?", "--json").out)
    assert (asked["mode"], asked["n_from_cache"]) == ("full", 0)
    for arguments in (("--mode", "hypic"), ("--seam-tokens", "16"), ("--compare",)):
        assert json.loads(cli("ask", "Where is the fair?", "--json", *arguments).out)["mode"] == "hypic"
    assert re.search(r"^policy +full; calibrated on ", cli("info").out, re.M)
    assert re.search(r"^policy +full; given: mode$", with_mode(cli, "full"), re.M)


def test_the_order_is_chosen_on_the_documents_and_used_where_none_is_given(
    cli, text: Path, tmp_path: Path, tiny_model, home: Path
) -> None:
    arguments = ("calibrate", "--data", text, "--chunk-tokens", "64", "--limit", "1", *ANYTHING)
    done = cli(*arguments)
    assert done.code == 0 and "No order of passages was chosen: that takes documents" in done.out
    missing = cli(*arguments, "--collection", "other")
    assert missing.code == 1 and "no collection 'other'" in missing.err and "calibrating" not in missing.err
    assert cli("ingest", text, "--chunk-tokens", "64").code == 0
    n_bytes = json.loads(cli("info", "--json").out)["cache"]["disk"]["n_bytes"]
    fields = json.loads(cli(*arguments, "--json", "--limit", "2").out)
    orders = {one["order"]: one["nll"] for one in fields["orders"]}
    assert {*orders} == {"nearest-first", "nearest-last", "document", "ends"} and fields["order"] in orders
    assert {one["n"] for one in fields["orders"]} == {len(fields["orders"][0]["each"])} and fields["order_reason"]
    info = json.loads(cli("info", "--json").out)
    assert info["order"] == {
        "name": fields["order"],
        "why": f"calibrated on {fields['date'][:10]} (n={fields['orders'][0]['n']})",
    }
    assert info["cache"]["disk"]["n_bytes"] == n_bytes  # nothing measured is kept

    found = read(fields["fingerprint"])
    write(replace(found, order="ends"), calibration_file(found.fingerprint))
    assert HypicQueryEngine.from_collection()._response_synthesizer._order == "ends"
    assert HypicQueryEngine.from_collection(order=None)._response_synthesizer._order is None
    assert HypicQueryEngine.from_collection(order="document")._response_synthesizer._order == "document"
    for given, order in ((None, "ends"), ("nearest-first", "nearest-first")):
        with open_conversation(Settings.load({"order": given, "model": str(tiny_model)})) as conversation:
            assert conversation.order == order


def test_where_the_order_cannot_be_measured_the_policy_stands(cli, text: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("A ship lies in the harbour of Vardal, and nobody knows why.")
    assert cli("ingest", tmp_path / "short.txt").code == 0
    done = cli("calibrate", "--data", text, "--chunk-tokens", "64", "--limit", "1", *ANYTHING)
    assert done.code == 0 and "In force for " in done.out
    assert "No order of passages was chosen: the order of passages cannot be measured: 0 of 1 passages" in done.out
    assert json.loads(cli("info", "--json").out)["order"] == {"name": "nearest-last", "why": "default"}


def with_mode(cli, mode: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYPIC_MODE", mode)
        return cli("info").out


def test_without_data_it_is_the_bundled_documents(cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(demonstration.DOCUMENTS.read_text(encoding="utf-8").split("\n")[:6]))
    monkeypatch.setattr(calibration, "DOCUMENTS", few)
    fields = json.loads(cli("calibrate", "--top-k", "2", "--limit", "1", "--json", *ANYTHING).out)
    assert (fields["data"], fields["n"]) == ("bundled documents", 1)


def test_a_damaged_calibration_stops_questions_and_is_made_again(asking, text: Path) -> None:
    fingerprint = json.loads(asking("info", "--json").out)["model"]["fingerprint"]
    put_in_force(fingerprint, Policy(seam_tokens=16))
    assert json.loads(asking("info", "--json").out)["policy"]["why"] == "calibrated on 2026-05-01 (n=3)"
    calibration_file(fingerprint).write_text("{")
    done = asking("ask", "Who?")
    assert done.code == 1 and "cannot be used" in done.err and "hypic-rag calibrate MODEL" in done.err
    assert asking("calibrate", "--data", text, "--chunk-tokens", "64", "--limit", "1", *ANYTHING).code == 0
    assert asking("ask", "Who?").code == 0


BAD = {
    "no such file": (["--data", "nothing.txt"], "there is no file or folder"),
    "empty file": (["--data", "empty.txt"], "has no text to calibrate on"),
    "too little text": (["--data", "short.txt"], "calibration needs 2"),
    "unknown model": (["no/such/model", "--data", "long.txt"], "there is no model folder no/such/model"),
    "chunks larger than the context": (["--data", "long.txt", "--chunk-tokens", "4096"], "use --chunk-tokens 1024"),
    "a negative bound": (["--data", "long.txt", "--max-kl", "-1"], "max_kl is -1.0"),
    "an out file that is a folder": (["--data", "long.txt", "--out", "."], "cannot be written to"),
}


@pytest.mark.parametrize("arguments, message", BAD.values(), ids=BAD)
def test_what_cannot_be_calibrated_is_told(
    cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (("empty", ""), ("short", "A ship."), ("long", "The ship is red. " * 100)):
        (tmp_path / f"{name}.txt").write_text(content)
    done = cli("calibrate", *arguments)
    assert (done.code, done.out) == (1, "")
    assert message in done.err.splitlines()[-1]
    assert not (home / "calibrations").exists() or not any((home / "calibrations").iterdir())


def test_a_home_that_cannot_be_written_is_told_before_measuring(cli, home: Path, text: Path) -> None:
    home.mkdir()
    (home / "calibrations").write_text("a file in the way")
    done = cli("calibrate", "--data", text, "--chunk-tokens", "64")
    assert done.code == 1
    assert "cannot be written to" in done.err and "calibrating" not in done.err


def test_the_help_names_the_thresholds(cli) -> None:
    words = " ".join(cli("calibrate", "--help").out.split())
    defaults = Thresholds()
    assert f"({defaults.max_kl:g}:" in words
    assert f"({defaults.min_same_first:g})" in words and f"({defaults.distance:g})" in words


def test_two_models_are_one_too_many(cli, tiny_model) -> None:
    done = cli("calibrate", tiny_model, "--model", "another/model")
    assert done.code == 2 and "are two models: give one" in " ".join(done.err.replace("│", " ").split())
