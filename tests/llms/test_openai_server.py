"""The client for OpenAI-compatible servers, against real HTTP."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from typing import Any

import pytest
from blockbuster import BlockBuster

from ragcache_integrations.engine import (
    Generation,
    GenerationChunk,
    Message,
    Prompt,
    PromptDocument,
    SamplingOptions,
    Usage,
)
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineClosedError,
    MissingExtraError,
    PromptTooLongError,
    ServerResponseError,
    ServerTimeoutError,
    ServerUnreachableError,
)
from ragcache_integrations.llms.openai_server import DEFAULT_CONTEXT_WINDOW, OpenAIServer

from .doubles import USAGE, Exchange, StubServer, answer

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
    named = {"name": "answer", "schema": schema, "strict": True}
    assert [exchange.path for exchange in stub.seen] == ["/v1/completions"] * 4
    assert [exchange.body for exchange in stub.seen] == [
        {**plain, "logprobs": 1},
        {**plain, "response_format": {"type": "json_schema", "json_schema": named}},
        {**plain, "structured_outputs": {"choice": ["yes", "no"]}, "ignore_eos": True},
        {**plain, "stream": True, "stream_options": {"include_usage": True}},
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
        ("content_filter", "abort"),
        ("abort", "abort"),
        ("tool_calls", "stop"),
    ],
)
def test_how_an_answer_ended(stub: StubServer, said: str, kept: str) -> None:
    stub.reply = lambda e: e.send({"choices": [e.choice("x", finish_reason=said)], "usage": USAGE})
    with closing(connect(stub)) as server:
        assert server.generate(CHAT).finish_reason == kept


# What goes wrong


@every_way
def test_a_refused_connection(refused_url: str, ask: Ask) -> None:
    with (
        closing(connect(refused_url)) as server,
        pytest.raises(ServerUnreachableError, match=refused_url) as caught,
    ):
        ask(server, CHAT, None, None)
    assert isinstance(caught.value, ConnectionError)


@every_way
def test_a_server_that_keeps_silent(stub: StubServer, ask: Ask) -> None:
    stub.reply = Exchange.hang
    with (
        closing(connect(stub)) as server,
        pytest.raises(ServerTimeoutError, match=r"within 0\.2 s") as caught,
    ):
        ask(server, CHAT, None, 0.2)
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize("ask", [stream, astream])
def test_a_server_that_falls_silent(stub: StubServer, ask: Ask) -> None:
    def reply(exchange: Exchange) -> None:
        exchange.start_events()
        exchange.send_event({"choices": [exchange.choice("Cats ")]})
        exchange.hang()

    stub.reply = reply
    with closing(connect(stub)) as server, pytest.raises(ServerTimeoutError):
        ask(server, CHAT, None, 0.2)


@pytest.mark.parametrize("ask", [stream, astream])
def test_a_server_that_never_ends(stub: StubServer, ask: Ask) -> None:
    """Something comes all the time, so only the whole answer's timeout can stop it."""

    def reply(exchange: Exchange) -> None:
        exchange.start_events()
        while not stub.released.wait(0.01):
            exchange.send_event({"choices": [exchange.choice("miaow ")]})

    stub.reply = reply
    with closing(connect(stub)) as server, pytest.raises(ServerTimeoutError):
        ask(server, CHAT, None, 0.3)


@every_way
@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 429, 500, 503])
def test_a_server_that_refuses(stub: StubServer, ask: Ask, status: int) -> None:
    stub.reply = lambda exchange: exchange.send({"error": {"message": "not today"}}, status)
    with (
        closing(connect(stub)) as server,
        pytest.raises(ServerResponseError, match="not today") as caught,
    ):
        ask(server, CHAT, None, None)
    assert caught.value.status_code == status
    assert len(stub.seen) == 1


@every_way
def test_a_server_that_refuses_at_first(stub: StubServer, ask: Ask) -> None:
    def reply(exchange: Exchange) -> None:
        if len(stub.seen) == 1:
            exchange.send("{}", 503)
        else:
            answer(exchange, "Cats ", "purr", ".")

    stub.reply = reply
    with closing(connect(stub, max_retries=1)) as server:
        assert ask(server, CHAT, None, None) == SAID


@every_way
@pytest.mark.parametrize(
    "message",
    [
        # vLLM's and OpenAI's words
        (
            "This model's maximum context length is 4096 tokens. However, your prompt contains at "
            "least 4500 input tokens, which exceeds this limit even without any output tokens."
        ),
        (
            "This model's maximum context length is 4096 tokens. However, your messages resulted "
            "in 4500 tokens. Please reduce the length of the messages."
        ),
    ],
)
def test_a_prompt_too_long(stub: StubServer, ask: Ask, message: str) -> None:
    stub.reply = lambda exchange: exchange.send({"error": {"message": message}}, 400)
    with closing(connect(stub)) as server, pytest.raises(PromptTooLongError) as caught:
        ask(server, CHAT, None, None)
    assert (caught.value.prompt_tokens, caught.value.max_prompt_tokens) == (4500, 4096)


