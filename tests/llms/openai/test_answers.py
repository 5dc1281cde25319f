"""Answers as servers and gateways really send them: read liberally, and nothing made up."""

from __future__ import annotations

import itertools
import json
from contextlib import closing
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from llama_index.core.llms import ChatMessage

from ragcache_integrations.core.generation import SamplingOptions, Usage
from ragcache_integrations.errors import PromptTooLongError, ServerResponseError
from ragcache_integrations.langchain import ChatRAGCache
from ragcache_integrations.langchain import RAGCacheLLM as LangChainLLM
from ragcache_integrations.llama_index import RAGCacheLLM
from ragcache_integrations.llms.openai.answers import (
    MAX_EVENT_CHARACTERS,
    MAX_STRAY_CHARACTERS,
    AnswerError,
    AnswerParser,
    EventReader,
    StreamParser,
)
from tests.fuzz.bounds import bounded
from tests.llms.doubles import StubServer

from .calls import CHAT, RAW, Ask, agenerate, astream, connect, every_way, generate, stream

GOOD: dict[str, Any] = {"role": "assistant", "content": "Rome"}
CHOICE = {"index": 0, "message": GOOD, "finish_reason": "stop"}
TOLD = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def whole(choice: dict[str, Any] = CHOICE, **more: Any) -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice], **more}


def read(answer: object) -> tuple[str, AnswerParser]:
    parser = AnswerParser(SamplingOptions())
    return parser.read_whole(answer).text, parser


@pytest.mark.parametrize("ask", [generate, agenerate])
@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        7,
        [],
        {"prompt_tokens": None, "completion_tokens": None},
        {"prompt_tokens": 3, "completion_tokens": None, "total_tokens": 3},
        {"prompt_tokens": 3, "total_tokens": 3},
        {"prompt_tokens": "3", "completion_tokens": 1},
        {"prompt_tokens": -3, "completion_tokens": 1},
        {"prompt_tokens": 1e300, "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
    ],
)
def test_unknown_usage_costs_no_answer(stub: StubServer, ask: Ask, usage: object) -> None:
    stub.reply = lambda exchange: exchange.send(whole(usage=usage))
    with closing(connect(stub)) as server:
        said = ask(server, CHAT, None, None)
    assert said.text == "Rome"
    assert said.usage.estimated
    assert not said.usage.cached_known


def test_unknown_usage_is_unknown_in_both_frameworks(stub: StubServer) -> None:
    stub.reply = lambda exchange: exchange.send(
        {"choices": [exchange.choice("Rome")], "usage": {"prompt_tokens": None}}
    )
    with ChatRAGCache(base_url=stub.base_url, model="m") as chat:
        message = chat.invoke("Where?")
    assert isinstance(message, AIMessage)
    assert message.usage_metadata is None
    assert message.response_metadata["finish_reason"] == "unknown"
    with LangChainLLM(base_url=stub.base_url, model="m") as llm:
        result = llm.generate(["Where?"])
    assert result.llm_output == {"model_name": "m", "token_usage": {}}
    with RAGCacheLLM(base_url=stub.base_url, model="m") as llama:
        response = llama.chat([ChatMessage("Where?")])
    assert "usage" not in response.raw


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        (whole(usage=TOLD), Usage(7, 3, 0, cached_known=False)),
        (
            whole(usage={"input_tokens": 7, "output_tokens": 3.0}),
            Usage(7, 3, 0, cached_known=False),
        ),
        (whole(CHOICE | {"usage": TOLD}), Usage(7, 3, 0, cached_known=False)),
        (whole(x_groq={"usage": TOLD}), Usage(7, 3, 0, cached_known=False)),
        (whole(usage=TOLD | {"prompt_tokens_details": {"cached_tokens": 5}}), Usage(7, 3, 5)),
        (whole(usage=TOLD | {"prompt_cache_hit_tokens": 5}), Usage(7, 3, 5)),
        (
            whole(usage=TOLD | {"prompt_tokens_details": {"cached_tokens": 8}}),
            Usage(7, 3, 0, cached_known=False),
        ),
    ],
)
def test_usage_in_other_places(answer: dict[str, Any], usage: Usage) -> None:
    assert read(answer)[1].usage == usage


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ([{"type": "text", "text": "Ro"}, {"type": "text", "text": "me"}], "Rome"),
        ([{"type": "thinking", "thinking": [{"text": "hm"}]}, {"type": "text", "text": "x"}], "x"),
        (["Ro", "me"], "Rome"),
    ],
)
def test_content_in_other_forms(content: object, text: str) -> None:
    message = GOOD | {"content": content, "reasoning_content": "hm", "reasoning": None}
    assert read(whole(CHOICE | {"message": message, "stop_reason": 3}))[0] == text


