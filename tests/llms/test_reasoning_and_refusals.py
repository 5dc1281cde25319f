"""What answers say besides their text: what a model thought, why it refuses, and how it ended.

The servers here are DeepSeek's (``reasoning_content``, which has to come back), vLLM's
(``reasoning``), Mistral's (parts of the content) and OpenAI's (``refusal``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from llama_index.core import PromptTemplate
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import TextBlock, ThinkingBlock
from llama_index.core.llms import ChatMessage, ChatResponse, MessageRole
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel

from ragcache_integrations.answers.langchain.values import CODEC
from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.engine import Message
from ragcache_integrations.errors import StructuredOutputError
from ragcache_integrations.langchain import HalfTruncationHistory
from ragcache_integrations.llama_index import HalfTruncationMemory
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.llms.langchain.models import RAGCacheLLM as LangChainLLM
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from ragcache_integrations.llms.openai.answers import AnswerParser

from .doubles import USAGE, Exchange, StubServer
from .openai.calls import CHAT, connect

THOUGHT = "Two and two make four."
REFUSAL = "I can't help with that."
FIELDS = ("reasoning_content", "reasoning")


def replying(reason: str = "stop", **message: Any) -> Callable[[Exchange], None]:
    """Answer with a message, whole or in a stream, whose texts come in pieces."""

    def reply(exchange: Exchange) -> None:
        if not exchange.body.get("stream"):
            said = {"role": "assistant", "content": None, **message}
            choice = {"index": 0, "message": said, "finish_reason": reason}
            exchange.send({"choices": [choice], "usage": USAGE})
            return
        exchange.start_events()
        for name, value in message.items():
            for piece in pieces(value):
                exchange.send_event({"choices": [{"index": 0, "delta": {name: piece}}]})
        exchange.send_event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        exchange.send_event({"choices": [], "usage": USAGE})
        exchange.send_event("[DONE]")

    return reply


def pieces(value: Any) -> list[Any]:
    return (
        [value[at : at + 5] for at in range(0, len(value), 5)]
        if isinstance(value, str)
        else [value]
    )


async def listed(stream: AsyncIterator[Any]) -> list[Any]:
    return [piece async for piece in stream]


def merged(chunks: list[Any]) -> Any:
    return sum(chunks[1:], start=chunks[0])


def reloaded(message: BaseMessage) -> BaseMessage:
    return type(message).model_validate_json(message.model_dump_json())


def chat_at(stub: StubServer, **knobs: Any) -> ChatRAGCache:
    return ChatRAGCache(base_url=stub.base_url, model="m", **{"max_retries": 0, **knobs})


def llm_at(stub: StubServer, **knobs: Any) -> RAGCacheLLM:
    return RAGCacheLLM(base_url=stub.base_url, model="m", **{"max_retries": 0, **knobs})


def langchain_ways(model: Any, asked: Any = "2 + 2") -> list[Callable[[], Any]]:
    return [
        lambda: model.invoke(asked),
        lambda: asyncio.run(model.ainvoke(asked)),
        lambda: merged(list(model.stream(asked))),
        lambda: merged(asyncio.run(listed(model.astream(asked)))),
    ]


def llama_index_ways(llm: RAGCacheLLM) -> list[Callable[[], ChatResponse]]:
    asked = [ChatMessage("2 + 2")]

    async def astream() -> ChatResponse:
        response: ChatResponse = (await listed(await llm.astream_chat(asked)))[-1]
        return response

    return [
        lambda: llm.chat(asked),
        lambda: asyncio.run(llm.achat(asked)),
        lambda: list(llm.stream_chat(asked))[-1],
        lambda: asyncio.run(astream()),
    ]


# What the model thought


@pytest.mark.parametrize("name", FIELDS)
def test_langchain_keeps_what_the_model_thought(stub: StubServer, name: str) -> None:
    stub.reply = replying(content="4", **{name: THOUGHT})
    for way in langchain_ways(chat_at(stub)):
        message = way()
        assert message.content == "4"
        assert message.additional_kwargs == {"reasoning_content": THOUGHT}
        assert [block["type"] for block in message.content_blocks] == ["reasoning", "text"]
        assert message.content_blocks[0]["reasoning"] == THOUGHT
        field = {} if name == "reasoning_content" else {"reasoning_field": name}
        metadata = {"model_name": "m", "finish_reason": "stop", **field}
        assert message.response_metadata == metadata


def test_langchain_keeps_it_in_blocks_of_the_newer_form(stub: StubServer) -> None:
    stub.reply = replying(reasoning_content=THOUGHT, content="4")
    model = chat_at(stub, output_version="v1")
    for way in langchain_ways(model):
        message = way()
        assert [block["type"] for block in message.content_blocks] == ["reasoning", "text"]
        model.invoke([HumanMessage("2 + 2"), message, HumanMessage("Sure?")])
        assert stub.seen[-1].body["messages"][1] == {
            "role": "assistant",
            "content": "4",
            "reasoning_content": THOUGHT,
        }


@pytest.mark.parametrize("name", FIELDS)
def test_llama_index_keeps_what_the_model_thought(stub: StubServer, name: str) -> None:
    stub.reply = replying(content="4", **{name: THOUGHT})
    llm = llm_at(stub)
    for way in llama_index_ways(llm):
        message = way().message
        assert message.content == "4"
        thought, text = message.blocks
        assert isinstance(thought, ThinkingBlock)
        assert isinstance(text, TextBlock)
        assert thought.content == THOUGHT
    deltas = [
        r.additional_kwargs.get("thinking_delta", "") for r in llm.stream_chat([ChatMessage("?")])
    ]
    assert "".join(deltas) == THOUGHT
    assert llm.complete("2 + 2").additional_kwargs == {"reasoning_content": THOUGHT}
    *_, last = llm.stream_complete("2 + 2")
    assert last.additional_kwargs == {"reasoning_content": THOUGHT}


@pytest.mark.parametrize("name", FIELDS)
def test_it_goes_back_under_the_servers_own_name(stub: StubServer, name: str) -> None:
    stub.reply = replying(content="4", **{name: THOUGHT})
    sent = {"role": "assistant", "content": "4", name: THOUGHT}
    chat, llm = chat_at(stub), llm_at(stub)
    for way in langchain_ways(chat):
        for message in (way(), reloaded(way())):
            chat.invoke([HumanMessage("2 + 2"), message, HumanMessage("Sure?")])
            assert stub.seen[-1].body["messages"][1] == sent
    for again in llama_index_ways(llm):
        for said in (
            again().message,
            ChatMessage.model_validate_json(again().message.model_dump_json()),
        ):
            llm.chat([ChatMessage("2 + 2"), said, ChatMessage("Sure?")])
            assert stub.seen[-1].body["messages"][1] == sent


def test_what_another_model_thought_is_not_sent(stub: StubServer) -> None:
    """Groq and Cerebras refuse a message with a field that they do not know."""
    stub.reply = replying(content="4", reasoning_content=THOUGHT)
    (said, *_), (response, *_) = (
        [way() for way in langchain_ways(chat_at(stub))],
        [way() for way in llama_index_ways(llm_at(stub))],
    )
    other_chat = ChatRAGCache(base_url=stub.base_url, model="other")
    other_llm = RAGCacheLLM(base_url=stub.base_url, model="other")
    other_chat.invoke([HumanMessage("2 + 2"), said, HumanMessage("Sure?")])
    other_llm.chat([ChatMessage("2 + 2"), response.message, ChatMessage("Sure?")])
    for seen in stub.seen[-2:]:
        assert seen.body["messages"][1] == {"role": "assistant", "content": "4"}


def test_what_an_application_wrote_is_sent(stub: StubServer) -> None:
    stub.reply = replying(content="4")
    for name in FIELDS:
        own = {name: THOUGHT}
        chat_at(stub).invoke(
            [HumanMessage("?"), AIMessage("4", additional_kwargs=own), HumanMessage("?")]
        )
        told = ChatMessage("4", role=MessageRole.ASSISTANT, additional_kwargs=own)
        llm_at(stub).chat([ChatMessage("?"), told, ChatMessage("?")])
        for seen in stub.seen[-2:]:
            assert seen.body["messages"][1] == {"role": "assistant", "content": "4", **own}


def test_thoughts_in_parts_of_the_content_are_kept_but_not_sent(stub: StubServer) -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]}
    stub.reply = replying(content=[thinking, {"type": "text", "text": "4"}])
    chat = chat_at(stub)
    for way in langchain_ways(chat):
        message = way()
        assert (message.text, message.additional_kwargs) == ("4", {"reasoning_content": THOUGHT})
    response = llm_at(stub).chat([ChatMessage("?")])
    llm_at(stub).chat([ChatMessage("?"), response.message, ChatMessage("?")])
    assert stub.seen[-1].body["messages"][1] == {"role": "assistant", "content": "4"}


@pytest.mark.parametrize("value", [None, "", 7, [], {"text": "hm"}])
def test_reasoning_that_makes_no_sense_is_none(value: Any) -> None:
    choice = {"message": {"content": "4", "reasoning_content": value, "reasoning": value}}
    chunk = AnswerParser(SamplingOptions()).read({"choices": [choice]})
    assert (chunk.text, chunk.reasoning, chunk.reasoning_field) == ("4", "", "")


def test_tokens_that_no_server_counts_are_counted_with_it(stub: StubServer) -> None:
    stub.reply = lambda exchange: exchange.send(
        {"choices": [{"message": {"content": "4", "reasoning": THOUGHT}, "finish_reason": "stop"}]}
    )
    server = connect(stub)
    counted = server.generate(CHAT).usage.completion_tokens
    assert counted == server.count_tokens(THOUGHT + "4")


def test_only_the_assistant_thinks() -> None:
    message = Message("assistant", "4", reasoning=THOUGHT, reasoning_field="reasoning")
    assert message.with_parts(["5"]).reasoning == THOUGHT
    assert message != Message("assistant", "4")
    with pytest.raises(ValueError, match="only messages of the assistant"):
        Message("user", "4", reasoning=THOUGHT)


# Agents, on a server that demands it back


@tool
def fee(plan: str) -> str:
    """Look up a fee."""
    return f"5 euro for {plan}"


def demanding(name: str) -> Callable[[Exchange], None]:
    """Like DeepSeek in its thinking mode: every call of a tool comes back with its reasoning."""
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "fee", "arguments": '{"plan": "a"}'},
    }

    def reply(exchange: Exchange) -> None:
        messages = exchange.body["messages"]
        for message in messages:
            if message.get("tool_calls") and message.get(name) != THOUGHT:
                msg = f"The `{name}` in the thinking mode must be passed back to the API."
                exchange.send({"error": {"message": msg}}, 400)
                return
        if messages[-1]["role"] == "tool":
            replying(content="It is 5 euro.", **{name: "The tool says so."})(exchange)
        elif exchange.body.get("stream"):
            calls = {"tool_calls": [{"index": 0, **call}]}
            replying("tool_calls", **{name: THOUGHT}, content="", **calls)(exchange)
        else:
            replying("tool_calls", **{name: THOUGHT}, content="", tool_calls=[call])(exchange)

    return reply


def calling(exchange: Exchange) -> None:
    demanding("reasoning_content")(exchange)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("streaming", [False, True])
def test_an_agent_of_langchain(stub: StubServer, name: str, streaming: bool) -> None:
    agents = pytest.importorskip("langchain.agents")
    stub.reply = demanding(name)
    agent = agents.create_agent(chat_at(stub, streaming=streaming), [fee])
    messages: list[BaseMessage] = [HumanMessage("What is the fee?")]
    messages = agent.invoke({"messages": messages})["messages"]
    messages = asyncio.run(agent.ainvoke({"messages": [*messages, HumanMessage("Sure?")]}))[
        "messages"
    ]
    assert messages[-1].content == "It is 5 euro."
    assert len(stub.seen) == 4
    assert stub.seen[-1].body["messages"][3][name] == "The tool says so."


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("streaming", [False, True])
async def test_an_agent_of_llama_index(stub: StubServer, name: str, streaming: bool) -> None:
    stub.reply = demanding(name)
    tools: list[Any] = [FunctionTool.from_defaults(lambda plan: f"5 euro for {plan}", name="fee")]
    agent = FunctionAgent(tools=tools, llm=llm_at(stub), streaming=streaming)
    memory = ChatMemoryBuffer.from_defaults(token_limit=1000)
    for question in ("What is the fee?", "Sure?"):
        assert str(await agent.run(question, memory=memory)) == "It is 5 euro."
    assert len([seen for seen in stub.seen if seen.body]) == 4


# Why the model refuses, and how the answer ended


class Fee(BaseModel):
    """A fee."""

    fee: int


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "refusal": REFUSAL},
        {"content": "", "refusal": REFUSAL},
        {"content": [{"type": "refusal", "refusal": REFUSAL}]},
    ],
)
def test_a_refusal_is_kept(stub: StubServer, message: dict[str, Any]) -> None:
    stub.reply = replying(**message)
    chat, llm = chat_at(stub), llm_at(stub)
    for way in langchain_ways(chat):
        said = way()
        assert (said.content, said.additional_kwargs) == ("", {"refusal": REFUSAL})
        chat.invoke([HumanMessage("?"), said, HumanMessage("Why?")])
        assert stub.seen[-1].body["messages"][1] == {"role": "assistant", "content": REFUSAL}
    for again in llama_index_ways(llm):
        response = again()
        assert response.message.additional_kwargs == {"refusal": REFUSAL}
        llm.chat([ChatMessage("?"), response.message, ChatMessage("Why?")])
        assert stub.seen[-1].body["messages"][1] == {"role": "assistant", "content": REFUSAL}
    assert llm.complete("?").additional_kwargs == {"refusal": REFUSAL}


def structured_ways(stub: StubServer) -> list[Callable[[], Any]]:
    chain = chat_at(stub).with_structured_output(Fee)
    llm, prompt = llm_at(stub), PromptTemplate("?")

    async def astream() -> Any:
        return await listed(await llm.astream_structured_predict(Fee, prompt))

    return [
        *langchain_ways(chain),
        lambda: llm.structured_predict(Fee, prompt),
        lambda: list(llm.stream_structured_predict(Fee, prompt)),
        lambda: asyncio.run(llm.astructured_predict(Fee, prompt)),
        lambda: asyncio.run(astream()),
        lambda: llm.as_structured_llm(Fee).complete("?"),
    ]


@pytest.mark.parametrize("content", ["", '{"fee": 5', '{"fee": 5}'])
def test_structured_output_says_that_the_model_refused(stub: StubServer, content: str) -> None:
    stub.reply = replying(content=content, refusal=REFUSAL)
    for way in structured_ways(stub):
        with pytest.raises(StructuredOutputError, match=f"refused to answer: {REFUSAL}") as caught:
            way()
        assert (caught.value.refusal, caught.value.text) == (REFUSAL, content)
        assert "max_tokens" not in str(caught.value)


FILTERS = [
    *("content_filter", "SAFETY", "prohibited_content", "refusal", "RECITATION", "sensitive"),
]


@pytest.mark.parametrize("word", FILTERS)
@pytest.mark.parametrize("content", ["", '{"fee": 5', '{"fee": 5}'])
def test_structured_output_says_that_a_filter_cut_it_off(
    stub: StubServer, word: str, content: str
) -> None:
    stub.reply = replying(word, content=content)
    for way in structured_ways(stub):
        with pytest.raises(StructuredOutputError, match=r"filter .* cut the answer off") as caught:
            way()
        assert caught.value.finish_reason == "content_filter"
        assert "max_tokens" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        *((word, "content_filter") for word in FILTERS),
        *(("error", "abort"), ("insufficient_system_resource", "abort")),
    ],
)
def test_why_an_answer_was_cut_off_is_kept(stub: StubServer, word: str, reason: str) -> None:
    stub.reply = replying(word, content="So f")
    native = {} if word == reason else {"native_finish_reason": word}
    for way in langchain_ways(chat_at(stub)):
        message = way()
        expected = {"model_name": "m", "finish_reason": reason, **native}
        assert (message.content, message.response_metadata) == ("So f", expected)
    for again in llama_index_ways(llm_at(stub)):
        raw: Any = again().raw
        assert {name: raw.get(name) for name in ("finish_reason", *native)} == {
            "finish_reason": reason,
            **native,
        }
    generation = LangChainLLM(base_url=stub.base_url, model="m").generate(["?"]).generations[0][0]
    assert generation.generation_info is not None
    assert generation.generation_info["finish_reason"] == reason


def test_a_call_that_a_filter_cut_off_has_no_arguments_made_up(stub: StubServer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "fee", "arguments": ""}}
    stub.reply = replying("content_filter", tool_calls=[{"index": 0, **call}])
    for way in langchain_ways(chat_at(stub).bind_tools([fee])):
        assert way().tool_calls == []


# Calls in the form before tools


def test_a_function_call_is_a_tool_call(stub: StubServer) -> None:
    function = {"name": "fee", "arguments": '{"plan": "a"}'}
    others: list[dict[str, Any]] = [{}, {"tool_calls": None}, {"tool_calls": []}]
    for more in others:
        stub.reply = replying("function_call", function_call=function, **more)
        for way in langchain_ways(chat_at(stub).bind_tools([fee])):
            message = way()
            (call,) = message.tool_calls
            assert (call["name"], call["args"], bool(call["id"])) == ("fee", {"plan": "a"}, True)
            assert message.response_metadata["finish_reason"] == "tool_calls"
        llm = llm_at(stub)
        for again in llama_index_ways(llm):
            (selected,) = llm.get_tool_calls_from_response(again())
            assert (selected.tool_name, selected.tool_kwargs) == ("fee", {"plan": "a"})


def test_a_function_call_in_pieces() -> None:
    parser = AnswerParser(SamplingOptions())
    deltas = [{"name": "fee", "arguments": ""}, {"arguments": '{"plan"'}, {"arguments": ': "a"}'}]
    read = [
        parser.read({"choices": [{"delta": {"function_call": delta}}]}).tool_calls
        for delta in deltas
    ]
    assert [piece.name for (piece,) in read] == ["fee", "", ""]
    assert "".join(piece.arguments for (piece,) in read) == '{"plan": "a"}'


# What others keep of a message


@pytest.mark.parametrize("said", [{"reasoning": THOUGHT, "content": "4"}, {"refusal": REFUSAL}])
def test_a_kept_answer_and_a_history_have_it(stub: StubServer, said: dict[str, Any]) -> None:
    stub.reply = replying(**said)
    message = chat_at(stub).invoke("2 + 2")
    assert CODEC.decode(CODEC.encode(message)) == message
    history = HalfTruncationHistory(1000, count_tokens=len)
    history.add_messages([HumanMessage("2 + 2"), message])
    saved = json.loads(json.dumps(history.to_dict()))
    restored = HalfTruncationHistory.from_dict(saved, count_tokens=len)
    assert restored.messages[1] == message

    response = llm_at(stub).chat([ChatMessage("2 + 2")])
    memory = HalfTruncationMemory(1000, count_tokens=len)
    memory.put_messages([ChatMessage("2 + 2"), response.message])
    kept = HalfTruncationMemory.from_dict(memory.to_dict(), count_tokens=len).get()[1]
    assert (kept.blocks, kept.additional_kwargs) == (
        response.message.blocks,
        response.message.additional_kwargs,
    )