GARBAGE: list[tuple[str, str]] = [
    ("html", "<html>It works!</html>"),
    ("json", ""),
    ("json", "{"),
    ("json", "null"),
    ("json", "[]"),
    ("json", "42"),
    ("json", "{}"),
    ("json", '{"choices": null}'),
    ("json", '{"choices": []}'),
    ("json", '{"choices": "many"}'),
    ("json", '{"choices": [null]}'),
    ("json", '{"choices": [{"message": {"content": 3}, "finish_reason": "stop"}]}'),
    ("json", '{"choices": [{"message": "hi", "finish_reason": "stop"}]}'),
    ("json", '{"choices": [{"message": {"content": "hi"}}]}'),
    ("json", '{"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": 7}'),
    ("json", '{"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}], "usage": {}}'),
]


@pytest.mark.parametrize("ask", [generate, agenerate])
@pytest.mark.parametrize(("kind", "content"), [*GARBAGE, ("json", b"\xff\xfe{")])
def test_garbage(stub: StubServer, ask: Ask, kind: str, content: str | bytes) -> None:
    stub.reply = lambda exchange: exchange.send(content, kind=kind)
    with closing(connect(stub)) as server, pytest.raises(ServerResponseError):
        ask(server, CHAT, None, None)


@pytest.mark.parametrize("ask", [stream, astream])
@pytest.mark.parametrize(
    "events",
    [
        [],
        ["[DONE]"],
        ["no json"],
        ["{}", "[DONE]"],
        ['{"choices": [{"delta": {"content": "Cats"}}]}', "[DONE]"],
        ['{"choices": [{"delta": {"content": "Cats"}}]}', '{"choices": 3}'],
        ['{"choices": [{"delta": {"content": "Cats"}}]}', '{"error": {"message": "out of luck"}}'],
        ['{"choices": [{"delta": {"content": "Cats"}}]}', '{"error": "out of luck"}'],
    ],
)
def test_garbage_while_streaming(stub: StubServer, ask: Ask, events: list[str]) -> None:
    def reply(exchange: Exchange) -> None:
        exchange.start_events()
        for event in events:
            exchange.send_event(event)

    stub.reply = reply
    with closing(connect(stub)) as server, pytest.raises(ServerResponseError):
        ask(server, CHAT, None, None)


@pytest.mark.parametrize("ask", [stream, astream])
def test_no_stream_at_all(stub: StubServer, ask: Ask) -> None:
    stub.reply = lambda exchange: exchange.send("<html>It works!</html>", kind="html")
    with closing(connect(stub)) as server, pytest.raises(ServerResponseError, match="broke off"):
        ask(server, CHAT, None, None)


@every_way
def test_a_connection_that_breaks(stub: StubServer, ask: Ask) -> None:
    stub.reply = Exchange.break_off
    with closing(connect(stub)) as server, pytest.raises(ServerUnreachableError):
        ask(server, CHAT, None, None)


@pytest.mark.parametrize("ask", [stream, astream])
def test_a_connection_that_breaks_while_streaming(stub: StubServer, ask: Ask) -> None:
    def reply(exchange: Exchange) -> None:
        exchange.send_response(200)
        exchange.send_header("Content-Type", "text/event-stream")
        exchange.send_header("Content-Length", "1000000")
        exchange.end_headers()
        exchange.send_event({"choices": [exchange.choice("Cats ")]})
        exchange.break_off()

    stub.reply = reply
    with closing(connect(stub)) as server, pytest.raises(ServerUnreachableError):
        ask(server, CHAT, None, None)


@every_way
@pytest.mark.parametrize("text", ["lone \ud800 surrogate"])
def test_text_that_is_no_unicode_is_not_sent(stub: StubServer, ask: Ask, text: str) -> None:
    with closing(connect(stub)) as server:
        for prompt in (Prompt.raw(text), Prompt.rag("Why?", [text])):
            with pytest.raises(ConfigurationError, match="surrogate"):
                ask(server, prompt, None, None)
    assert not stub.seen


@every_way
def test_a_closed_client(stub: StubServer, ask: Ask) -> None:
    server = connect(stub)
    ask(server, CHAT, None, None)
    server.close()
    server.close()
    with pytest.raises(EngineClosedError):
        ask(server, CHAT, None, None)


def test_closed_during_a_request(stub: StubServer) -> None:
    def reply(exchange: Exchange) -> None:
        exchange.start_events()
        for _ in range(2):
            exchange.send_event({"choices": [exchange.choice("Cats ")]})
        exchange.hang()

    stub.reply = reply
    server = connect(stub)
    chunks = server.stream(CHAT)
    next(chunks)
    server.close()
    with pytest.raises(EngineClosedError):
        list(chunks)


@pytest.mark.parametrize("arguments", [("localhost:1", "m"), ("", "m"), ("http://x/v1", "")])
def test_bad_arguments(arguments: tuple[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        OpenAIServer(*arguments)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"ragcache-integrations\[openai\]"):
        OpenAIServer("http://127.0.0.1:1/v1", "m")


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