@pytest.mark.parametrize("kind", [{}, [], None, 7])
def test_a_part_of_no_kind_is_no_text(kind: object) -> None:
    message = GOOD | {"content": [{"type": kind, "text": 7}]}
    with pytest.raises(AnswerError, match="something else than text"):
        read(whole(CHOICE | {"message": message}))


@every_way
@pytest.mark.parametrize(
    ("error", "message", "status"),
    [
        ({"error": {"message": "overloaded", "code": 503}}, "overloaded", 503),
        ({"error": {"message": "overloaded", "code": "busy"}, "choices": []}, "overloaded", None),
        ({"error": "overloaded"}, "overloaded", None),
        ({"error": {"reason": "overloaded"}}, "overloaded", None),
        ({"object": "error", "message": "overloaded", "code": 400}, "overloaded", 400),
        ({"detail": "overloaded"}, "overloaded", None),
        ({"detail": [{"msg": "overloaded"}]}, "overloaded", None),
        ({"choices": [{"index": 0, "error": {"message": "overloaded"}}]}, "overloaded", None),
        ("<html><h1>overloaded</h1></html>", "overloaded", None),
    ],
)
def test_an_error_with_status_200(
    stub: StubServer, ask: Ask, error: object, message: str, status: int | None
) -> None:
    stub.reply = lambda exchange: exchange.send(error)
    with (
        closing(connect(stub)) as server,
        pytest.raises(ServerResponseError, match=message) as caught,
    ):
        ask(server, CHAT, None, None)
    assert caught.value.status_code == status


@every_way
def test_a_prompt_too_long_with_status_200(stub: StubServer, ask: Ask) -> None:
    message = "This model's maximum context length is 10 tokens, your messages have 12 tokens."
    stub.reply = lambda exchange: exchange.send({"error": {"message": message}})
    with closing(connect(stub)) as server, pytest.raises(PromptTooLongError):
        ask(server, CHAT, None, None)


@every_way
@pytest.mark.parametrize(
    "body", [{"error": "bad gateway"}, {"detail": "bad gateway"}, "<h1>bad gateway</h1>"]
)
def test_a_refusal_in_other_forms(stub: StubServer, ask: Ask, body: object) -> None:
    stub.reply = lambda exchange: exchange.send(body, 502, kind="html")
    with closing(connect(stub)) as server, pytest.raises(ServerResponseError, match="bad gateway"):
        ask(server, CHAT, None, None)


@every_way
@pytest.mark.parametrize("status", [200, 500])
def test_what_is_shown_of_a_page_is_bounded(stub: StubServer, ask: Ask, status: int) -> None:
    stub.reply = lambda exchange: exchange.send("<p>miaow</p>\n" * 100_000, status, kind="html")
    with closing(connect(stub)) as server, pytest.raises(ServerResponseError) as caught:
        ask(server, CHAT, None, None)
    assert "miaow" in str(caught.value)
    assert len(str(caught.value)) < 1_000


# Streams


def chunk(text: str | None, **more: Any) -> str:
    choice = {"index": 0, "delta": {} if text is None else {"content": text}, **more}
    return json.dumps({"choices": [choice]})


def streamed(*events: str) -> str:
    return "".join(f"data: {event}\n\n" for event in events)


END = chunk(None, finish_reason="stop")


