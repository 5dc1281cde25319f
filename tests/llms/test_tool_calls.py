"""Calls of tools through a server, in both frameworks and every way to call."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from llama_index.core.base.llms.types import ToolCallBlock
from llama_index.core.llms import ChatMessage, ChatResponse
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel, Field

from ragcache_integrations.core.generation import GenerationChunk, SamplingOptions
from ragcache_integrations.core.prompt import (
    Message,
    Prompt,
    PromptDocument,
    Tool,
    ToolCall,
    ToolCallPiece,
    join_calls,
)
from ragcache_integrations.errors import (
    ConfigurationError,
    ServerResponseError,
    StructuredOutputError,
)
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.llms.langchain.models import RAGCacheLLM as LangChainLLM
from ragcache_integrations.llms.langchain.translation import StreamedCalls
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from ragcache_integrations.llms.openai.answers import AnswerError, AnswerParser
from ragcache_integrations.prompts.recognition import SEGMENTATIONS, mark_prompt
from tests.support.sizes import examples

from .doubles import StubServer
from .scripted import ScriptedModel, results, scripted


def add_up(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def time_of_day() -> str:
    """Tell the time."""
    return "noon"


add, now = tool("add")(add_up), tool("now")(time_of_day)


CALLS = [
    ToolCall("call-1", "add", '{"a": 2, "b": 40}'),
    ToolCall("call-2", "now", ""),
]


def calling(body: dict[str, Any]) -> str | list[ToolCall]:
    return "42 at noon." if results(body) else CALLS


LangChainAsk = Callable[[Any, Any], AIMessage]


def _streamed(chunks: list[AIMessageChunk]) -> AIMessage:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole


async def _astreamed(model: Any, turn: Any) -> AIMessage:
    return _streamed([chunk async for chunk in model.astream(turn)])


LANGCHAIN: dict[str, LangChainAsk] = {
    "invoke": lambda model, turn: model.invoke(turn),
    "ainvoke": lambda model, turn: asyncio.run(model.ainvoke(turn)),
    "stream": lambda model, turn: _streamed([*model.stream(turn)]),
    "astream": lambda model, turn: asyncio.run(_astreamed(model, turn)),
    "batch": lambda model, turn: model.batch([turn])[0],
}


@pytest.mark.parametrize("ask", LANGCHAIN.values(), ids=LANGCHAIN)
def test_langchain(stub: StubServer, ask: LangChainAsk) -> None:
    model = ChatRAGCache(base_url=scripted(stub, calling), model="m").bind_tools([add, now])
    turn: list[Any] = [HumanMessage("2 + 40, and when?")]
    said = ask(model, turn)
    assert said.content == ""
    assert [(call["id"], call["name"], call["args"]) for call in said.tool_calls] == [
        ("call-1", "add", {"a": 2, "b": 40}),
        ("call-2", "now", {}),
    ]
    assert not said.invalid_tool_calls
    assert said.response_metadata["finish_reason"] == "tool_calls"
    turn += [said, *(t.invoke(call) for t, call in zip((add, now), said.tool_calls, strict=True))]
    answer = ask(model, turn)
    assert answer.content == "42 at noon."
    first, second = (seen.body for seen in stub.seen)
    assert first["tools"] == second["tools"]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    asked, results_ = second["messages"][1], second["messages"][2:]
    assert asked["content"] is None
    assert [json.loads(call["function"]["arguments"]) for call in asked["tool_calls"]] == [
        {"a": 2, "b": 40},
        {},
    ]
    assert [(r["tool_call_id"], r["content"]) for r in results_] == [
        ("call-1", "42"),
        ("call-2", "noon"),
    ]
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_token_details"]["cache_read"] > 0


LlamaIndexAsk = Callable[[RAGCacheLLM, list[Any], list[ChatMessage]], ChatResponse]


async def _last(llm: RAGCacheLLM, tools: list[Any], turn: list[ChatMessage]) -> ChatResponse:
    responses = await llm.astream_chat_with_tools(tools, chat_history=turn)
    *_, last = [response async for response in responses]
    return last


LLAMA_INDEX: dict[str, LlamaIndexAsk] = {
    "chat": lambda llm, tools, turn: llm.chat_with_tools(tools, chat_history=turn),
    "achat": lambda llm, tools, turn: asyncio.run(llm.achat_with_tools(tools, chat_history=turn)),
    "stream": lambda llm, tools, turn: list(llm.stream_chat_with_tools(tools, chat_history=turn))[
        -1
    ],
    "astream": lambda llm, tools, turn: asyncio.run(_last(llm, tools, turn)),
}
TOOLS = [
    FunctionTool.from_defaults(add_up, name="add"),
    FunctionTool.from_defaults(time_of_day, name="now"),
]


@pytest.mark.parametrize("ask", LLAMA_INDEX.values(), ids=LLAMA_INDEX)
def test_llama_index(stub: StubServer, ask: LlamaIndexAsk) -> None:
    llm = RAGCacheLLM(base_url=scripted(stub, calling), model="m", max_model_len=4096)
    turn = [ChatMessage("2 + 40, and when?")]
    said = ask(llm, TOOLS, turn)
    chosen = llm.get_tool_calls_from_response(said)
    assert [(call.tool_id, call.tool_name, call.tool_kwargs) for call in chosen] == [
        ("call-1", "add", {"a": 2, "b": 40}),
        ("call-2", "now", {}),
    ]
    turn += [
        said.message,
        ChatMessage(role="tool", content="42", additional_kwargs={"tool_call_id": "call-1"}),
        ChatMessage(role="tool", content="noon", additional_kwargs={"tool_call_id": "call-2"}),
    ]
    answer = ask(llm, TOOLS, turn)
    assert answer.message.content == "42 at noon."
    assert llm.get_tool_calls_from_response(answer, error_on_no_tool_call=False) == []
    with pytest.raises(StructuredOutputError, match="calls no tool: 42 at noon"):
        llm.get_tool_calls_from_response(answer)
    first, second = (seen.body for seen in stub.seen)
    assert first["tools"] == second["tools"]
    assert first["parallel_tool_calls"] is False
    assert second["messages"][: len(first["messages"])] == first["messages"]


def test_calls_so_far_in_a_stream(stub: StubServer) -> None:
    llm = RAGCacheLLM(base_url=scripted(stub, calling), model="m")
    seen = [
        [
            call.tool_kwargs
            for call in llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
        ]
        for response in llm.stream_chat_with_tools(TOOLS, "2 + 40, and when?")
    ]
    assert seen[0] == [{}]
    assert seen[-1] == [{"a": 2, "b": 40}, {}]


def test_histories_in_openais_form(stub: StubServer) -> None:
    llm = RAGCacheLLM(base_url=scripted(stub, calling), model="m")
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    block = ToolCallBlock(tool_call_id="1", tool_name="add", tool_kwargs={"a": 1})
    written = ToolCallBlock(tool_call_id="1", tool_name="add", tool_kwargs='{"a": 1}')
    result = ChatMessage(role="tool", content="3", additional_kwargs={"tool_call_id": "1"})
    for message in (
        ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": [call]}),
        ChatMessage(role="assistant", blocks=[block]),
        ChatMessage(role="assistant", blocks=[written]),
        ChatMessage(role="assistant", blocks=[block], additional_kwargs={"tool_calls": [call]}),
    ):
        assert llm.chat([ChatMessage("?"), message, result]).message.content == "42 at noon."
        assert stub.seen[-1].body["messages"][1]["tool_calls"] == [call]
    wrong = ChatMessage(role="assistant", additional_kwargs={"tool_calls": ["add"]})
    with pytest.raises(ConfigurationError, match=r"tool_calls of a message must be .* got 'add'"):
        llm.chat([ChatMessage("?"), wrong])


class Add(BaseModel):
    """Add two numbers."""

    a: int = Field(description="one")
    b: int


@pytest.mark.parametrize("given", [add, Add, add_up, {**Add.model_json_schema(), "title": "add"}])
def test_every_kind_of_tool(stub: StubServer, given: Any) -> None:
    model = ChatRAGCache(base_url=scripted(stub, lambda _: "Hm."), model="m")
    model.bind_tools([given]).invoke("?")
    (definition,) = stub.seen[0].body["tools"]
    assert definition["type"] == "function"
    assert definition["function"]["name"].lower() in {"add", "add_up"}
    assert set(definition["function"]["parameters"]["properties"]) == {"a", "b"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, {}),
        ({"tool_choice": "auto"}, {}),
        ({"tool_choice": "none"}, {"tool_choice": "none"}),
        ({"tool_choice": "any"}, {"tool_choice": "required"}),
        ({"tool_choice": True}, {"tool_choice": "required"}),
        (
            {"tool_choice": "add"},
            {"tool_choice": {"type": "function", "function": {"name": "add"}}},
        ),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"parallel_tool_calls": True}, {}),
    ],
)
def test_choices_in_the_protocols_words(
    stub: StubServer, given: dict[str, Any], sent: dict[str, Any]
) -> None:
    model = ChatRAGCache(base_url=scripted(stub, lambda _: "Hm."), model="m")
    model.bind_tools([add, now], **given).invoke("?")
    names = ("tool_choice", "parallel_tool_calls")
    body = stub.seen[0].body
    assert {name: body[name] for name in names if name in body} == sent


def test_strict_is_the_servers(stub: StubServer) -> None:
    model = ChatRAGCache(base_url=scripted(stub, lambda _: "Hm."), model="m")
    model.bind_tools([add], strict=True).invoke("?")
    (definition,) = stub.seen[0].body["tools"]
    assert definition["function"]["strict"] is True
    assert definition["function"]["parameters"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("call", "match"),
    [
        ({"tool_choice": "ad"}, "unknown tool_choice 'ad'.*did you mean 'add'"),
        ({"tool_choice": 3}, "tool_choice must be any"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls must be True or False"),
        ({"max_tokns": 3}, "did you mean 'max_tokens'"),
    ],
)
def test_wrong_arguments_are_refused_at_once(call: dict[str, Any], match: str) -> None:
    model = ChatRAGCache(base_url="http://127.0.0.1:1/v1", model="m")
    with pytest.raises(ConfigurationError, match=match):
        model.bind_tools([add, now], **call)
    with pytest.raises(ConfigurationError, match="no tool can be made from"):
        model.bind_tools([3])  # type: ignore[list-item]


def test_text_completions_have_no_tools(stub: StubServer) -> None:
    llm = LangChainLLM(base_url=stub.base_url, model="m")
    with pytest.raises(ConfigurationError, match="tools are for conversations"):
        llm.invoke("?", tools=[Tool("f").definition()])


def test_a_server_that_refuses_tools(stub: StubServer) -> None:
    message = '"auto" tool choice requires --enable-auto-tool-choice'
    stub.reply = lambda exchange: exchange.send({"error": {"message": message}}, 400)
    model = ChatRAGCache(base_url=stub.base_url, model="m", max_retries=0).bind_tools([add])
    with pytest.raises(ServerResponseError, match="requires --enable-auto-tool-choice"):
        model.invoke("?")


CUT_OFF = [
    "",
    '{"a": 2, "b',
    '{"a": 2',
    '{"a": [1, [2',
    '{"a": {"b": [',
    '{"a": "x\\',
    '{"a": "x\\\\',
    '{"a": "[',
    '{"a": 1,',
    '{"a": tr',
    '{"a": 1, "b": [1, 2]',
    "{",
    "[1]",
    "add",
]
BROKEN = CUT_OFF[1]


@pytest.mark.parametrize("arguments", CUT_OFF)
def test_calls_that_were_cut_off_are_invalid(stub: StubServer, arguments: str) -> None:
    """LangChain would mend them when it adds up a stream, and the agent would execute them."""
    calls = [ToolCall("1", "add", arguments), ToolCall("2", "now", "{}")]
    stub.reply = ScriptedModel(lambda _: calls, reason="length")
    chat = ChatRAGCache(base_url=stub.base_url, model="m").bind_tools([add, now])
    whole, streamed = chat.invoke("?"), LANGCHAIN["stream"](chat, "?")
    for said in (whole, streamed, LANGCHAIN["astream"](chat, "?")):
        assert [call["name"] for call in said.tool_calls] == ["now"]
        (broken,) = said.invalid_tool_calls
        assert str(broken["args"]).startswith(arguments)
    (broken,) = whole.invalid_tool_calls
    assert broken["args"] == arguments
    assert "raise max_tokens" in str(broken["error"])
    llm = RAGCacheLLM(base_url=stub.base_url, model="m")
    for response in (
        llm.chat_with_tools(TOOLS, "?"),
        [*llm.stream_chat_with_tools(TOOLS, "?")][-1],
    ):
        with pytest.raises(StructuredOutputError, match=r"call of 'add'.*raise max_tokens"):
            llm.get_tool_calls_from_response(response)
        assert response.message.blocks[-2].model_dump()["tool_kwargs"] == arguments


def test_a_call_that_was_cut_off_in_one_chunk_is_invalid() -> None:
    pieces = (ToolCallPiece(0, "", "1", "add"), ToolCallPiece(0, BROKEN))
    chunk = GenerationChunk("", tool_calls=pieces, finish_reason="length")
    said = AIMessageChunk(content="", tool_call_chunks=StreamedCalls().add(chunk))
    assert said.tool_calls == []
    (broken,) = said.invalid_tool_calls
    assert (broken["id"], broken["name"]) == ("1", "add")


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@examples(200)
@given(st.dictionaries(st.text(), JSON_VALUES, max_size=3), st.data())
def test_no_part_of_the_arguments_is_taken_for_them(
    arguments: dict[str, Any], data: st.DataObject
) -> None:
    written = json.dumps(arguments, ensure_ascii=data.draw(st.booleans()))
    end = data.draw(st.integers(0, len(written)))
    calls = StreamedCalls()
    chunks = [
        *calls.add(GenerationChunk("", tool_calls=(ToolCallPiece(0, "", "1", "add"),))),
        *calls.add(GenerationChunk("", tool_calls=(ToolCallPiece(0, written[:end]),))),
        *calls.add(GenerationChunk("", finish_reason="length")),
    ]
    said = _streamed([AIMessageChunk(content="", tool_call_chunks=[c]) for c in chunks])
    if end == len(written):
        assert [call["args"] for call in said.tool_calls] == [arguments]
    else:
        assert said.tool_calls == []
        assert len(said.invalid_tool_calls) == 1


@pytest.mark.parametrize("ask", LANGCHAIN.values(), ids=LANGCHAIN)
def test_calls_of_half_a_character_are_invalid(stub: StubServer, ask: LangChainAsk) -> None:
    """No later turn could send them back, so the agent would fail there."""
    calls = [
        ToolCall("1", "add", r'{"a": "\ud83d"}'),
        ToolCall("2", "add", r'{"\uDE00": 1}'),
        ToolCall("3", "add", r'{"a": "\ud83d\ude00"}'),
    ]
    model = ChatRAGCache(base_url=scripted(stub, lambda _: calls), model="m").bind_tools([add])
    said = ask(model, "?")
    assert [call["args"] for call in said.tool_calls] == [{"a": "\U0001f600"}]
    assert [call["id"] for call in said.invalid_tool_calls] == ["1", "2"]
    llm = RAGCacheLLM(base_url=stub.base_url, model="m")
    with pytest.raises(StructuredOutputError, match="surrogates not allowed"):
        llm.get_tool_calls_from_response(llm.chat_with_tools(TOOLS, "?"))


def test_the_work_for_a_streamed_call_grows_with_its_length(stub: StubServer) -> None:
    """Each piece is joined once, not again with each that follows."""
    llm = RAGCacheLLM(base_url=stub.base_url, model="m")

    def work(length: int) -> int:
        stub.reply = ScriptedModel(lambda _: [ToolCall("1", "add", "x" * length)])
        steps = 0

        def count(*_: object) -> None:
            nonlocal steps
            steps += 1

        sys.setprofile(count)
        try:
            for _ in llm.stream_chat_with_tools(TOOLS, "?"):
                pass
        finally:
            sys.setprofile(None)
        return steps

    work(10)  # what is loaded at the first call is no part of it
    assert work(4000) < 3 * work(2000)


def test_invalid_calls_are_sent_back(stub: StubServer) -> None:
    """A model may be shown its broken call and why it failed."""
    model = ChatRAGCache(base_url=stub.base_url, model="m")
    broken = {"id": "1", "name": "add", "args": BROKEN, "error": None, "type": "invalid_tool_call"}
    turn = [
        HumanMessage("?"),
        AIMessage("", invalid_tool_calls=[broken]),
        ToolMessage("no JSON", tool_call_id="1"),
    ]
    model.invoke(turn)
    (call,) = stub.seen[0].body["messages"][1]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": BROKEN}
    del turn[2]
    model.invoke([*turn, HumanMessage("Go on.")])
    assert "tool_calls" not in stub.seen[1].body["messages"][1]  # nobody has answered it


def test_calls_in_content_blocks_are_not_sent_twice(stub: StubServer) -> None:
    block = {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}}
    call = {"name": "add", "args": {"a": 1}, "id": "1", "type": "tool_call"}
    said = AIMessage([{"type": "text", "text": "Well."}, block], tool_calls=[call])
    model = ChatRAGCache(base_url=stub.base_url, model="m")
    model.invoke([HumanMessage("?"), said, ToolMessage("3", tool_call_id="1")])
    sent = stub.seen[0].body["messages"][1]
    assert sent["content"] == "Well."
    assert len(sent["tool_calls"]) == 1


# What servers send.


def read(*messages: dict[str, Any]) -> tuple[list[Any], AnswerParser]:
    parser = AnswerParser(SamplingOptions())
    return [piece for sent in messages for piece in parser.read(sent).tool_calls], parser


def delta(*calls: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": {"tool_calls": list(calls)}, "finish_reason": reason}]}


def test_calls_without_indices_or_ids() -> None:
    pieces, parser = read(
        delta({"function": {"name": "add", "arguments": {"a": 1}}}),
        delta({"function": {"name": "now", "arguments": None}}),
        delta({"function": {"arguments": "{"}}, {"function": {"arguments": "}"}}, reason="stop"),
    )
    assert [(piece.index, piece.name, piece.arguments) for piece in pieces] == [
        (0, "add", '{"a": 1}'),
        (1, "now", ""),
        (1, "", "{"),
        (1, "", "}"),
    ]
    assert len({piece.id for piece in pieces if piece.name}) == 2
    assert all(piece.id for piece in pieces if piece.name)
    assert parser.finish_reason == "tool_calls"
    assert parser.text == ""
    assert parser.written == 'add{"a": 1}now{}'


def test_names_that_are_repeated_with_every_piece() -> None:
    call = {"index": 3, "id": "x", "function": {"name": "add", "arguments": "{"}}
    pieces, _ = read(delta(call), delta({**call, "function": {"name": "add", "arguments": "}"}}))
    assert [(piece.index, piece.id, piece.name) for piece in pieces] == [
        (0, "x", "add"),
        (0, "", ""),
    ]


def test_calls_that_share_an_index() -> None:
    first = {"index": 0, "id": "x", "function": {"name": "add", "arguments": '{"a": 1}'}}
    second = {"index": 0, "id": "y", "function": {"name": "add", "arguments": "{"}}
    rest = {"index": 0, "function": {"arguments": "}"}}
    pieces, _ = read(delta(first, second), delta(rest))
    assert join_calls(pieces) == (ToolCall("x", "add", '{"a": 1}'), ToolCall("y", "add", "{}"))


@pytest.mark.parametrize(
    "calls", ["add", [3], [{"function": "add"}], [{"index": 0, "function": {"arguments": "{}"}}]]
)
def test_calls_that_make_no_sense(calls: object) -> None:
    with pytest.raises(AnswerError, match=r"tool calls? (make no sense|names no tool)"):
        read({"choices": [{"message": {"content": "", "tool_calls": calls}}]})


def test_a_reason_without_calls() -> None:
    _, parser = read({"choices": [{"message": {"content": "x"}, "finish_reason": "tool_calls"}]})
    assert parser.finish_reason == "stop"


def test_text_that_is_no_unicode_is_not_sent(stub: StubServer) -> None:
    model = ChatRAGCache(base_url=stub.base_url, model="m")
    bad = Tool("f", "\udc80").definition()
    with pytest.raises(ConfigurationError, match=r"surrogate|Unicode"):
        model.invoke("?", tools=[bad])
    call = {"name": "f", "args": {"a": "\udc80"}, "id": "1", "type": "tool_call"}
    turn = [HumanMessage("?"), AIMessage("", tool_calls=[call]), ToolMessage("3", tool_call_id="1")]
    with pytest.raises(ConfigurationError, match=r"surrogate|Unicode"):
        model.invoke(turn)
    assert not stub.seen


def test_a_prompt_keeps_its_tools_and_calls_when_documents_are_marked() -> None:
    called = Message("assistant", "", tool_calls=[ToolCall("1", "f", "{}")])
    result = Message("tool", "All about cats.", tool_call_id="1")
    prompt = Prompt(messages=(Message("user", "?"), called, result), tools=(Tool("f"),))
    marked = SEGMENTATIONS.settle(prompt, mark_prompt(prompt, [PromptDocument("about")]), "")
    assert marked.tools == prompt.tools
    assert marked.messages[1].tool_calls == called.tool_calls
    assert marked.messages[2].tool_call_id == "1"
    assert [document.text for document in marked.documents] == ["about"]
