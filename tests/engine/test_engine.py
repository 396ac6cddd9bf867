"""Requests: streaming, sampling, batches, cancelling, conversations, and what is refused."""

import threading
import time

import pytest
import tiny
import torch
from forks import status_of_fork

from hypic_rag import Policy, Sampling, SegmentCache, SegmentEngine
from hypic_rag.engine import assemble, segment_manager
from hypic_rag.errors import BadInput, ContextTooLong
from hypic_rag.locks import UsedAfterFork
from hypic_rag.prompt import Prompt

LEADING = tiny.ids(20, 1)


def prompt(*lengths: int, question: int = 2) -> Prompt:
    return Prompt.build(LEADING, [tiny.ids(n, n) for n in lengths], tiny.ids(13, question))


def test_the_report_counts_what_was_computed(gdn_engine: SegmentEngine) -> None:
    engine = tiny.engine("qwen3_5_text")
    ask = prompt(100, 5, 40)
    cold, warm = (engine.generate(ask, Sampling(max_new_tokens=3)).report for _ in range(2))
    full = engine.generate(ask, Sampling(max_new_tokens=3), Policy("full")).report
    rows = 8 + 5 + 8 + 13  # two seams, a document that is all seam, the question
    assert cold.prompt_tokens == warm.prompt_tokens == full.prompt_tokens == full.computed_tokens == 178
    assert cold.computed_tokens == rows + 20 + 100 + 40
    assert warm.computed_tokens == rows
    assert [use.tier for use in cold.segments] == [None, "live", None]
    assert [use.tier for use in warm.segments] == ["host", "live", "host"]
    assert [use.miss_reason for use in cold.segments] == ["never_seen", None, "never_seen"]
    assert (cold.n_from_cache, warm.n_from_cache, full.n_from_cache) == (0, 2, 0)
    assert cold.prefill_ms > 0 == warm.prefill_ms or warm.prefill_ms < cold.prefill_ms
    assert warm.ttft_ms >= warm.assemble_ms > 0


def test_requests_together_equal_each_alone(gdn_engine: SegmentEngine) -> None:
    """Ragged batch: joined at different steps, other lengths and policies. Equal but where the top two are closer
    than 1e-3, which none is here."""
    asked = [
        (prompt(100, 40), Policy()),
        (prompt(7), Policy("full")),
        (prompt(), Policy()),
        (prompt(100, question=3), Policy(compose="last_state")),
    ]
    sampling = Sampling(max_new_tokens=8)
    alone = [gdn_engine.generate(p, sampling, policy).token_ids for p, policy in asked]
    ids, together = [], {}
    for p, policy in asked:
        ids.append(gdn_engine.add_request(p, sampling, policy))
        for output in gdn_engine.step():  # the earlier ones are decoding when this one joins
            together[output.request_id] = output
    while gdn_engine.has_work:
        together |= {output.request_id: output for output in gdn_engine.step()}
    assert [together[i].generation.token_ids for i in ids] == alone


def test_threads_share_the_engine(gdn_engine: SegmentEngine) -> None:
    asked = [prompt(100, 40), prompt(33, question=4), prompt(100, question=5)]
    alone = [gdn_engine.generate(p, Sampling(max_new_tokens=8)).token_ids for p in asked]
    got: dict[int, tuple[int, ...]] = {}

    def run(i: int) -> None:
        got[i] = gdn_engine.generate(asked[i], Sampling(max_new_tokens=8)).token_ids

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [got[i] for i in range(3)] == alone


def test_leaving_a_stream_cancels_it(gdn_engine: SegmentEngine) -> None:
    stream = gdn_engine.stream(prompt(40), Sampling(max_new_tokens=50))
    next(stream)
    assert gdn_engine.has_work
    stream.close()
    assert not gdn_engine.has_work
    request = gdn_engine.add_request(prompt(40))
    gdn_engine.cancel(request)
    gdn_engine.cancel(request)
    assert not gdn_engine.has_work and gdn_engine.step() == []


