"""HypicLLM: the segment engine as a LlamaIndex LLM."""

import contextlib
import os
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from threading import Event
from typing import Any, cast

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
    TextBlock,
)
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import BasePromptTemplate

from hypic_rag.cache import SegmentCache
from hypic_rag.collections.opening import named
from hypic_rag.config import Settings
from hypic_rag.engine import Policy, Sampling, SegmentEngine, StreamEvent
from hypic_rag.errors import BadInput
from hypic_rag.integrations.llama_index.background import in_background, result_of
from hypic_rag.integrations.llama_index.recipe import options_of, recipe
from hypic_rag.integrations.llama_index.responses import astream_of_chat, chat_of, completion_of, stream_of_chat
from hypic_rag.prompt import Prompt
from hypic_rag.rag.answer_length import USUAL, answer_tokens
from hypic_rag.rag.prompting import prompt_over
from hypic_rag.retrieval.manifest import Manifest
from hypic_rag.retrieval.store import Store

# What prompt templates call retrieved text. Where one of these is filled in, segments have become plain text.
CONTEXT_VARIABLES = frozenset(("context_str", "context_msg", "context_messages"))
SAMPLING = ("max_new_tokens", "temperature", "top_p", "seed", "stop")


class HypicLLM(LLM):
    """A model whose documents are cached segments; chat and complete, sync, async and streamed.

    Give it to ``HypicQueryEngine`` or ``HypicSynthesizer``, which hand over the retrieved nodes as
    segments. Used alone, as in ``index.as_query_engine(llm=HypicLLM())``, it answers, but from one text
    into which LlamaIndex has packed the nodes: nothing of it is in the cache. It then warns, once. (It can
    tell because a prompt template's ``context_str`` is being filled in; a text that was put together
    elsewhere looks like any other.)

    Calls take ``max_new_tokens`` (also as ``max_tokens``), ``temperature``, ``top_p``, ``seed`` and
    ``stop`` for that call; any other keyword is refused. ``raw`` of a response has ``report`` (what came
    from the cache, times) and ``finish_reason``, ``additional_kwargs`` the token counts. Async methods run
    the engine in a thread of their own; a call that is cancelled and a stream that is closed early stop their request,
    also while it waits or its documents are prefilled.
    """

    model: str
    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()

    _engine: SegmentEngine = PrivateAttr()
    _made_from: dict[str, Any] | None = PrivateAttr()
    _policy: Policy = PrivateAttr()
    _has_warned: bool = PrivateAttr(default=False)

    def __init__(
        self,
        model: str | os.PathLike[str] = "default",
        *,
        engine: SegmentEngine | None = None,
        cache: SegmentCache | None = None,
        policy: Policy | None = None,
        codec: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        device_memory: int | None = None,
        namespace: str = "",
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Sequence[str] = (),
        system_prompt: str | None = None,
        **kwargs: Any,
    ):
        """model: "default", a local folder or a hub name; left out of account where ``engine`` is given.

        cache: of the engine that is made, e.g. ``SegmentCache.open(folder)``; without, segments stay in memory.
        policy: without, the engine's, which is the model's calibrated one where it has one. codec: how the engine
        that is made stores segments ("none", "int8", "int8-kv8"): of a store, that with which it was ingested, or its
        segments are not found. device, dtype: a GPU in bfloat16 where there is one, else a CPU in float32; of a store
        too the dtype has to be that of its ingestion. device_memory: bytes of a GPU for segments and running requests.
        namespace: whose segments are found and made, a collection's, say. max_new_tokens: without, over documents what
        suits the question (see answer_length.py), else 256.
        kwargs: LlamaIndex's own (callback_manager, output_parser, ...). Raises BadInput for others.
        """
        if unknown := set(kwargs) - set(type(self).model_fields):
            raise BadInput(f"HypicLLM takes no {', '.join(sorted(unknown))}")
        options: dict[str, Any] = {
            "cache": cache,
            "codec": codec,
            "device": device,
            "dtype": dtype,
            "device_memory": device_memory,
        }
        given = {name: value for name, value in options.items() if value is not None}
        made_from = None
        if engine is None:
            engine = SegmentEngine.from_pretrained(os.fspath(model), policy=policy, **given)
            made_from = recipe(os.fspath(model), policy, given | ({"namespace": namespace} if namespace else {}))
        elif given:
            raise BadInput(f"give HypicLLM an engine or a {', '.join(given)}, not both: an engine has its own")
        if namespace:
            engine = engine.within(namespace)
        fields: dict[str, Any] = {
            "model": engine.model_name,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
            "stop": tuple(stop),
            "system_prompt": system_prompt,
        }
        super().__init__(**fields, **kwargs)
        self._engine = engine
        self._made_from = made_from
        self._policy = policy or engine.policy
        self._sampling({})  # refuses what cannot be used now, not at the first question

    @classmethod
    def for_store(
        cls,
        folder: str | os.PathLike[str],
        *,
        model: str | os.PathLike[str] | None = None,
        host_memory: int | None = None,
        disk_budget: int | None = None,
        **kwargs: Any,
    ) -> "HypicLLM":
        """Load the model that a store names (or ``model``), reading and writing the segments of that store.

        host_memory, disk_budget: bytes, None for no limit. kwargs: as in ``HypicLLM(...)``.
        Raises BadInput where there is no store, StoreMismatch where it was made with another model.
        """
        folder = Path(folder).expanduser()
        return cls._of_documents(folder, Store.segments_folder(folder), model, host_memory, disk_budget, **kwargs)

    @classmethod
    def for_collection(
        cls,
        name: str = "default",
        *,
        tenant: str = "local",
        model: str | os.PathLike[str] | None = None,
        host_memory: int | None = None,
        disk_budget: int | None = None,
        **kwargs: Any,
    ) -> "HypicLLM":
        """Make the model that a collection under HYPIC_HOME names (or ``model``), with its segments.

        host_memory, disk_budget: bytes, None for no limit. kwargs: as in ``HypicLLM(...)``.
        Raises BadInput where there is no such collection, StoreMismatch where it was made with another model.
        """
        with named(Settings(collection=name, tenant=tenant)) as found:
            namespace, segments = found.namespace, Store.segments_folder(found.server)
            return cls._of_documents(
                found.folder, segments, model, host_memory, disk_budget, namespace=namespace, **kwargs
            )

    @classmethod
    def _of_documents(
        cls,
        folder: Path,
        segments: Path,
        model: str | os.PathLike[str] | None,
        host_memory: int | None,
        disk_budget: int | None,
        **kwargs: Any,
    ) -> "HypicLLM":
        manifest = Manifest.read(folder)
        if manifest is None:
            raise BadInput(f"there is no store in {folder}: make one with hypic-rag ingest PATH…")
        cache = SegmentCache.open(segments, host_memory, disk_budget)
        llm = cls(model if model is not None else manifest.model, cache=cache, **kwargs)
        engine = llm.engine
        manifest.check_engine(engine, folder)
        return llm

    @classmethod
    def class_name(cls) -> str:
        return "HypicLLM"

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Write the settings down. ``made_from``: what ``from_dict`` makes it of again;
        None where it was given an engine."""
        return {**super().to_dict(**kwargs), "made_from": self._made_from}

    @classmethod
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> "HypicLLM":
        """Load the model anew, with the same settings; kwargs go before them. Raises BadInput where it was given an
        engine, unless ``engine`` is given here too."""
        fields = {name: value for name, value in data.items() if name not in ("class_name", "made_from", "model")}
        if "engine" not in kwargs:
            if data.get("made_from") is None:
                raise BadInput(
                    "a HypicLLM that was given an engine holds a model that cannot be written down or sent to another "
                    "process: make it with HypicLLM(model) or HypicLLM.for_store(folder), or give from_dict an engine"
                )
            fields |= options_of(data["made_from"])
        return cls(**{**fields, **kwargs})

    def __reduce__(self) -> tuple[Any, ...]:
        data = self.to_dict()
        if self._made_from is None:
            type(self).from_dict(data)  # refuses, here and not where it is read
        others = self.model_fields_set - data.keys() - {"callback_manager"}  # functions and the like
        return _again, (type(self), data, {name: getattr(self, name) for name in sorted(others)})

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> "HypicLLM":
        """Copy the settings, over the same engine."""
        return super().__deepcopy__({**(memo or {}), id(self._engine): self._engine})

    @property
    def engine(self) -> SegmentEngine:
        return self._engine

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(
            context_window=self._engine.context_length,
            num_output=self.max_new_tokens or USUAL,
            is_chat_model=True,
            model_name=self.model,
        )

    def answer_tokens(self, question: str) -> int:
        """Return how many tokens an answer over documents may have."""
        return self.max_new_tokens or min(answer_tokens(question), self._engine.context_length // 4)

    def documents_prompt(
        self, question: str, documents: Sequence[tuple[str, str]], system: str | None = None
    ) -> tuple[Prompt, int]:
        """Build the prompt of a question over (title, text) documents, and count how many were dropped.

        Documents that do not fit the context beside the answer are dropped whole, the last first. Raises
        ContextTooLong where not even the first fits, BadInput for an empty question.
        """
        leading = system if system is not None else self.system_prompt
        return prompt_over(self._engine, question, documents, self.answer_tokens(question), leading)

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], prompt: Prompt | None = None, **kwargs: Any) -> ChatResponse:
        """Answer a conversation. prompt: stands in for the rendered messages where documents are
        segments (``documents_prompt``)."""
        return chat_of(self._generate(prompt or self._chat_prompt(messages), kwargs))

    @llm_chat_callback()
    def stream_chat(
        self, messages: Sequence[ChatMessage], prompt: Prompt | None = None, **kwargs: Any
    ) -> ChatResponseGen:
        return stream_of_chat(self._stream(prompt or self._chat_prompt(messages), kwargs))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], prompt: Prompt | None = None, **kwargs: Any) -> ChatResponse:
        built = prompt or self._chat_prompt(messages)
        return chat_of(await result_of(lambda stop: self._generate(built, kwargs, stop)))

    @llm_chat_callback()
    async def astream_chat(
        self, messages: Sequence[ChatMessage], prompt: Prompt | None = None, **kwargs: Any
    ) -> ChatResponseAsyncGen:
        prompt, stop = prompt or self._chat_prompt(messages), Event()
        return astream_of_chat(in_background(self._stream(prompt, kwargs, stop), stop))

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer a prompt, which becomes one user message, in the model's chat format."""
        return self._generate(self._completion_prompt(prompt, formatted), kwargs)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        return self._stream(self._completion_prompt(prompt, formatted), kwargs)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        built = self._completion_prompt(prompt, formatted)
        return await result_of(lambda stop: self._generate(built, kwargs, stop))

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        built, stop = self._completion_prompt(prompt, formatted), Event()
        return in_background(self._stream(built, kwargs, stop), stop)

    def _get_messages(self, prompt: BasePromptTemplate, **prompt_args: Any) -> list[ChatMessage]:
        """Warn of retrieved text in a template: every way from a prompt template to this model leads through here."""
        if not self._has_warned and CONTEXT_VARIABLES & {*prompt_args, *prompt.kwargs}:
            self._has_warned = True
            warnings.warn(
                "HypicLLM was given retrieved text inside a prompt template, so its segments are lost and "
                "every token is computed. Give the query engine "
                "response_synthesizer=HypicSynthesizer(llm) as well, or use "
                "HypicQueryEngine.from_index(index, llm=llm).",
                stacklevel=2,
            )
        return super()._get_messages(prompt, **prompt_args)

    def _generate(self, prompt: Prompt, overrides: dict[str, Any], stop: Event | None = None) -> CompletionResponse:
        generation = self._engine.generate(prompt, self._sampling(overrides), self._policy, stop)
        return completion_of(generation.text, None, generation)

    def _stream(
        self, prompt: Prompt, overrides: dict[str, Any], stop: Event | None = None
    ) -> Generator[CompletionResponse, None, None]:
        events = self._engine.stream(prompt, self._sampling(overrides), self._policy, stop)  # errors come at the call

        def responses() -> Generator[CompletionResponse, None, None]:
            text = ""
            with contextlib.closing(
                cast(Generator[StreamEvent, None, None], events)
            ):  # ends the request of who leaves early
                for event in events:
                    text += event.text
                    yield completion_of(text, event.text, event.generation)

        return responses()

    def _sampling(self, overrides: dict[str, Any]) -> Sampling:
        given = dict(overrides)
        if "max_tokens" in given:
            given["max_new_tokens"] = given.pop("max_tokens")
        unknown = sorted(set(given) - set(SAMPLING))
        if unknown:
            raise BadInput(f"HypicLLM does not know {', '.join(unknown)}; a call takes {', '.join(SAMPLING)}")
        values = {name: getattr(self, name) for name in SAMPLING} | {
            name: value for name, value in given.items() if value is not None
        }
        if values["max_new_tokens"] is None:
            values["max_new_tokens"] = USUAL
        values["stop"] = (values["stop"],) if isinstance(values["stop"], str) else tuple(values["stop"])
        return Sampling(**values)

    def _chat_prompt(self, messages: Sequence[ChatMessage]) -> Prompt:
        pairs = []
        for message in messages:
            other = next((block for block in message.blocks if not isinstance(block, TextBlock)), None)
            if other is not None:
                raise BadInput(f"a message has a {type(other).__name__}, but {self.model} reads text only")
            role = MessageRole.SYSTEM if message.role == MessageRole.DEVELOPER else message.role
            pairs.append((role.value, message.content or ""))
        return self._engine.format.chat(pairs)

    def _completion_prompt(self, prompt: str, formatted: bool) -> Prompt:
        text = prompt if formatted or self.completion_to_prompt is None else self.completion_to_prompt(prompt)
        messages = [ChatMessage(role=MessageRole.USER, content=text)]
        return self._chat_prompt(messages if formatted else self._extend_messages(messages))


def _again(kind: type[HypicLLM], data: dict[str, Any], others: dict[str, Any]) -> HypicLLM:
    return kind.from_dict(data, **others)
