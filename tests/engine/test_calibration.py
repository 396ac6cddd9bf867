"""Calibration: what is measured equals plain arithmetic, the choice follows its rule, the file is kept and obeyed."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch

from hypic_rag import Policy, Sampling, SegmentEngine
from hypic_rag.engine import calibration
from hypic_rag.engine.calibration import Calibration, Measurement, Thresholds, choose, measure, policy_in_force
from hypic_rag.engine.calibration.measurement import token_kl
from hypic_rag.errors import BadInput
from hypic_rag.prompt import Prompt

PROMPTS = [
    Prompt.build(tiny.ids(20, 1), [tiny.ids(60, 10 * i + 2), tiny.ids(5, 3), tiny.ids(90, 10 * i + 4)], tiny.ids(9, i))
    for i in range(2)
]
FULL = Measurement(Policy("full"), 4, 20, 0.0, 0.0, 1.0, 1.0, 100.0, 0.0)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HYPIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(autouse=True, scope="module")
def short_answers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hypic_rag.engine.calibration.measurement.ANSWER_TOKENS", 4)
        yield


@pytest.fixture(scope="module")
def calibrated(short_answers: None) -> Calibration:
    return calibration.calibrate(tiny.engine("qwen3_5_text"), PROMPTS, "two prompts")


def test_kl_equals_float64_in_plain_words() -> None:
    full, other = (torch.randn(3, 50, generator=torch.Generator().manual_seed(i)).log_softmax(-1) for i in (1, 2))
    p, q = full.double().softmax(-1), other.double().softmax(-1)
    want = [sum(float(p[i, j]) * math.log(float(p[i, j] / q[i, j])) for j in range(50)) for i in range(3)]
    assert token_kl(full, other).tolist() == pytest.approx(want, rel=1e-5)
    assert token_kl(full, full).tolist() == [0, 0, 0]
    sure = torch.tensor([[0.0, -math.inf]])
    assert token_kl(sure, torch.tensor([[0.5, 0.5]]).log()).tolist() == pytest.approx([math.log(2)])
    assert token_kl(torch.tensor([[0.5, 0.5]]).log(), sure).tolist() == [math.inf]


def test_measurements_equal_scores_and_answers_taken_one_by_one() -> None:
    engine = tiny.engine("qwen3_5_text")
    policies = [Policy(seam_tokens=8), Policy(seam_tokens=8, compose="last_state"), Policy(seam_tokens=0)]
    seen: list[tuple[int, int]] = []
    measured = measure(engine, PROMPTS, policies, lambda done, total: seen.append((done, total)))
    assert seen == [(i, 8) for i in range(1, 9)]
    assert [one.policy for one in measured] == [Policy("full"), *policies]
    assert len({one.kl for one in measured}) == 4  # nothing is measured twice under another name
    other = tiny.engine("qwen3_5_text")
    for one in measured:
        firsts, kls, equal = [], [], []
        for prompt in PROMPTS:
            answer = other.generate(prompt, Sampling(4), Policy("full")).token_ids
            full, own = (other.score(prompt, (*answer, 7), p).logprobs.double() for p in (Policy("full"), one.policy))
            kl = (full.exp() * (full - own)).sum(-1)
            firsts.append(float(kl[0]))
            kls += kl.tolist()
            own_answer = other.generate(prompt, Sampling(4), one.policy).token_ids
            equal.append((own_answer[:1] == answer[:1], own_answer == answer))
        assert one.n_tokens == len(kls) and one.n == 2
        assert one.first_kl == pytest.approx(sum(firsts) / 2, rel=1e-3, abs=1e-5)
        assert one.kl == pytest.approx(sum(kls) / len(kls), rel=1e-3, abs=1e-5)
        assert one.same_first == sum(first for first, _ in equal) / 2
        assert one.same_answer == sum(whole for _, whole in equal) / 2
        assert one.ttft_ms > 0
    of_60 = engine.segment_key(PROMPTS[0].documents[0], policy=policies[0])
    engine.prefill(PROMPTS[0].documents, policy=policies[0])
    sizes = [engine.cache.lookup(replace(of_60, token_ids=ids)).entry.nbytes for ids in PROMPTS[0].documents[::2]]
    assert measured[1].segment_bytes == pytest.approx(sum(sizes) / 2)  # the document of 5 tokens is all seam
    assert measured[0].segment_bytes == 0


def test_entries_made_for_it_leave_and_others_stay() -> None:
    engine = tiny.engine("qwen3_5_text")
    engine.prefill(PROMPTS[0].documents)
    before = engine.cache.stats().tiers["host"].n_entries
    measure(engine, PROMPTS, [Policy(), Policy(seam_tokens=0)])
    assert engine.cache.stats().tiers["host"].n_entries == before == 2
    assert engine.prefill(PROMPTS[0].documents).n_prefilled == 0


def test_candidates_are_behind_nothing_and_behind_the_first_token(gdn_engine: SegmentEngine) -> None:
    policies = calibration.candidates(gdn_engine)
    assert len(set(policies)) == 20
    assert {p.isolation_prefix for p in policies} == {(), (gdn_engine.tokenizer.bos_token_id,)}
    assert {(p.seam_tokens, p.compose) for p in policies} == {
        (seam, compose) for seam in (0, 4, 8, 16, 32) for compose in ("exact", "last_state")
    }


def test_a_calibration_measures_every_candidate(calibrated: Calibration, gdn_engine: SegmentEngine) -> None:
    assert [one.policy for one in calibrated.measurements[1:]] == calibration.candidates(gdn_engine)
    assert (calibrated.n, calibrated.data, calibrated.model) == (2, "two prompts", "tiny-qwen3_5_text")
    assert calibrated.versions["torch"] == torch.__version__
    assert calibrated.reason
    with pytest.raises(BadInput, match="no prompt to calibrate on"):
        calibration.calibrate(gdn_engine, [], "nothing")


def test_a_calibration_of_a_version_that_knew_no_orders_is_read(home: Path, calibrated: Calibration) -> None:
    file = calibration.calibration_file(calibrated.fingerprint)
    calibration.write(calibrated, file)
    fields = json.loads(file.read_text())
    former = {name: value for name, value in fields.items() if name not in ("order", "order_reason", "orders")}
    file.write_text(json.dumps({**former, "version": 1}))
    assert calibration.read(calibrated.fingerprint) == calibrated and calibrated.order is None
    measured = tuple(calibration.OrderMeasurement(order, 2, 1.5, (1.0, 2.0)) for order in ("ends", "document"))
    ordered = replace(calibrated, order="ends", order_reason="why", orders=measured)
    calibration.write(ordered, file)
    assert calibration.read(calibrated.fingerprint) == ordered
    file.write_text(json.dumps({**fields, "version": 3}))
    with pytest.raises(BadInput, match="version 3"):
        calibration.read(calibrated.fingerprint)


def figures(seam: int, kl: float, same_first: float = 1.0, compose: str = "exact") -> Measurement:
    policy = Policy(seam_tokens=seam, compose=compose)  # type: ignore[arg-type]
    return replace(FULL, policy=policy, kl=kl, same_first=same_first, segment_bytes=1e6)


CHOICES = {  # (seam, kl, share of same first tokens) of what was measured; the seam chosen, None for full
    "the smallest near the best": ([(0, 0.40), (8, 0.22), (16, 0.20), (32, 0.19)], 8),
    "the best where none is near": ([(0, 0.40), (8, 0.30), (32, 0.19)], 32),
    "no seam does as well": ([(0, 0.10), (32, 0.10)], 0),
    "distance is from the best that is good enough": ([(0, 0.15), (8, 0.12, 0.9), (32, 0.01, 0.2)], 0),
    "too far from full": ([(0, 0.9), (8, 0.7), (32, 0.51)], None),
    "too few first tokens": ([(0, 0.1, 0.3), (8, 0.1, 0.49)], None),
    "just good enough": ([(8, 0.5, 0.5)], 8),
    "not numbers": ([(8, math.nan), (16, math.inf)], None),
    "not a number beside one": ([(0, math.nan), (8, 0.3)], 8),
}


@pytest.mark.parametrize("measured, seam", CHOICES.values(), ids=CHOICES)
def test_the_choice_follows_its_rule(measured: list[tuple[int, float]], seam: int | None) -> None:
    choice = choose([FULL, *(figures(*one) for one in measured)], Thresholds())
    assert (choice.policy.mode == "full") == (seam is None)
    if seam is not None:
        assert choice.policy.seam_tokens == seam
    else:
        assert "no policy is good enough" in choice.reason


def test_among_equal_seams_the_nearest_to_full_is_taken() -> None:
    measured = [figures(8, 0.20), figures(8, 0.18, compose="last_state"), figures(16, 0.17)]
    assert choose([FULL, *measured], Thresholds()).policy == Policy(compose="last_state")
    nothing = Thresholds(max_kl=0.1)
    assert choose([FULL, *measured], nothing).policy == Policy("full", seam_tokens=16)  # what to reuse if asked to


@pytest.mark.parametrize(
    "wrong", [{"max_kl": -1.0}, {"distance": math.nan}, {"min_same_first": 1.5}, {"min_same_first": math.nan}], ids=str
)
def test_thresholds_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Thresholds(**wrong)


def test_a_calibration_is_read_as_it_was_written(home: Path, calibrated: Calibration) -> None:
    assert calibration.read(calibrated.fingerprint) is None
    file = calibration.calibration_file(calibrated.fingerprint)
    calibration.write(calibrated, file)
    assert calibration.read(calibrated.fingerprint) == calibrated
    assert [path.name for path in file.parent.iterdir()] == [file.name]  # nothing unfinished is left
    assert calibration.read("another model") is None


DAMAGE = {
    "not JSON": lambda text: text[:-9],
    "empty": lambda text: "",
    "a list": lambda text: "[]",
    "another version": lambda text: text.replace('"version": 2,', '"version": 3,'),
    "another model": lambda text: text.replace('"fingerprint": "tiny', '"fingerprint": "huge'),
    "an unknown composition": lambda text: text.replace('"exact"', '"exactly"'),
    "half a token": lambda text: re.sub(r'"seam_tokens": \d+', '"seam_tokens": 8.5', text),
    "no date": lambda text: re.sub(r'"date": "[^"]*"', '"date": null', text),
    "lists in lists": lambda text: "[" * 100_000,
    "a field less": lambda text: text.replace('"reason"', '"because"'),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_file_that_cannot_be_used_is_told(home: Path, calibrated: Calibration, damage: object) -> None:
    file = calibration.calibration_file(calibrated.fingerprint)
    calibration.write(calibrated, file)
    file.write_text(damage(file.read_text()))  # type: ignore[operator]
    with pytest.raises(BadInput, match=r"cannot be used: .*\(hypic-rag calibrate MODEL\), or delete it"):
        policy_in_force(calibrated.fingerprint)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, calibrated: Calibration) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "a.json", tmp_path):
        for write in (calibration.check_writable, lambda file: calibration.write(calibrated, file)):
            with pytest.raises(BadInput, match="cannot be written to"):
                write(place)
    calibration.check_writable(tmp_path / "new" / "a.json")
    assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize(
    "policy",
    [Policy(seam_tokens=16, compose="last_state", isolation_prefix=(1,)), Policy("full", seam_tokens=32)],
    ids=str,
)
def test_what_is_given_wins_over_the_calibration_and_that_over_the_default(
    home: Path, calibrated: Calibration, policy: Policy
) -> None:
    name = calibrated.fingerprint
    default = policy_in_force(name)
    assert (default.policy, default.why, default.calibration) == (Policy(), "default", None)
    assert policy_in_force(name, seam_tokens=4).why == "given: seam_tokens; the rest default"
    made = replace(calibrated, policy=policy, date="2026-05-01T10:00:00+00:00")
    calibration.write(made, calibration.calibration_file(name))
    found = policy_in_force(name)
    assert (found.policy, found.why, found.calibration) == (policy, "calibrated on 2026-05-01 (n=2)", made)
    partly = policy_in_force(name, seam_tokens=4)
    assert partly.policy == replace(policy, mode="hypic", seam_tokens=4)
    assert partly.why == "given: seam_tokens; the rest calibrated on 2026-05-01 (n=2)"
    assert policy_in_force(name, mode="hypic").policy == replace(policy, mode="hypic")
    full = policy_in_force(name, mode="full")
    assert (full.policy, full.why) == (replace(policy, mode="full"), "given: mode")
    whole = policy_in_force(name, seam_tokens=4, compose="exact")
    assert whole.why == "given: seam_tokens, compose"


def test_the_engine_takes_it_where_no_policy_is_given(home: Path, tmp_path: Path, calibrated: Calibration) -> None:
    model = tmp_path / "model"
    tiny.build("qwen3_5_text").save_pretrained(model)
    tiny.tokenizer().save_pretrained(model)
    engine = SegmentEngine.from_pretrained(model, device="cpu")
    assert engine.policy == Policy()
    policy = Policy(seam_tokens=16, isolation_prefix=(1,))
    made = replace(calibrated, fingerprint=engine.fingerprint, policy=policy)
    calibration.write(made, calibration.calibration_file(engine.fingerprint))
    assert SegmentEngine.from_pretrained(model, device="cpu").policy == policy
    assert SegmentEngine.from_pretrained(model, device="cpu", policy=Policy()).policy == Policy()


def test_the_file_is_json_for_others_too(calibrated: Calibration) -> None:
    fields = json.loads(json.dumps(calibrated.fields()))
    assert (fields["format"], fields["version"]) == ("hypic-rag calibration", 2)
    assert fields["measurements"][0]["policy"]["mode"] == "full"
    assert fields["thresholds"] == {"max_kl": 0.5, "min_same_first": 0.5, "distance": 0.05}


def test_where_nothing_was_cached_there_is_no_choice() -> None:
    """A seam beyond every document equals full at no cost, and says nothing."""
    with pytest.raises(BadInput, match="longer documents"):
        choose([FULL, Measurement(Policy(), 4, 20, 0.0, 0.0, 1.0, 1.0, 100.0, 0.0)], Thresholds())
