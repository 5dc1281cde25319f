"""Servers that refuse, keep silent or talk nonsense, over real HTTP."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

import pytest

from ragcache_integrations.engine import (
    Prompt,
)
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineClosedError,
    MissingExtraError,
    PromptTooLongError,
    ServerResponseError,
    ServerTimeoutError,
    ServerUnreachableError,
)
from ragcache_integrations.llms.openai.server import OpenAIServer
from tests.llms.doubles import Exchange, StubServer, answer

from .calls import CHAT, SAID, Ask, agenerate, astream, connect, every_way, generate, stream


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


OVERFLOWS: dict[str, tuple[int, dict[str, Any]]] = {
    "OpenAI's code": (400, {"message": "Too much.", "code": "context_length_exceeded"}),
    "OpenAI's newer words": (
        400,
        {
            "message": "Your input exceeds the context window of this model. Please adjust it.",
        },
    ),
    "OpenAI's limit": (
        400,
        {
            "message": "Input tokens exceed the configured limit of 272000 tokens.",
        },
    ),
    "vLLM's tokens": (
        400,
        {
            "message": (
                "The decoder prompt (length 4500) is longer than the maximum model length "
                "of 4096. Make sure that `max_model_len` is no smaller."
            ),
        },
    ),
    "vLLM's characters": (
        400,
        {
            "message": (
                "This model's maximum context length is 4096 tokens. However, your prompt "
                "contains 90000 characters (more than 65536 characters, which is the upper "
                "bound for 4096 input tokens). Please reduce the length of the input "
                "prompt."
            ),
        },
    ),
    "a limit of tokens that is too high": (
        400,
        {
            "message": (
                "'max_tokens' is too large: 5000. This model's maximum context length is "
                "4096 tokens and your request has 10 input tokens (5000 > 4096 - 10)."
            ),
        },
    ),
    "SGLang": (
        400,
        {
            "message": (
                "The input (4500 tokens) is longer than the model's context length (4096 tokens)."
            ),
        },
    ),
    "Anthropic": (
        400,
        {
            "message": "prompt is too long: 4500 tokens > 4096 maximum",
        },
    ),
    "Anthropic's sum": (
        400,
        {
            "message": "input length and `max_tokens` exceed context limit: 4000 + 200 > 4096",
        },
    ),
    "LiteLLM": (
        400,
        {
            "message": "litellm.ContextWindowExceededError: litellm.BadRequestError: no",
            "code": "400",
        },
    ),
    "llama.cpp": (
        400,
        {
            "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 4500,
            "n_ctx": 4096,
        },
    ),
    "llama.cpp's type": (500, {"message": "no", "code": 500, "type": "exceed_context_size_error"}),
    "Groq": (
        400,
        {
            "message": "Please reduce the length of the messages or completion.",
        },
    ),
    "Mistral": (
        400,
        {
            "message": (
                "Prompt contains 4500 tokens and 0 draft tokens, too large for model with "
                "4096 maximum context length"
            ),
            "object": "error",
        },
    ),
    "TGI": (
        422,
        {
            "message": (
                "Input validation error: `inputs` tokens + `max_new_tokens` must be <= "
                "4096. Given: 4500 `inputs` tokens and 100 `max_new_tokens`"
            ),
            "error_type": "validation",
        },
    ),
    "Together": (
        422,
        {
            "message": "`inputs` must have less than 4096 tokens. Given: 4500",
        },
    ),
    "Ollama": (
        400,
        {
            "message": "the input length exceeds the context length",
        },
    ),
    "Gemini": (
        400,
        {
            "message": (
                "The input token count (4500) exceeds the maximum number of tokens allowed (4096)."
            ),
            "status": "INVALID_ARGUMENT",
        },
    ),
    "Bedrock": (
        400,
        {
            "message": "Input is too long for requested model.",
        },
    ),
    "xAI": (
        400,
        {
            "message": (
                "This model's maximum prompt length is 4096 but the request contains 4500 tokens."
            ),
        },
    ),
    "Cohere": (
        400,
        {
            "message": "too many tokens: total number of tokens in the prompt cannot exceed 4096",
        },
    ),
    "Moonshot": (
        400,
        {
            "message": "Invalid request: Your request exceeded model token limit: 4096",
        },
    ),
    "GitHub": (
        413,
        {
            "message": "Request body too large. Max size: 8000 tokens.",
            "code": "tokens_limit_reached",
        },
    ),
}
"""A status and an error for each kind of server."""

COUNTED: dict[str, tuple[int | None, int]] = {
    "vLLM's tokens": (4500, 4096),
    "vLLM's characters": (None, 4096),
    "a limit of tokens that is too high": (None, 4096),
}
"""The tokens of the prompt, and of the window, where the message has them."""


@every_way
@pytest.mark.parametrize("name", OVERFLOWS)
def test_a_prompt_too_long_in_the_words_of_others(stub: StubServer, ask: Ask, name: str) -> None:
    status, error = OVERFLOWS[name]
    counts = COUNTED.get(name, (None, None))
    for sent in (status, 200):
        stub.reply = lambda exchange, sent=sent: exchange.send({"error": error}, sent)  # type: ignore[misc]
        with closing(connect(stub)) as server, pytest.raises(PromptTooLongError) as caught:
            ask(server, CHAT, None, None)
        assert (caught.value.prompt_tokens, caught.value.max_prompt_tokens) == counts
        if counts[0] is None:
            assert error["message"][:20] in str(caught.value), "the server's words are there"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (429, {"message": "Please reduce the length of the messages: too many at once."}),
        (
            413,
            {
                "message": "Request too large for model: Limit 6000, Requested 9000. Please reduce "
                "your message size: tokens per minute (TPM)",
                "code": "rate_limit_exceeded",
            },
        ),
        (400, {"message": "max_tokens is too large", "code": "invalid_value"}),
        (400, {"message": "The context of this request is not known.", "code": 400}),
        (401, {"message": "no key", "type": "invalid_request_error"}),
        (400, {"message": "no", "code": ["context_length_exceeded"]}),
    ],
)
def test_what_is_no_prompt_too_long(stub: StubServer, status: int, error: dict[str, Any]) -> None:
    stub.reply = lambda exchange: exchange.send({"error": error}, status)
    with closing(connect(stub)) as server, pytest.raises(ServerResponseError) as caught:
        server.generate(CHAT)
    assert caught.value.status_code == status


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
    ("json", '{"choices": [{"index": 0}]}'),
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
        ['{"choices": [{"delta": {"content": "Cats"}}]}'],
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
    with closing(connect(stub)) as server, pytest.raises(ServerResponseError, match="It works"):
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
