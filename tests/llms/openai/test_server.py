"""The client for OpenAI-compatible servers, against real HTTP."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from contextvars import ContextVar
from typing import Any

import pytest
from blockbuster import BlockBuster

from ragcache_integrations.engine import (
    Generation,
    Message,
    Prompt,
    SamplingOptions,
)
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import (
    EngineClosedError,
    ServerResponseError,
)
from ragcache_integrations.llms.openai.server import DEFAULT_CONTEXT_WINDOW, OpenAIServer
from tests.llms.doubles import USAGE, Exchange, StubServer, answer

from .calls import (
    CHAT,
    RAW,
    SAID,
    Ask,
    agenerate,
    astream,
    collect,
    connect,
    every_way,
    generate,
    stream,
)


@every_way
@pytest.mark.parametrize("prompt", [CHAT, RAW])
def test_every_way_gives_the_same_answer(stub: StubServer, ask: Ask, prompt: Prompt) -> None:
    with closing(connect(stub)) as server:
        assert ask(server, prompt, None, None) == SAID


@every_way
@pytest.mark.parametrize("prompt", [CHAT, RAW])
@pytest.mark.parametrize("alternatives", [0, 1, 2])
def test_logprobs(stub: StubServer, ask: Ask, prompt: Prompt, alternatives: int) -> None:
    with closing(connect(stub)) as server:
        said = ask(server, prompt, SamplingOptions(logprobs=alternatives), None)
    assert [(token.token, token.logprob) for token in said.logprobs] == [
        ("Cats ", -0.5),
        ("purr", -0.5),
        (".", -0.5),
    ]
    for token in said.logprobs:
        assert [top.token for top in token.top] == [token.token, "other"][:alternatives]
        assert token.token_id == -1


def test_a_conversation_in_the_protocols_words(stub: StubServer) -> None:
    options = SamplingOptions(
        max_tokens=7, temperature=0.5, top_p=0.9, top_k=40, stop=("\n",), seed=3, logprobs=2
    )
    with closing(connect(stub, api_key="secret")) as server:
        server.generate(CHAT, options, namespace="tenant")
    (seen,) = stub.seen
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["Authorization"] == "Bearer secret"
    assert seen.body == {
        "model": "some-model",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Cats purr.\n\nWho purrs?"},
        ],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "stop": ["\n"],
        "seed": 3,
        "logprobs": True,
        "top_logprobs": 2,
        "cache_salt": "tenant",
    }


def test_raw_text_in_the_protocols_words(stub: StubServer) -> None:
    schema = {"type": "object", "properties": {}}
    with closing(connect(stub)) as server:
        server.generate(RAW, SamplingOptions(logprobs=1))
        server.generate(RAW, SamplingOptions(json_schema=schema))
        server.generate(RAW, SamplingOptions(choice=("yes", "no"), ignore_eos=True))
        list(server.stream(RAW))
    plain = {
        "model": "some-model",
        "prompt": "Who purrs? Cats purr.",
        "max_tokens": 256,
        "temperature": 0.0,
    }
    named = {"name": "answer", "schema": schema, "strict": False}  # an object of any properties
    assert [exchange.path for exchange in stub.seen] == ["/v1/completions"] * 4
    assert [exchange.body for exchange in stub.seen] == [
        {**plain, "logprobs": 1},
        {**plain, "response_format": {"type": "json_schema", "json_schema": named}},
        {**plain, "structured_outputs": {"choice": ["yes", "no"]}, "ignore_eos": True},
        {**plain, "stream": True, "stream_options": {"include_usage": True}},
    ]


async def test_without_a_limit_none_is_sent_or_null_where_the_default_is_short(
    stub: StubServer,
) -> None:
    unlimited = SamplingOptions(max_tokens=None)
    with closing(connect(stub)) as server:
        server.generate(CHAT, unlimited)
        await server.agenerate(CHAT, unlimited)
        list(server.stream(CHAT, unlimited))
        server.generate(RAW, unlimited)
        list(server.stream(RAW, unlimited))
    assert [seen.body.get("max_tokens", "left out") for seen in stub.seen] == [
        *["left out"] * 3,
        *[None] * 2,
    ]


def test_no_key_is_taken_from_the_environment(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-for-this-server")
    with closing(connect(stub)) as server:
        server.generate(CHAT)
    assert "not-for-this-server" not in str(stub.seen[0].headers)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("abort", "abort"),
        ("tool_calls", "stop"),
    ],
)
def test_how_an_answer_ended(stub: StubServer, said: str, kept: str) -> None:
    stub.reply = lambda e: e.send({"choices": [e.choice("x", finish_reason=said)], "usage": USAGE})
    with closing(connect(stub)) as server:
        assert server.generate(CHAT).finish_reason == kept


# Event loops


def test_one_client_in_many_loops(stub: StubServer) -> None:
    server = connect(stub)
    for _ in range(3):
        assert agenerate(server, CHAT, None, None) == SAID
    threads_said: list[Generation] = []
    threads = [
        threading.Thread(target=lambda: threads_said.append(astream(server, CHAT, None, None)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert threads_said == [SAID] * 4
    server.close()


def test_connections_are_closed_with_their_loop(stub: StubServer) -> None:
    """Left open, they would be reported as a ResourceWarning, which is an error here."""
    with closing(connect(stub)) as server:
        agenerate(server, CHAT, None, None)
        ((client, _),) = server._clients._async.values()
        assert client.is_closed()
        gc.collect()


@pytest.fixture
def swept() -> Iterator[None]:
    """Collect what a test leaves behind while its warnings are still its own."""
    yield
    for _ in range(2):  # finalizers bring objects back for another round
        gc.collect()


def careless_answer(server: OpenAIServer) -> None:
    careless = asyncio.new_event_loop()
    assert careless.run_until_complete(server.agenerate(CHAT)) == SAID
    careless.close()


def careless_stream(server: OpenAIServer) -> None:
    careless = asyncio.new_event_loop()
    chunks = careless.run_until_complete(server.astream(CHAT))
    assert careless.run_until_complete(anext(chunks)).text == "Cats "
    careless.close()


# What Python says about sockets and generators left behind by the carelessness that is tested.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("swept")
@pytest.mark.parametrize("careless", [careless_answer, careless_stream])
def test_a_loop_closed_under_us(stub: StubServer, careless: Callable[[OpenAIServer], None]) -> None:
    with closing(connect(stub)) as server:
        careless(server)
        for ask in (agenerate, astream, generate, stream):
            assert ask(server, CHAT, None, None) == SAID


async def test_nothing_blocks_the_loop(stub: StubServer, no_blocking: BlockBuster) -> None:
    server = await asyncio.to_thread(connect, stub)  # imports, as LLM classes let a thread do
    assert await server.agenerate(CHAT) == SAID
    assert collect([chunk async for chunk in await server.astream(CHAT)]) == SAID
    assert await server.agenerate_batch([CHAT, RAW]) == [SAID, SAID]
    stub.reply = lambda exchange: answer(exchange, "Cats", usage=None)
    assert (await server.agenerate(CHAT)).usage.cached_tokens == 0
    await server.aclose()
    with pytest.raises(EngineClosedError):
        await server.agenerate(CHAT)


@pytest.mark.slow
async def test_many_tasks_and_threads_at_once(stub: StubServer) -> None:
    """Every answer belongs to its question, however they interleave."""

    def reply(exchange: Exchange) -> None:
        asked = exchange.body["messages"][0]["content"]
        answer(exchange, asked, " indeed")

    stub.reply = reply
    server = connect(stub)
    questions = [Prompt(messages=(Message("user", f"question {n}"),)) for n in range(100)]

    async def streamed(prompt: Prompt) -> Generation:
        return collect([chunk async for chunk in await server.astream(prompt)])

    in_threads = asyncio.ensure_future(asyncio.to_thread(server.generate_batch, questions))
    rest = await asyncio.gather(
        *(server.agenerate(prompt) for prompt in questions),
        *(streamed(prompt) for prompt in questions),
    )
    expected = [f"question {n} indeed" for n in range(100)]
    assert [said.text for said in await in_threads] == expected
    assert [said.text for said in rest] == expected * 2
    await server.aclose()


# Aborting


def endless(stub: StubServer) -> Callable[[Exchange], None]:
    def reply(exchange: Exchange) -> None:
        exchange.start_events()
        while not stub.released.wait(0.005):
            exchange.send_event({"choices": [exchange.choice("miaow ")]})

    return reply


def test_closing_a_stream_aborts_the_request(stub: StubServer) -> None:
    stub.reply = endless(stub)
    with closing(connect(stub)) as server:
        chunks = server.stream(CHAT)
        assert next(chunks).text == "miaow "
        chunks.close()
        assert stub.disconnected.wait(10)


async def test_closing_an_async_stream_aborts_the_request(stub: StubServer) -> None:
    stub.reply = endless(stub)
    server = connect(stub)
    async with aclosing(await server.astream(CHAT)) as chunks:
        assert (await anext(chunks)).text == "miaow "
    assert await asyncio.to_thread(stub.disconnected.wait, 10)
    await server.aclose()


async def test_cancelling_aborts_the_request(stub: StubServer) -> None:
    stub.reply = endless(stub)
    server = connect(stub)

    async def read() -> None:
        async with aclosing(await server.astream(CHAT)) as chunks:
            async for _ in chunks:
                pass

    reading = asyncio.create_task(read())
    assert await asyncio.to_thread(stub.asked.wait, 10)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await asyncio.to_thread(stub.disconnected.wait, 10)
    await server.aclose()


async def test_a_batch_fails_as_one(stub: StubServer) -> None:
    def reply(exchange: Exchange) -> None:
        if exchange.path.endswith("/chat/completions"):
            exchange.send({"error": {"message": "not today"}}, 400)
        else:
            exchange.hang()

    stub.reply = reply
    server = connect(stub)
    with pytest.raises(ServerResponseError):
        await server.agenerate_batch([RAW, CHAT, RAW])
    stub.released.set()
    await server.aclose()


def test_batches_keep_their_order(stub: StubServer) -> None:
    stub.reply = lambda exchange: answer(exchange, exchange.body["prompt"])
    with closing(connect(stub)) as server:
        said = server.generate_batch([Prompt.raw(f"{n}") for n in range(40)])
        assert [generation.text for generation in said] == [f"{n}" for n in range(40)]
        assert server.generate_batch([]) == []


def test_a_batch_is_answered_in_the_context_of_its_call(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace: ContextVar[str] = ContextVar("trace", default="none")
    seen: list[str] = []
    usual = OpenAIServer.generate

    def watched(self: OpenAIServer, *arguments: Any, **options: Any) -> Generation:
        seen.append(trace.get())
        return usual(self, *arguments, **options)

    monkeypatch.setattr(OpenAIServer, "generate", watched)
    token = trace.set("the caller's")
    with closing(connect(stub)) as server:
        server.generate_batch([RAW, RAW, RAW])
    trace.reset(token)
    assert seen == ["the caller's"] * 3


# Tokens and context window


def test_usage_where_the_server_tells_none(
    stub: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    stub.reply = lambda exchange: answer(exchange, "Cats ", "purr", ".", usage=None)
    with closing(connect(stub, tokenizer=str(default_model_path()))) as server:
        for ask in (generate, stream, agenerate, astream):
            usage = ask(server, RAW, None, None).usage
            assert usage.prompt_tokens == server.count_tokens("Who purrs? Cats purr.")
            assert usage.completion_tokens == server.count_tokens("Cats purr.")
            assert usage.cached_tokens == 0
    told = [record for record in caplog.records if "reports no usage" in record.getMessage()]
    assert len(told) == 1


def test_context_window_from_the_server(stub: StubServer) -> None:
    models = [{"id": "another"}, {"id": "some-model", "max_model_len": 12345}]
    stub.reply = lambda exchange: exchange.send({"object": "list", "data": models})
    with closing(connect(stub)) as server:
        assert server.max_model_len == 12345
        assert server.max_model_len == 12345
    assert [seen.path for seen in stub.seen] == ["/v1/models"]


def test_context_window_as_given(refused_url: str) -> None:
    with closing(connect(refused_url, max_model_len=77)) as server:
        assert server.max_model_len == 77


@pytest.mark.parametrize("content", ['{"data": []}', "{}", "<html>", '{"data": [{"id": 3}]}'])
def test_context_window_unknown(
    stub: StubServer, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    stub.reply = lambda exchange: exchange.send(content)
    with closing(connect(stub)) as server:
        assert server.max_model_len == DEFAULT_CONTEXT_WINDOW
        assert server.max_model_len == DEFAULT_CONTEXT_WINDOW
    assert caplog.text.count("max_model_len=") == 1
