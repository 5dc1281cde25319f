"""What is no answer, by what is in it and by what its provider tells of it."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.types import Command
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.base.response.schema import PydanticResponse, Response
from pydantic import BaseModel

from ragcache_integrations.answers.finish import forget_usage, is_something, unfinished
from ragcache_integrations.answers.langchain import values
from ragcache_integrations.answers.llama_index import why_none


class Gemini(Enum):
    """Reasons as Google's client has them."""

    STOP = 1
    MAX_TOKENS = 2


class Raw(BaseModel):
    """A provider's response as its client returns it."""

    choices: list[Any]


FINISHED: dict[str, Any] = {
    "nothing told": {"model_name": "m"},
    "OpenAI": {"finish_reason": "stop", "logprobs": None, "refusal": None},
    "OpenAI's tools": {"finish_reason": "tool_calls"},
    "OpenAI's responses": {"status": "completed", "incomplete_details": None, "error": None},
    "OpenAI's client": Raw(choices=[{"finish_reason": "stop", "message": {"refusal": None}}]),
    "Azure": {"content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}},
    "Anthropic": {"stop_reason": "end_turn", "stop_sequence": None},
    "Anthropic's stop": {"stop_reason": "stop_sequence", "stop_sequence": "\n"},
    "Gemini": {"finish_reason": "STOP", "safety_ratings": [{"blocked": False}]},
    "Gemini's enum": {"finish_reason": Gemini.STOP},
    "Gemini's prompt": {"prompt_feedback": {"block_reason": 0, "safety_ratings": []}},
    "Bedrock": {"stopReason": "end_turn", "ResponseMetadata": {"HTTPStatusCode": 200}},
    "Mistral": {"finish_reason": "stop"},
    "Ollama": {"done": True, "done_reason": "stop"},
    "Cohere": {"finish_reason": "COMPLETE"},
    "xAI": {"finish_reason": "REASON_STOP"},
    "vLLM": {"choices": [{"finish_reason": "stop", "stop_reason": 128009}]},
    "vLLM's stop string": {"finish_reason": "stop", "stop_reason": "length"},
    "two pieces": {"finish_reason": "stopstop"},
    "not said": {"finish_reason": None, "stop_reason": ""},
}
UNFINISHED: dict[str, Any] = {
    "OpenAI": {"finish_reason": "length"},
    "OpenAI's filter": {"finish_reason": "content_filter"},
    "OpenAI's refusal": {"refusal": "I can't help with that."},
    "OpenAI's responses": {"status": "incomplete"},
    "OpenAI's details": {"incomplete_details": {"reason": "max_output_tokens"}},
    "OpenAI's failure": {"status": "failed", "error": {"code": "server_error"}},
    "OpenAI's client": Raw(choices=[{"finish_reason": "length", "message": {}}]),
    "Azure": {"content_filter_results": {"hate": {"filtered": True, "severity": "high"}}},
    "Anthropic": {"stop_reason": "max_tokens"},
    "Anthropic's refusal": {"stop_reason": "refusal"},
    "Anthropic's pause": {"stop_reason": "pause_turn"},
    "Anthropic's window": {"stop_reason": "model_context_window_exceeded"},
    "Gemini": {"finish_reason": "MAX_TOKENS"},
    "Gemini's filter": {"finish_reason": "SAFETY"},
    "Gemini's sources": {"finish_reason": "RECITATION"},
    "Gemini's enum": {"finish_reason": Gemini.MAX_TOKENS},
    "Gemini's prompt": {"prompt_feedback": {"block_reason": "SAFETY"}},
    "Gemini's ratings": {"safety_ratings": [{"category": "x", "blocked": True}]},
    "Bedrock": {"stopReason": "guardrail_intervened"},
    "Bedrock's guardrail": {"amazon-bedrock-guardrailAction": "INTERVENED"},
    "Bedrock's tokens": {"stop_reason": "max_tokens"},
    "Mistral": {"finish_reason": "model_length"},
    "Ollama": {"done_reason": "length"},
    "Ollama's loading": {"done": True, "done_reason": "load"},
    "Cohere": {"finish_reason": "ERROR_TOXIC"},
    "DeepSeek": {"finish_reason": "insufficient_system_resource"},
    "vLLM": {"choices": [{"finish_reason": "abort", "stop_reason": None}]},
    "not known": {"finish_reason": "something new"},
    "an error": {"error": "overloaded"},
    "deep": {"raw": {"candidates": [{"finishReason": "SAFETY"}]}},
}


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_answer(name: str) -> None:
    assert unfinished(FINISHED[name]) is None


@pytest.mark.parametrize("name", UNFINISHED)
def test_an_unfinished_answer(name: str) -> None:
    assert unfinished(UNFINISHED[name])


def test_metadata_in_circles_or_of_any_size_take_no_time() -> None:
    circle: dict[str, Any] = {"many": [{"a": {"b": index}} for index in range(100_000)]}
    circle["itself"] = circle
    assert unfinished(circle) is None


@pytest.mark.parametrize(
    "value",
    [None, "", " \n", "\u200b\ufeff", [], {}, [""], {"a": None, "b": [" "]}, ValueError("no")],
)
def test_what_says_nothing(value: Any) -> None:
    assert not is_something(value)


@pytest.mark.parametrize("value", ["a", ".", 0, False, [0], {"a": "", "b": 0}, b"a", object()])
def test_what_says_something(value: Any) -> None:
    assert is_something(value)


def test_what_counts_usage_is_set_to_zero() -> None:
    told: dict[Any, Any] = {
        "token_usage": {"total_tokens": 3, "cost": 0.5, "details": [{"cached_tokens": 1}]},
        "usage": Spent(total_tokens=3),
        "prompt_eval_count": 7,
        "total_duration": 9,
        "prompt_tokens": 5,
        "model_name": "m",
        "cached": True,
        7: 7,
    }
    forget_usage(told)
    assert told == {
        "token_usage": {"total_tokens": 0, "cost": 0.0, "details": [{"cached_tokens": 0}]},
        "usage": Spent(total_tokens=0),
        "prompt_eval_count": 0,
        "total_duration": 0,
        "prompt_tokens": 0,
        "model_name": "m",
        "cached": True,
        7: 7,
    }
    response = Answered(usage=Spent(total_tokens=3), id=7)
    forget_usage(response)
    assert response == Answered(usage=Spent(total_tokens=0), id=7)
    forget_usage(None)


class Spent(BaseModel):
    """Usage as a provider's client has it."""

    total_tokens: int


class Answered(BaseModel):
    """A response as a provider's client has it."""

    usage: Spent
    id: int


CUT = AIMessage("The steps are: first,", response_metadata={"finish_reason": "length"})
CALL = {"name": "search", "args": {}, "id": "1"}


class Reply(BaseModel):
    text: str


@pytest.mark.parametrize(
    "answer",
    [
        CUT,
        AIMessage(""),
        AIMessage([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": " "}]),
        AIMessage("", additional_kwargs={"refusal": "I can't help."}),
        AIMessage("a", invalid_tool_calls=[{**CALL, "args": "{", "error": None}]),
        ToolMessage("timeout", tool_call_id="1", status="error"),
        {"answer": "", "context": [Document("rome")]},
        {"answer": CUT},
        {"reply": "", "sources": [Document("rome")]},
        {"own": "", "sources": [Document("rome")]},
        {"question": "who", "own": ""},
        {"answer": {"text": ""}},
        {"answer": "sorry", "error": "timeout"},
        {"raw": AIMessage("a"), "parsed": None, "parsing_error": ValueError("no")},
        {"raw": AIMessage("a"), "parsed": None, "parsing_error": None},
        {"messages": [HumanMessage("who"), AIMessage("")]},
        [HumanMessage("who"), AIMessage("")],
        [HumanMessage("who"), CUT, AIMessage("Homer")],
        Command(update={"messages": [CUT]}),
        Command(update={"answer": ""}),
        {"role": "assistant", "content": ""},
        {"choices": [{"finish_reason": "length", "message": {"content": "a"}}]},
        Reply(text=" "),
        (CUT, "b"),
    ],
)
def test_what_langchain_s_chains_return_that_is_no_answer(answer: Any) -> None:
    assert values.why_none(answer, inputs=["question"])


@pytest.mark.parametrize(
    "answer",
    [
        AIMessage("Homer", response_metadata={"finish_reason": "stop"}),
        AIMessage("", tool_calls=[CALL]),
        AIMessage([{"type": "image_url", "image_url": {"url": "data:"}}]),
        {"answer": "Homer", "error": None, "note": ""},
        {"answer": 0},
        {"documents": [Document("rome")]},
        [Document("")],
        {"raw": AIMessage("", tool_calls=[CALL]), "parsed": Reply(text="a"), "parsing_error": None},
        {"messages": [HumanMessage(""), AIMessage("Homer")]},
        {"status": "failed", "order": 7},
        Command(goto="search"),
        Reply(text="Homer"),
        "Empty Response, that is what it said",
        7,
    ],
)
def test_what_langchain_s_chains_return_that_is_one(answer: Any) -> None:
    assert values.why_none(answer, inputs=["question"]) is None


def test_the_name_of_the_answer_decides() -> None:
    answer = {"answer": "Homer", "mine": ""}
    assert values.why_none(answer) is None
    assert values.why_none(answer, "mine")


@pytest.mark.parametrize(
    "answer",
    [
        Response(None),
        Response(" "),
        Response("Empty Response"),
        Response("None"),
        Response("The steps are: first,", metadata={"finish_reason": "length"}),
        PydanticResponse(response=Reply(text="")),
        CompletionResponse(text="first,", raw={"choices": [{"finish_reason": "length"}]}),
        ChatResponse(message=ChatMessage(content="a"), raw={"stop_reason": "refusal"}),
        ChatResponse(message=ChatMessage(content="")),
        {"answer": Response("Empty Response")},
        [],
    ],
)
def test_what_llama_index_returns_that_is_no_answer(answer: Any) -> None:
    assert why_none(answer)


@pytest.mark.parametrize(
    "answer",
    [
        Response("Homer", metadata={"1": {"finish_reason": "of a node"}}),
        PydanticResponse(response=Reply(text="Homer")),
        ChatResponse(message=ChatMessage(content="", additional_kwargs={"tool_calls": [CALL]})),
        CompletionResponse(text="Homer", raw={"finish_reason": "stop"}),
        ["Homer"],
    ],
)
def test_what_llama_index_returns_that_is_one(answer: Any) -> None:
    assert why_none(answer) is None
