"""What the engine generated, as LlamaIndex's responses."""

import contextlib
from collections.abc import AsyncGenerator, Generator
from dataclasses import asdict
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    MessageRole,
)

from hypic_rag.engine import Generation


def report_of(generation: Generation) -> dict[str, Any]:
    """Return the report as plain values, fit for JSON."""
    report = generation.report
    return {
        **asdict(report),
        "cached_tokens": report.cached_tokens,
        "n_segments": len(report.segments),
        "n_from_cache": report.n_from_cache,
    }


def completion_of(text: str, delta: str | None, generation: Generation | None) -> CompletionResponse:
    if generation is None:
        return CompletionResponse(text=text, delta=delta)
    report, n_answer = generation.report, len(generation.token_ids)
    return CompletionResponse(
        text=generation.text,
        delta=delta,
        raw={"report": report_of(generation), "finish_reason": generation.finish_reason},
        additional_kwargs={
            "prompt_tokens": report.prompt_tokens,
            "completion_tokens": n_answer,
            "total_tokens": report.prompt_tokens + n_answer,
            "cached_tokens": report.cached_tokens,
        },
    )


def chat_of(response: CompletionResponse) -> ChatResponse:
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, content=response.text),
        delta=response.delta,
        raw=response.raw,
        additional_kwargs=response.additional_kwargs,
    )


def stream_of_chat(responses: Generator[CompletionResponse, None, None]) -> ChatResponseGen:
    with contextlib.closing(responses):
        for response in responses:
            yield chat_of(response)


async def astream_of_chat(responses: AsyncGenerator[CompletionResponse, None]) -> ChatResponseAsyncGen:
    async with contextlib.aclosing(responses):
        async for response in responses:
            yield chat_of(response)
