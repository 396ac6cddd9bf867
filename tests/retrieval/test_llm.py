"""HypicLLM: the eight calls say the same, async ones do not block, streams can be left, mistakes are told."""

import asyncio
import time
import warnings

import pytest
from fake_engine import FakeEngine
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole, TextBlock
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.prompts.default_prompts import DEFAULT_TEXT_QA_PROMPT

from hypic_rag.cache import SegmentCache
from hypic_rag.engine import Policy
from hypic_rag.errors import BadInput, ContextTooLong
from hypic_rag.integrations.llama_index.llm import HypicLLM
from hypic_rag.integrations.llama_index.synthesizer import HypicSynthesizer

QUESTION = "where are the ships"
MESSAGES = [ChatMessage(role="user", content=QUESTION)]
ANSWER = "ANSWER 0 documents: where are the ships"


async def collect(stream):
    return [item async for item in stream]


def last_of_chat(responses):
    assert "".join(response.delta for response in responses) == responses[-1].message.content
    return responses[-1]


def last_of_completion(responses):
    assert "".join(response.delta for response in responses) == responses[-1].text
    return responses[-1]


CALLS = {
    "chat": lambda llm: llm.chat(MESSAGES),
    "stream_chat": lambda llm: last_of_chat(list(llm.stream_chat(MESSAGES))),
    "achat": lambda llm: asyncio.run(llm.achat(MESSAGES)),
    "astream_chat": lambda llm: last_of_chat(asyncio.run(drain(llm.astream_chat(MESSAGES)))),
    "complete": lambda llm: llm.complete(QUESTION),
    "stream_complete": lambda llm: last_of_completion(list(llm.stream_complete(QUESTION))),
    "acomplete": lambda llm: asyncio.run(llm.acomplete(QUESTION)),
    "astream_complete": lambda llm: last_of_completion(asyncio.run(drain(llm.astream_complete(QUESTION)))),
}


async def drain(awaitable):
    return await collect(await awaitable)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_gives_the_answer_with_its_report(llm, call):
    response = call(llm)
    assert (response.text if hasattr(response, "text") else response.message.content) == ANSWER
    assert response.raw["finish_reason"] == "stop"
    assert response.raw["report"]["prompt_tokens"] == response.additional_kwargs["prompt_tokens"] > 0
    assert response.additional_kwargs["completion_tokens"] == 7


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_is_seen_by_the_callbacks(engine, call):
    debug = LlamaDebugHandler(print_trace_on_end=False)
    call(HypicLLM(engine=engine, callback_manager=CallbackManager([debug])))
    [(_, end)] = debug.get_event_pairs(CBEventType.LLM)
    assert ANSWER in str(end.payload.get("response", end.payload.get("completion")))


def test_metadata(llm, engine):
    about = llm.metadata
    assert (about.context_window, about.num_output, about.is_chat_model, about.model_name) == (
        engine.context_length,
        256,
        True,
        "fake/model",
    )


def test_a_chat_has_its_roles_and_the_system_prompt(engine):
    seen = []
    engine.format.chat, chat = lambda pairs: seen.append(pairs) or chat(pairs), engine.format.chat
    llm = HypicLLM(engine=engine, system_prompt="Be brief.")
    llm.chat([ChatMessage(role="developer", content="Rules."), *MESSAGES])
    llm.complete("Hello")
    assert seen == [[("system", "Rules."), ("user", QUESTION)], [("system", "Be brief."), ("user", "Hello")]]


class Recorder(FakeEngine):
    def stream(self, prompt, sampling=None, policy=None, stop=None):
        self.asked = (sampling, policy)
        return super().stream(prompt, sampling, policy, stop)


def test_options_of_a_call_go_before_those_of_the_llm():
    engine = Recorder()
    llm = HypicLLM(engine=engine, max_new_tokens=9, temperature=0.5, seed=3, policy=Policy(seam_tokens=16))
    llm.complete("Hello", max_tokens=4, stop="x", temperature=None)
    sampling, policy = engine.asked
    assert (sampling.max_new_tokens, sampling.temperature, sampling.seed, sampling.stop) == (
        4,
        0.5,
        3,
        ("x",),
    )
    assert policy == Policy(seam_tokens=16)


LIMITS = {  # of the llm, of the call, question, limit
    "none given, who": (None, {}, "Who signed it?", 64),
    "none given, a summary": (None, {}, "Summarize it.", 512),
    "the llm's": (9, {}, "Who signed it?", 9),
    "the call's": (9, {"max_tokens": 7}, "Who signed it?", 7),
    "the call's alone": (None, {"max_new_tokens": 7}, "Summarize it.", 7),
}


@pytest.mark.parametrize("own, options, question, limit", LIMITS.values(), ids=LIMITS)
def test_over_documents_the_limit_suits_the_question_where_none_is_given(own, options, question, limit):
    engine = Recorder()
    synthesizer = HypicSynthesizer(HypicLLM(engine=engine, max_new_tokens=own))
    synthesizer.get_response(question, ["A text."], **options)
    assert engine.asked[0].max_new_tokens == limit
    engine.context_length = 400
    synthesizer.get_response(question, ["A text."], **options)
    assert engine.asked[0].max_new_tokens == min(limit, 100)


def test_async_calls_leave_the_event_loop_free():
    llm = HypicLLM(engine=FakeEngine(delay=0.03))

    async def ticks_during(awaitable):
        ticks, task = [], asyncio.create_task(awaitable)
        while not task.done():
            ticks.append(time.monotonic())
            await asyncio.sleep(0.005)
        await task
        return len(ticks)

    for call in (llm.acomplete(QUESTION), llm.achat(MESSAGES), drain(llm.astream_chat(MESSAGES))):
        assert asyncio.run(ticks_during(call)) > 8  # it takes 7 * 30 ms