def test_a_stream_that_another_thread_cancels_ends(gdn_engine: SegmentEngine) -> None:
    stream = gdn_engine.stream(prompt(40), Sampling(max_new_tokens=50))
    first = next(stream)
    [request_id] = gdn_engine._scheduler._requests
    gdn_engine.cancel(request_id)
    last = list(stream)[-1].generation
    assert first.generation is None and last.finish_reason == "cancelled" and len(last.token_ids) == 1


def test_what_is_stopped_while_it_waits_computes_nothing(gdn_engine: SegmentEngine) -> None:
    stop, got, hits = threading.Event(), [], gdn_engine.cache.stats()

    def ask() -> None:
        got.append(gdn_engine.generate(prompt(71), Sampling(max_new_tokens=50), stop=stop))

    thread = threading.Thread(target=ask)
    with gdn_engine._lock:  # as another's pass has it
        thread.start()
        time.sleep(0.05)
        stop.set()
    thread.join(10)
    assert [(one.finish_reason, one.token_ids) for one in got] == [("cancelled", ())]
    assert gdn_engine.cache.stats() == hits and not gdn_engine.has_work


def test_a_stop_between_two_tokens_keeps_what_there_is(gdn_engine: SegmentEngine) -> None:
    stop = threading.Event()
    whole = gdn_engine.generate(prompt(40), Sampling(max_new_tokens=9)).token_ids
    stream = gdn_engine.stream(prompt(40), Sampling(max_new_tokens=50), stop=stop)
    for _ in range(3):
        next(stream)
    stop.set()
    generation = list(stream)[-1].generation
    assert (generation.finish_reason, generation.token_ids) == ("cancelled", whole[:3])
    assert not gdn_engine.has_work


def test_a_stop_ends_a_cold_prefill_at_the_next_pass_and_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the stopped request wants is not made any more; a document of both is."""
    engine = tiny.engine("qwen3_5_text", deterministic=True)  # one segment a pass
    theirs, shared = prompt(33, 34, 35, 36), prompt(36, 37, question=4)
    right = tiny.engine("qwen3_5_text", deterministic=True).generate(shared, Sampling(max_new_tokens=4)).token_ids
    made: list[int] = []
    real = segment_manager.prefill

    def prefill(model, cache_spec, ids, *rest):  # type: ignore[no-untyped-def]
        made.extend(map(len, ids))
        if made[-1] == 34:
            engine._scheduler._requests[stopped].stop.set()
        return real(model, cache_spec, ids, *rest)

    monkeypatch.setattr(segment_manager, "prefill", prefill)
    stopped = engine.add_request(theirs, Sampling(max_new_tokens=4))
    other = engine.add_request(shared, Sampling(max_new_tokens=4))
    ended = {}
    while engine.has_work:
        ended |= {output.request_id: output.generation for output in engine.step() if output.generation}
    assert made == [20, 33, 34, 36, 37]
    assert list(ended) == [other] and ended[other].token_ids == right


def test_a_stop_ends_a_prefill_at_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, stop = tiny.engine("qwen3_5_text", deterministic=True), threading.Event()
    report = engine.prefill(prompt(33, 34, 35).documents, on_progress=lambda done, n: stop.set(), stop=stop)
    assert (report.n_segments, report.n_prefilled, report.n_tokens) == (3, 0, 0)
    report = engine.prefill(prompt(33, 34, 35).documents)
    assert (report.n_segments, report.n_prefilled, report.n_tokens) == (3, 3, 102)


def test_inside_a_pass_nothing_else_is_begun_and_a_cancel_waits(
    gdn_engine: SegmentEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler and a finalizer come in the thread that runs the pass, where the lock keeps nobody out."""
    real, told = assemble.run, []
    first, second = (gdn_engine.add_request(prompt(40, question=i), Sampling(max_new_tokens=3)) for i in (2, 3))

    def interrupted(*given: object) -> list[torch.Tensor]:
        for call in (gdn_engine.step, lambda: gdn_engine.generate(prompt(7)), lambda: gdn_engine.score(prompt(7), [5])):
            with pytest.raises(RuntimeError, match="from inside one of its own passes"):
                call()
            told.append(1)
        gdn_engine.cancel(second)
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(assemble, "run", interrupted)
        outputs = gdn_engine.step()
    assert len(told) == 3 and [one.request_id for one in outputs] == [first, second]
    assert list(gdn_engine._scheduler._requests) == [first]
    while gdn_engine.has_work:
        gdn_engine.step()