@pytest.mark.parametrize("ask", [stream, astream])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (streamed(chunk("Ro"), chunk("me"), END, "[DONE]"), "stop"),
        (streamed(chunk("Ro"), chunk("me"), END), "stop"),
        (streamed(chunk("Ro"), chunk("me"), "[DONE]"), "unknown"),
        (streamed(chunk("Ro"), chunk("me"), END).rstrip("\n"), "stop"),
        (streamed(chunk("Ro"), chunk("me"), END, "[DONE]").replace("\n", "\r\n"), "stop"),
        (streamed(chunk("Ro"), chunk("me"), END, "[DONE]").replace("\n", "\r"), "stop"),
        (streamed(chunk("Ro"), chunk("me"), END, "[DONE]").replace("data: ", "data:"), "stop"),
        (": hello\n\n" + streamed(chunk("Rome"), "", END) + ":\n\nretry: 3\nid: 4\n\n", "stop"),
        (streamed('{"choices": [], "prompt_filter_results": []}', chunk("Rome"), END), "stop"),
        (streamed('{"choices": null}', chunk("Rome", finish_reason="length")), "length"),
        ("event: completion\n" + streamed(chunk("Rome"), "[DONE]"), "unknown"),
        ("\ufeff" + streamed(chunk("Rome"), END), "stop"),
        (json.dumps(whole()), "stop"),
        (json.dumps(whole(), indent=2), "stop"),
    ],
)
def test_streams_in_other_forms(stub: StubServer, ask: Ask, body: str, reason: str) -> None:
    stub.reply = lambda exchange: exchange.send(body, kind="event-stream")
    with closing(connect(stub)) as server:
        said = ask(server, CHAT, None, None)
    assert (said.text, said.finish_reason) == ("Rome", reason)
    assert said.usage.estimated


@pytest.mark.parametrize("ask", [stream, astream])
@pytest.mark.parametrize(
    "body",
    [
        streamed(chunk("Ro"), '{"error": {"message": "out of luck", "code": 500}}'),
        streamed(chunk("Ro"), '{"error": "out of luck"}'),
        streamed(chunk("Ro")) + 'event: error\ndata: {"message": "out of luck"}\n\n',
        streamed(chunk("Ro")) + "event: error\ndata: out of luck\n\n",
        '{"error": {"message": "out of luck"}}',
    ],
)
def test_errors_in_a_stream_keep_their_message(stub: StubServer, ask: Ask, body: str) -> None:
    stub.reply = lambda exchange: exchange.send(body, kind="event-stream")
    with closing(connect(stub)) as server, pytest.raises(ServerResponseError, match="out of luck"):
        ask(server, CHAT, None, None)


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_pieces_of_any_size(size: int) -> None:
    data = streamed(chunk("Röm"), chunk("€\r\n"), END, "[DONE]").replace("\n", "\r\n").encode()
    parser = AnswerParser(SamplingOptions())
    reader = StreamParser(parser)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    texts = [part.text for piece in pieces for part in reader.feed(piece)]
    assert "".join(texts) == "Röm€\r\n"
    assert list(reader.finish()) == []
    assert parser.finish_reason == "stop"


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        (b"data: " + b"x" * 65_536, MAX_EVENT_CHARACTERS),
        (b"data: " + b"x" * 65_536 + b"\n", MAX_EVENT_CHARACTERS),
        (b"<p>" + b"x" * 65_536 + b"\n", MAX_STRAY_CHARACTERS),
    ],
)
def test_events_are_bounded(line: bytes, limit: int) -> None:
    reader = EventReader()
    pieces = (line for _ in range(2 * limit // len(line)))
    with pytest.raises(AnswerError, match="longer than"):
        list(itertools.chain.from_iterable(map(reader.feed, pieces)))


@pytest.mark.parametrize("piece", [b"x" * 8, "é".encode() * 4])
def test_a_line_that_comes_in_small_pieces_is_copied_once(piece: bytes) -> None:
    """Where every piece copied the line so far, this would take minutes."""
    reader = EventReader()
    pieces = itertools.repeat(piece)
    with bounded(), pytest.raises(AnswerError, match="longer than"):
        list(itertools.chain.from_iterable(map(reader.feed, pieces)))


def test_a_long_stream_is_not_one_long_event() -> None:
    reader = EventReader()
    events = 2 * MAX_EVENT_CHARACTERS // 1_000
    for _ in range(events):
        assert list(reader.feed(b": " + b"x" * 500 + b"\ndata: " + b"y" * 500 + b"\n\n"))


def test_every_way_reads_raw_text_without_a_reason(stub: StubServer) -> None:
    stub.reply = lambda exchange: exchange.send({"choices": [{"text": "Rome"}]})
    with closing(connect(stub)) as server:
        for ask in (generate, agenerate, stream, astream):
            said = ask(server, RAW, None, None)
            assert (said.text, said.finish_reason) == ("Rome", "unknown")