def test_a_stream_that_is_left_early_cancels_its_request():
    engine = FakeEngine(delay=0.01)
    llm = HypicLLM(engine=engine)
    stream = llm.stream_chat(MESSAGES)
    next(stream)
    stream.close()
    assert engine.n_cancelled == 1


def test_an_async_stream_that_is_left_early_cancels_its_request():
    engine = FakeEngine(delay=0.01)
    llm = HypicLLM(engine=engine)

    async def leave():
        async for _ in await llm.astream_chat(MESSAGES):
            break
        for _ in range(100):
            await asyncio.sleep(0.01)
            if engine.n_cancelled:
                return

    asyncio.run(leave())
    assert engine.n_cancelled == 1


def test_an_async_stream_that_is_cancelled_cancels_its_request():
    engine = FakeEngine(delay=0.05)
    llm = HypicLLM(engine=engine)

    async def cancel():
        task = asyncio.create_task(drain(llm.astream_complete(QUESTION)))
        await asyncio.sleep(0.08)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.2)

    asyncio.run(cancel())
    assert engine.n_cancelled == 1


def test_an_error_in_a_streamed_generation_reaches_the_consumer():
    class Failing(FakeEngine):
        def _stream(self, *_):
            yield from ()
            raise RuntimeError("the model is on fire")

    with pytest.raises(RuntimeError, match="on fire"):
        asyncio.run(drain(HypicLLM(engine=Failing()).astream_complete(QUESTION)))


BAD_CALLS = {
    "an unknown option": (
        lambda llm: llm.complete("Hi", top_k=3),
        BadInput,
        "does not know top_k; a call takes",
    ),
    "a temperature below 0": (lambda llm: llm.complete("Hi", temperature=-1), BadInput, "temperature is -1"),
    "no text": (lambda llm: llm.complete("  "), BadInput, "empty"),
    "no messages": (lambda llm: llm.chat([]), BadInput, "empty"),
    "a picture": (
        lambda llm: llm.chat(
            [ChatMessage(role=MessageRole.USER, blocks=[TextBlock(text="See"), ImageBlock(url="http://x/y.png")])]
        ),
        BadInput,
        "ImageBlock, but fake/model reads text",
    ),
    "too long, at the call and not at the first token": (
        lambda llm: llm.stream_complete("word " * 5000),
        ContextTooLong,
        "do not fit",
    ),
}


@pytest.mark.parametrize("call, error, message", BAD_CALLS.values(), ids=BAD_CALLS)
def test_mistakes_are_told(llm, call, error, message):
    with pytest.raises(error, match=message):
        call(llm)


def test_bad_settings_are_told_when_the_llm_is_made(engine):
    with pytest.raises(BadInput, match="max_new_tokens is 0"):
        HypicLLM(engine=engine, max_new_tokens=0)
    with pytest.raises(BadInput, match="an engine or a cache, not both"):
        HypicLLM(engine=engine, cache=SegmentCache.open(None))
    with pytest.raises(BadInput, match="an engine or a device, dtype, not both"):
        HypicLLM(engine=engine, device="cpu", dtype="float32")
    with pytest.raises(BadInput, match="takes no devise"):
        HypicLLM(devise="cuda")
    with pytest.raises(BadInput, match="an engine or a codec, not both"):
        HypicLLM(engine=engine, codec="int8")


def test_documents_that_do_not_fit_are_dropped_from_the_end():
    llm = HypicLLM(engine=FakeEngine(context_length=200), max_new_tokens=40)
    documents = [("Title", f"text {i} " * 15) for i in range(6)]
    prompt, n_dropped = llm.documents_prompt(QUESTION, documents)
    rendered = [llm.engine.format.document(text, title) for title, text in documents]
    assert 0 < n_dropped < 6 and prompt.documents == tuple(rendered[: 6 - n_dropped])
    assert prompt.n_tokens <= 160 < prompt.n_tokens + len(rendered[6 - n_dropped])


TOO_LONG = {
    "a document": (QUESTION, [("T", "long " * 300)]),
    "a question": ("why " * 300, [("T", "x")]),
    "a question alone": ("why " * 300, []),
}


@pytest.mark.parametrize("question, documents", TOO_LONG.values(), ids=TOO_LONG)
def test_where_nothing_fits_it_is_told(question, documents):
    llm = HypicLLM(engine=FakeEngine(context_length=200), max_new_tokens=40)
    with pytest.raises(ContextTooLong, match=r"takes 200 tokens, 40 of them kept for the answer"):
        llm.documents_prompt(question, documents)


PREDICT = {
    "predict": lambda llm, **values: llm.predict(DEFAULT_TEXT_QA_PROMPT, **values),
    "stream": lambda llm, **values: "".join(llm.stream(DEFAULT_TEXT_QA_PROMPT, **values)),
    "apredict": lambda llm, **values: asyncio.run(llm.apredict(DEFAULT_TEXT_QA_PROMPT, **values)),
    "partly filled": lambda llm, **values: llm.predict(DEFAULT_TEXT_QA_PROMPT.partial_format(**values)),
}


@pytest.mark.parametrize("predict", PREDICT.values(), ids=PREDICT)
def test_context_in_a_template_is_answered_with_a_warning_once(llm, predict):
    with pytest.warns(UserWarning, match="its segments are lost.*HypicSynthesizer"):
        answer = predict(llm, context_str="Ships are here.", query_str=QUESTION)
    assert "Ships are here." in answer and QUESTION in answer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(llm, context_str="Ships are here.", query_str=QUESTION)


def test_a_template_without_context_does_not_warn(llm):
    from llama_index.core.prompts import PromptTemplate

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "Ahoy" in llm.predict(PromptTemplate("{greeting}"), greeting="Ahoy")