def test_a_forked_child_refuses_and_ends_what_it_copied_quietly(gdn_engine: SegmentEngine) -> None:
    stream = gdn_engine.stream(prompt(40), Sampling(max_new_tokens=50))
    next(stream)

    def work() -> int:
        n_refused = 0
        for call in (
            lambda: gdn_engine.generate(prompt(40)),
            lambda: gdn_engine.add_request(prompt(40)),
            lambda: gdn_engine.score(prompt(40), [5]),
            lambda: gdn_engine.prefill([tiny.ids(40, 40)]),
            gdn_engine.step,
            gdn_engine.forget,
        ):
            try:
                call()
            except UsedAfterFork:
                n_refused += 1
        stream.close()
        return n_refused

    assert status_of_fork(gdn_engine._lock, work) == 6
    stream.close()


def test_sampling_follows_its_seed(gdn_engine: SegmentEngine) -> None:
    def drawn(**options: float) -> tuple[int, ...]:
        return gdn_engine.generate(prompt(40), Sampling(max_new_tokens=8, **options)).token_ids

    assert drawn(temperature=1.0, seed=1) == drawn(temperature=1.0, seed=1)
    assert drawn(temperature=1.0, seed=1) != drawn(temperature=1.0, seed=2)
    assert drawn(temperature=1.0, top_p=1e-6, seed=3) == drawn()  # only the likeliest token is left


def test_a_conversation_resumes_where_it_ended(gdn_engine: SegmentEngine) -> None:
    """Exactly: the second turn computes its own rows alone, and scores as a run over all parts does (1e-4)."""
    for policy in (Policy(), Policy("full")):
        engine = tiny.engine("qwen3_5_text", policy=policy)
        first = engine.generate(prompt(100), Sampling(max_new_tokens=5))
        second = prompt(100).extend((*first.token_ids, 2, 198), [tiny.ids(50, 50)], tiny.ids(9, 8))
        turn = engine.generate(second, Sampling(max_new_tokens=5))
        document = 8 if policy.mode == "hypic" else 50
        assert turn.report.resumed_tokens == 133 + 4  # the fifth token was drawn, not run
        assert turn.report.computed_tokens == 1 + 2 + document + 9 + (50 if policy.mode == "hypic" else 0)
        forgetful = tiny.engine("qwen3_5_text", policy=policy, conversation_budget=0)
        rebuilt = forgetful.generate(second, Sampling(max_new_tokens=5))
        assert rebuilt.report.resumed_tokens == 0
        assert rebuilt.token_ids == turn.token_ids
        new = None if policy.mode == "hypic" else "live"
        assert [use.tier for use in turn.report.segments] == ["conversation", new]
        assert turn.report.leading and turn.report.leading.tier == "conversation"


def test_a_conversation_can_branch(gdn_engine: SegmentEngine) -> None:
    """Two different next turns start from the same end state: the first does not change it for the second."""
    engine = tiny.engine("qwen3_5_text")
    first = engine.generate(prompt(100), Sampling(max_new_tokens=5))
    turns = [prompt(100).extend((*first.token_ids, 2), [], tiny.ids(9, seed)) for seed in (8, 9, 8)]
    a, b, again = (engine.generate(turn, Sampling(max_new_tokens=6)) for turn in turns)
    assert a.report.resumed_tokens == b.report.resumed_tokens == again.report.resumed_tokens == 137
    assert a.token_ids == again.token_ids != b.token_ids


