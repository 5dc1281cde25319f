"""The four ways to ask a server, alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ragcache_integrations.engine import (
    Generation,
    GenerationChunk,
    Prompt,
    PromptDocument,
    SamplingOptions,
    Usage,
)
from ragcache_integrations.llms.openai.server import OpenAIServer
from tests.llms.doubles import StubServer

CHAT = Prompt.rag("Who purrs?", [PromptDocument("Cats purr.", "1")], system="Be brief.")
RAW = Prompt.raw(["Who ", "purrs? ", PromptDocument("Cats purr.", "1")])
SAID = Generation("Cats purr.", (), "stop", Usage(11, 3, 8))

Ask = Callable[[OpenAIServer, Prompt, SamplingOptions | None, float | None], Generation]


def connect(server: StubServer | str, **arguments: Any) -> OpenAIServer:
    url = server if isinstance(server, str) else server.base_url
    return OpenAIServer(url, "some-model", **{"max_retries": 0, **arguments})


def collect(chunks: list[GenerationChunk]) -> Generation:
    last = chunks[-1]
    assert all(chunk.finish_reason is None and chunk.usage is None for chunk in chunks[:-1])
    assert last.finish_reason is not None
    assert last.usage is not None
    return Generation(
        "".join(chunk.text for chunk in chunks),
        (),
        last.finish_reason,
        last.usage,
        tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
    )


def generate(
    server: OpenAIServer, prompt: Prompt, options: SamplingOptions | None, timeout: float | None
) -> Generation:
    return server.generate(prompt, options, timeout=timeout)


def stream(
    server: OpenAIServer, prompt: Prompt, options: SamplingOptions | None, timeout: float | None
) -> Generation:
    return collect(list(server.stream(prompt, options, timeout=timeout)))


def agenerate(
    server: OpenAIServer, prompt: Prompt, options: SamplingOptions | None, timeout: float | None
) -> Generation:
    async def ask() -> Generation:
        return await server.agenerate(prompt, options, timeout=timeout)

    return asyncio.run(ask())


def astream(
    server: OpenAIServer, prompt: Prompt, options: SamplingOptions | None, timeout: float | None
) -> Generation:
    async def ask() -> Generation:
        chunks = await server.astream(prompt, options, timeout=timeout)
        return collect([chunk async for chunk in chunks])

    return asyncio.run(ask())


every_way = pytest.mark.parametrize("ask", [generate, agenerate, stream, astream])
