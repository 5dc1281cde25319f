"""Our client against vLLM's own server: the protocol as it is really spoken."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from contextlib import closing

import pytest

from ragcache_integrations.engine import Message, Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.errors import (
    ConfigurationError,
    PromptTooLongError,
    ServerResponseError,
)
from ragcache_integrations.llms.openai.server import OpenAIServer

pytestmark = pytest.mark.engine

CHAT = Prompt(messages=(Message("system", "Be brief."), Message("user", "What do cats do?")))
RAW = Prompt.raw("Cats purr when they are")


@pytest.fixture
def server(vllm_server: str) -> Iterator[OpenAIServer]:
    with closing(OpenAIServer(vllm_server, "tiny", max_retries=0)) as client:
        yield client


@pytest.mark.parametrize("prompt", [CHAT, RAW])
def test_server_and_engine_say_the_same(
    server: OpenAIServer, engine: RAGCacheEngine, prompt: Prompt
) -> None:
    options = SamplingOptions(max_tokens=12, logprobs=2)
    ours = engine.generate(prompt, options)
    theirs = server.generate(prompt, options)
    assert theirs.text == ours.text
    assert theirs.finish_reason == ours.finish_reason == "length"
    assert theirs.usage.prompt_tokens == ours.usage.prompt_tokens
    assert theirs.usage.completion_tokens == ours.usage.completion_tokens == 12
    assert len(theirs.logprobs) == len(ours.logprobs) == 12
    for their, our in zip(theirs.logprobs, ours.logprobs, strict=True):
        assert math.isclose(their.logprob, our.logprob, abs_tol=1e-3)
        assert len(their.top) == len(our.top) == 2


@pytest.mark.parametrize("prompt", [CHAT, RAW])
@pytest.mark.parametrize("logprobs", [None, 0, 3])
async def test_every_way_gives_the_same_answer(
    server: OpenAIServer, prompt: Prompt, logprobs: int | None
) -> None:
    options = SamplingOptions(max_tokens=8, logprobs=logprobs)
    whole = await server.agenerate(prompt, options)
    chunks = [chunk async for chunk in await server.astream(prompt, options)]
    plain = await asyncio.to_thread(lambda: list(server.stream(prompt, options)))
    batch = await server.agenerate_batch([prompt, prompt], options)
    assert await asyncio.to_thread(server.generate, prompt, options) is not None
    assert len(chunks) > 2
    for streamed in (chunks, plain):
        assert "".join(chunk.text for chunk in streamed) == whole.text
        last = streamed[-1]
        assert last.finish_reason == whole.finish_reason
        assert last.usage is not None
        assert last.usage.total_tokens == whole.usage.total_tokens
        tokens = [token.token for chunk in streamed for token in chunk.logprobs]
        assert tokens == [token.token for token in whole.logprobs]
        assert len(tokens) == (0 if logprobs is None else 8)
    assert [generation.text for generation in batch] == [whole.text] * 2
    await server.aclose()


def test_cached_tokens(server: OpenAIServer) -> None:
    prompt = Prompt.rag("Why?", ["Cats purr when they are content. " * 60])
    options = SamplingOptions(max_tokens=1)
    cold = server.generate(prompt, options, namespace="cold").usage
    warm = server.generate(prompt, options, namespace="cold").usage
    assert cold.cached_tokens == 0
    assert 0 < warm.cached_tokens < warm.prompt_tokens
    *_, last = server.stream(prompt, options, namespace="cold")
    assert last.usage == warm
    assert server.generate(prompt, options, namespace="another").usage.cached_tokens == 0


def test_context_window(server: OpenAIServer) -> None:
    assert server.max_model_len == 2048
    for prompt in (Prompt.raw("word " * 3000), Prompt(messages=(Message("user", "word " * 3000),))):
        with pytest.raises(PromptTooLongError) as caught:
            server.generate(prompt)
        assert caught.value.max_prompt_tokens == 2048
        with pytest.raises(PromptTooLongError):
            list(server.stream(prompt))


def test_sampling_and_stop(server: OpenAIServer) -> None:
    drawn = SamplingOptions(max_tokens=12, temperature=1.0, top_p=0.9, top_k=50, seed=7)
    whole = server.generate(RAW, drawn).text
    assert server.generate(RAW, drawn).text == whole
    stop = whole[4:7]
    cut = server.generate(
        RAW,
        SamplingOptions(max_tokens=12, temperature=1.0, top_p=0.9, top_k=50, seed=7, stop=(stop,)),
    )
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"


def test_choice_and_schema(server: OpenAIServer) -> None:
    for prompt in (CHAT, RAW):
        said = server.generate(prompt, SamplingOptions(choice=("yes", "no")))
        assert said.text in {"yes", "no"}
        schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
        said = server.generate(prompt, SamplingOptions(json_schema=schema))
        assert json.loads(said.text)["n"] in {1, 2}


def test_refusals(server: OpenAIServer, vllm_server: str) -> None:
    with pytest.raises(ServerResponseError) as caught:
        OpenAIServer(vllm_server, "another", max_retries=0).generate(RAW)
    assert caught.value.status_code == 404
    with pytest.raises(ConfigurationError):
        server.generate(Prompt.raw("\udc80"))
    with pytest.raises(ServerResponseError) as caught:
        server.generate(RAW, SamplingOptions(json_schema={"type": "no such type"}))
    assert caught.value.status_code == 400