def test_held_conversations_stay_in_their_budget() -> None:
    engine = tiny.engine("qwen3_5_text", conversation_budget=300_000)
    for seed in range(8):
        engine.generate(prompt(question=seed), Sampling(max_new_tokens=2))
    assert 0 < engine.conversations.nbytes <= 300_000


def test_host_budget_holds_and_answers_stay() -> None:
    ask = prompt(100, 40, 33)
    want = tiny.engine("qwen3_5_text").score(ask, (5,))
    engine = tiny.engine("qwen3_5_text", cache=SegmentCache.open(None, 60_000, None))
    for _ in range(3):
        got = engine.score(ask, (5,))
        assert engine.cache.nbytes("host") <= 60_000
        assert (got.first_logprobs - want.first_logprobs).abs().max() < 1e-4
    assert "evicted" in {use.miss_reason for use in got.report.segments}


def test_room_on_a_gpu_means_nothing_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    ask = prompt(40, 33)
    engines = tiny.engine("qwen3_5_text"), tiny.engine("qwen3_5_text", device_memory=10**9)
    without, given = (engine.score(ask, (5,)).first_logprobs for engine in engines)
    assert given.equal(without)


def test_namespaces_do_not_share() -> None:
    cache = SegmentCache.open(None, None, None)
    model = tiny.engine("qwen3_5_text", cache=cache, namespace="a")
    other = tiny.engine("qwen3_5_text", cache=cache, namespace="b")
    assert [engine.prefill([tiny.ids(50, 5)]).n_hits for engine in (model, other, model)] == [0, 0, 1]


def test_tenants_of_one_engine_share_passes_and_nothing_else() -> None:
    """Neither entries nor held conversations are found from another namespace; answers are those of each alone."""
    engine = tiny.engine("qwen3_5_text")
    a, b = engine.within("a"), engine.within("b")
    ask, sampling = prompt(100, 40), Sampling(max_new_tokens=5)
    first = a.generate(ask, sampling)
    other = b.generate(ask, sampling)
    assert [use.tier for use in other.report.segments] == [None, None]
    follow_up = ask.extend((*first.token_ids, 2, 198), [tiny.ids(50, 50)], tiny.ids(9, 8))
    assert engine.generate(follow_up, sampling).report.resumed_tokens == 0
    assert a.generate(follow_up, sampling).report.resumed_tokens > 0
    ids = [one.add_request(ask, sampling) for one in (engine, a, b)]
    ended = {}
    while engine.has_work:
        ended |= {output.request_id: output.generation for output in b.step() if output.generation}
    assert {ended[i].token_ids for i in ids} == {first.token_ids}


def test_a_namespace_is_forgotten_and_others_are_not(gdn_engine: SegmentEngine) -> None:
    engine = tiny.engine("qwen3_5_text")
    a, b = engine.within("a"), engine.within("b")
    ask, sampling = prompt(100, 40), Sampling(max_new_tokens=2)
    for one in (a, b):
        one.generate(ask, sampling)
    one_of_a = a.segment_key(ask.documents[0]).digest

    a.forget([one_of_a])
    assert [use.tier for use in a.generate(ask, sampling).report.segments] == [None, "host"]  # and no conversation
    a.forget()

    assert [use.tier for use in a.generate(ask, sampling).report.segments] == [None, None]
    assert b.generate(ask, sampling).report.n_from_cache == 2


def test_the_forecast_of_bytes_is_exact(engine: SegmentEngine) -> None:
    for n in (9, 147):
        ids = tiny.ids(n, n)
        engine.prefill([ids])
        found = engine.cache.lookup(engine.segment_key(ids))
        assert engine.entry_bytes(n) == found.entry.nbytes  # type: ignore[union-attr]
    assert engine.entry_bytes(8) == 0
    assert engine.families == {"attention": 1, "gdn": 3}


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(BadInput, match="All: none, int8, int8-kv8"):
        tiny.engine("qwen3_5_text", codec="int9")


def test_prefill_counts_and_reports(gdn_engine: SegmentEngine) -> None:
    engine, seen = tiny.engine("qwen3_5_text"), []
    segments = [tiny.ids(50, 5), tiny.ids(8, 8), tiny.ids(30, 3), tiny.ids(50, 5)]
    report = engine.prefill(segments, on_progress=lambda done, total: seen.append((done, total)))
    assert (report.n_segments, report.n_hits, report.n_prefilled, report.n_tokens) == (2, 0, 2, 80)
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert engine.prefill(segments).n_hits == 2


REFUSED = {
    "an unknown mode": lambda engine: Policy(mode="fast"),  # type: ignore[arg-type]
    "an unknown composition": lambda engine: Policy(compose="sum"),  # type: ignore[arg-type]
    "a negative seam": lambda engine: Policy(seam_tokens=-1),
    "no tokens": lambda engine: Sampling(max_new_tokens=0),
    "a cold temperature": lambda engine: Sampling(temperature=-1),
    "no number for a temperature": lambda engine: Sampling(temperature=float("nan")),
    "a seed too large": lambda engine: Sampling(seed=2**64),
    "ids outside the vocabulary": lambda engine: engine.add_request(Prompt.build((), [(10**8,) * 20], (5,))),
    "an empty nucleus": lambda engine: Sampling(top_p=0),
    "an empty stop": lambda engine: Sampling(stop=("",)),
    "an empty question": lambda engine: engine.format.question("  \n"),
    "a prompt without a question": lambda engine: Prompt.build((1,), [], ()),
    "an empty answer to score": lambda engine: engine.score(prompt(), ""),
    "an answer to score beyond the vocabulary": lambda engine: engine.score(prompt(), [5, 10**9]),
    "the key of a seam": lambda engine: engine.segment_key((1, 2, 3)),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused(gdn_engine: SegmentEngine, refused) -> None:
    with pytest.raises(BadInput):
        refused(gdn_engine)


def test_a_prompt_beyond_the_context_is_refused(gdn_engine: SegmentEngine) -> None:
    long = prompt(8200)
    for call in (gdn_engine.generate, gdn_engine.stream, gdn_engine.add_request):
        with pytest.raises(ContextTooLong, match=r"8234.*8192"):
            call(long)
    with pytest.raises(ContextTooLong):
        gdn_engine.prefill([tiny.ids(9000, 1)])
    assert not gdn_engine.has_work


def test_an_answer_ends_at_the_context() -> None:
    engine = tiny.engine("qwen3_5_text", {"max_position_embeddings": 140})
    generation = engine.generate(prompt(100), Sampling(max_new_tokens=50))
    assert generation.finish_reason == "length" and len(generation.token_ids) == 140 - 133


def test_reuse_is_refused_past_a_switch_of_frequencies() -> None:
    dynamic = {**tiny.ROPE, "rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 128}
    engine = tiny.engine("qwen3_5_text", {"rope_parameters": dynamic, "max_position_embeddings": 128})
    engine.context_length = 256  # a dynamic rope serves beyond its trained length
    engine.generate(prompt(50), Sampling(max_new_tokens=2))
    with pytest.raises(ContextTooLong, match="--mode full"):
        engine.generate(prompt(120), Sampling(max_new_tokens=2))
    engine.generate(prompt(120), Sampling(max_new_tokens=2), Policy("full"))


def test_a_failing_pass_fails_its_requests_and_no_later_one(
    gdn_engine: SegmentEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[torch.Tensor]:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(assemble, "run", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            gdn_engine.generate(prompt(40))
    assert not gdn_engine.has_work
    assert gdn_engine.generate(prompt(40), Sampling(max_new_tokens=2)).token_ids
