"""Answers that are none are not kept: the next who asks gets an answer.

The first answer is empty, cut off, filtered, refused, broken or halfway. The second time, the model
has a right answer, which has to arrive, and is then served from the cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    PydanticOutputParser,
    SimpleJsonOutputParser,
    StrOutputParser,
    XMLOutputParser,
)
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tools import ToolException
from pydantic import BaseModel

from ragcache_integrations.langchain import cached_node
from tests.attacks.scripted import (
    CALL,
    GOOD,
    HALF,
    PROMPT,
    QUESTION,
    WAYS,
    Script,
    cache_of,
    failing_tool,
    finished,
    joined,
    model_of,
    pieces_of,
    text_of,
)


def in_ways(
    names: Iterable[str], ways: Iterable[Any], few: Iterable[str], others: Iterable[Any]
) -> list[tuple[str, Any]]:
    """Every case in some ways, and a few of them in the others, which judge by the same code."""
    return [*itertools.product(names, ways), *itertools.product(few, others)]


BROKEN_CALL = {"name": "f", "args": "{", "id": "1", "error": "cut", "type": "invalid_tool_call"}

NONE: dict[str, Any] = {
    "empty text": "",
    "white space": " \n\t",
    "no-break and zero-width spaces": "\u00a0\u200b",
    "None": None,
    "empty list": [],
    "empty dict": {},
    "empty message": AIMessage(""),
    "message of white space": AIMessage(" \n"),
    "message without parts": AIMessage([]),
    "message of empty parts": AIMessage([{"type": "text", "text": ""}]),
    "message of thoughts alone": AIMessage([{"type": "thinking", "thinking": "hm"}]),
    "message of reasoning alone": AIMessage("", additional_kwargs={"reasoning_content": "hm"}),
    "stopped and empty": finished("stop", ""),
    "length": finished("length"),
    "length, and empty": finished("length", ""),
    "content filter": finished("content_filter", ""),
    "content filter, midway": finished("content_filter"),
    "abort": finished("abort"),
    "aborted": finished("aborted"),
    "error": finished("error"),
    "error, with text": finished("error", "Internal error"),
    "cancelled": finished("cancelled"),
    "unfinished": finished("unknown", ""),
    "Anthropic's max_tokens": finished("max_tokens", key="stop_reason"),
    "Anthropic's refusal": finished("refusal", key="stop_reason"),
    "Anthropic's full window": finished("model_context_window_exceeded", key="stop_reason"),
    "Gemini's MAX_TOKENS": finished("MAX_TOKENS"),
    "Gemini's SAFETY": finished("SAFETY", ""),
    "Gemini's SAFETY, midway": finished("SAFETY"),
    "Gemini's RECITATION": finished("RECITATION"),
    "Bedrock's guardrail": finished("guardrail_intervened", "Sorry.", key="stopReason"),
    "Ollama's length": finished("length", key="done_reason"),
    "Mistral's model_length": finished("model_length"),
    "DeepSeek's resources": finished("insufficient_system_resource"),
    "OpenAI's incomplete": AIMessage(
        HALF,
        response_metadata={
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
        },
    ),
    "OpenAI's failed": AIMessage("", response_metadata={"status": "failed"}),
    "refusal": AIMessage("", additional_kwargs={"refusal": "I can't help with that."}),
    "refusal, a part": AIMessage([{"type": "refusal", "refusal": "I can't help with that."}]),
    "only a broken call of a tool": AIMessage("", invalid_tool_calls=[BROKEN_CALL]),
    "dict of an empty answer": {"answer": "", "sources": ["1"]},
    "dict of None": {"answer": None},
    "dict of a message that was cut off": {"answer": finished("length"), "sources": ["1"]},
    "deep within": {"result": {"messages": [finished("length")]}},
    "list of a message that was cut off": [finished("content_filter")],
    "nothing parsed": {
        "raw": AIMessage("{"),
        "parsed": None,
        "parsing_error": ValueError("no JSON"),
    },
    "nothing parsed, and why is a text": {
        "raw": AIMessage("{"),
        "parsed": None,
        "parsing_error": "no JSON",
    },
}

ANSWERS: dict[str, Any] = {
    "text": GOOD,
    "message": AIMessage(GOOD),
    "stop": finished("stop", GOOD),
    "end_turn": finished("end_turn", GOOD, "stop_reason"),
    "STOP": finished("STOP", GOOD),
    "eos_token": finished("eos_token", GOOD),
    "done": finished("stop", GOOD, "done_reason"),
    "completed": AIMessage(GOOD, response_metadata={"status": "completed"}),
    "stop_sequence": finished("stop_sequence", GOOD, "stop_reason"),
    "no": "no",
    "zero": "0",
    "number": 0,
    "false": False,
    "dict": {"answer": GOOD, "sources": []},
    "dict with nothing beside": {"answer": GOOD, "warning": None},
    "parsed": {"raw": AIMessage("{}"), "parsed": {"fee": 5}, "parsing_error": None},
    "what speaks of failures": "finish_reason content_filter means: Empty Response, an error.",
    "message with thoughts": AIMessage(
        [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": GOOD}]
    ),
    "only a call of a tool": AIMessage("", tool_calls=[CALL]),
    "message that names a refusal of None": AIMessage(GOOD, additional_kwargs={"refusal": None}),
}


@pytest.mark.parametrize(
    ("bad", "way"),
    in_ways(
        NONE,
        ("invoke", "stream"),
        ("empty text", "length", "refusal, a part", "deep within"),
        ("ainvoke", "astream"),
    ),
)
def test_an_answer_that_is_none_is_not_served(bad: str, way: str) -> None:
    script = Script(NONE[bad], GOOD)
    cached = cache_of(RunnableLambda(lambda _: script.next()))
    WAYS[way](cached)
    assert text_of(WAYS[way](cached)) == GOOD
    assert text_of(cached.invoke(QUESTION)) == GOOD
    assert script.count == 2, "the right answer was kept"


@pytest.mark.parametrize(
    ("good", "way"),
    in_ways(ANSWERS, ("invoke", "stream"), ("text", "STOP", "dict"), ("ainvoke", "astream")),
)
def test_an_answer_that_is_one_is_kept(good: str, way: str) -> None:
    script = Script(ANSWERS[good], "another answer")
    cached = cache_of(RunnableLambda(lambda _: script.next()))
    for _ in range(2):
        assert text_of(WAYS[way](cached)) == text_of(ANSWERS[good])
    assert script.count == 1


@pytest.mark.parametrize("key", ["answer", "text"])
def test_an_answer_under_a_key(key: str) -> None:
    script = Script({key: " ", "context": [1]}, {key: GOOD, "context": [1]})
    cached = cache_of(RunnableLambda(lambda _: script.next()), answer_key=key)
    cached.invoke(QUESTION)
    assert cached.invoke(QUESTION)[key] == GOOD
    assert cached.invoke(QUESTION)[key] == GOOD
    assert script.count == 2


PARSED = ["none", "text", "in a dict", "after a function"]
ENDS = ["length", "content_filter", "abort", "error", "max_tokens", "SAFETY"]


@pytest.mark.parametrize(
    ("parser", "end", "way"),
    [
        *(("text", end, "stream") for end in ENDS),
        *((parser, "content_filter", way) for parser in PARSED for way in WAYS),
    ],
)
def test_a_model_that_was_stopped_short(parser: str, end: str, way: str) -> None:
    """Its message says so; the text that a parser makes of it does not."""
    model, script = model_of(finished(end), finished("stop", GOOD))
    chain: Any = PROMPT | model
    if parser == "text":
        chain = chain | StrOutputParser()
    elif parser == "in a dict":
        chain = RunnableParallel(answer=chain | StrOutputParser(), sources=lambda _: "1")
    elif parser == "after a function":
        chain = chain | RunnableLambda(lambda message: message.content.strip())
    cached = cache_of(chain)
    WAYS[way](cached)
    second = WAYS[way](cached)
    second = second["answer"] if parser == "in a dict" else text_of(second)
    assert second.strip() == GOOD
    WAYS[way](cached)
    assert script.count == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_chain_that_calls_a_tool_before_it_answers_is_cached(way: str) -> None:
    """Only the last word counts: a call of a tool within a chain is no failure."""
    model, script = model_of(
        AIMessage("", tool_calls=[CALL], response_metadata={"finish_reason": "tool_calls"}),
        finished("stop", GOOD),
        finished("stop", "another"),
    )
    chain = PROMPT | model | RunnableLambda(lambda _: "again") | model | StrOutputParser()
    cached = cache_of(chain)
    for _ in range(2):
        assert WAYS[way](cached).strip() == GOOD
    assert script.count == 2


@pytest.mark.parametrize("way", WAYS)
def test_an_error_is_not_kept(way: str) -> None:
    script = Script(RuntimeError("down"), GOOD)

    def answer(_: Any) -> Any:
        step = script.next()
        if isinstance(step, Exception):
            raise step
        return step

    cached = cache_of(RunnableLambda(answer))
    with pytest.raises(RuntimeError):
        WAYS[way](cached)
    assert WAYS[way](cached) == GOOD


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("kind", ["text", "message", "dict"])
def test_a_stream_that_breaks_midway(kind: str, later: bool) -> None:
    count: list[int] = []

    def piece(text: str) -> Any:
        if kind == "text":
            return text
        if kind == "message":
            return AIMessageChunk(content=text)
        from langchain_core.runnables.utils import AddableDict  # noqa: PLC0415

        return AddableDict(answer=text)

    def read(answer: Any) -> str:
        return str(answer["answer"] if kind == "dict" else text_of(answer))

    def stream(_: Iterator[Any]) -> Iterator[Any]:
        count.append(1)
        yield piece("The fee ")
        if len(count) == 1:
            raise ConnectionError("reset")
        yield piece("is 5 euro.")

    async def astream(_: AsyncIterator[Any]) -> AsyncIterator[Any]:
        for each in stream(iter(())):
            yield each

    from langchain_core.runnables import RunnableGenerator  # noqa: PLC0415

    cached = cache_of(RunnableGenerator(stream, astream))
    with pytest.raises(ConnectionError):
        WAYS["astream" if later else "stream"](cached)
    assert read(WAYS["ainvoke" if later else "invoke"](cached)) == GOOD
    assert read(WAYS["astream" if later else "stream"](cached)) == GOOD
    assert len(count) == 2


@pytest.mark.parametrize("later", [False, True])
def test_a_stream_that_its_reader_leaves(later: bool) -> None:
    model, _ = model_of(finished("stop", GOOD))
    cached = cache_of(PROMPT | model | StrOutputParser())

    async def leave() -> None:
        stream = cached.astream(QUESTION)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    if later:
        asyncio.run(leave())
    else:
        stream = cached.stream(QUESTION)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    for way in WAYS.values():
        assert way(cached).strip() == GOOD


def test_a_task_that_is_cancelled_leaves_nothing() -> None:
    count: list[int] = []

    async def answer(_: Any) -> str:
        count.append(1)
        if len(count) == 1:
            await asyncio.sleep(30)
        return GOOD

    cached = cache_of(RunnableLambda(answer))

    async def ask() -> str:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(cached.ainvoke(QUESTION), 0.05)
        return str(await cached.ainvoke(QUESTION))

    assert asyncio.run(ask()) == GOOD
    assert len(count) == 2


# Streams of values that are given whole each time, a little more complete.

VALUES: dict[str, Any] = {
    "list of objects": [{"name": "John Smith", "age": 3}, {"name": "Anna", "age": 44}],
    "list of texts": ["John Smith", "Anna Maria Ray", "Bo"],
    "list of lists": [["a", "bc de"], ["c d e"]],
    "list of numbers": [1, 23, 456],
    "list of one": ["one text of some words"],
    "list of equal ones": ["a b", "a b", "a b"],
    "object": {"names": ["John Smith", "Anna"]},
    "object of texts": {"a": "some words", "b": "more words"},
    "object of objects": {"a": {"b": {"c": "some words"}}, "d": {"e": [1, 2]}},
    "object of lists": {"a": [[1, 2], [3]], "b": [{"c": ["x y"]}]},
    "object of nothing": {"a": None, "b": "", "c": [], "d": "some words"},
    "text": "John Smith is here",
    "number": 12345,
    "true": True,
    "long list": [{"n": number, "t": f"text {number}"} for number in range(12)],
}

PARSERS: dict[str, Any] = {
    "JSON": JsonOutputParser,
    "simple JSON": SimpleJsonOutputParser,
    "JSON, then a function": lambda: JsonOutputParser() | RunnableLambda(lambda value: value),
    "in a dict": lambda: RunnableParallel(answer=JsonOutputParser(), other=lambda _: "y"),
    "in two dicts": lambda: RunnableParallel(a=RunnableParallel(b=JsonOutputParser())),
    "assigned": lambda: (
        RunnablePassthrough() | RunnableParallel(q=lambda _: "q", answer=JsonOutputParser())
    ),
}


def json_chain(parser: str, value: Any) -> tuple[Any, Script]:
    model, script = model_of(AIMessage(json.dumps(value)))
    return PROMPT | model | PARSERS[parser](), script


@pytest.mark.parametrize(
    ("value", "parser", "later"),
    [
        *((value, "JSON", False) for value in VALUES),
        *itertools.product(("list of texts", "object of lists"), PARSERS, (False, True)),
    ],
)
def test_what_was_streamed_bit_by_bit_is_served_whole(value: str, parser: str, later: bool) -> None:
    right = json_chain(parser, VALUES[value])[0].invoke({"input": QUESTION})
    cached = cache_of(json_chain(parser, VALUES[value])[0])
    pieces_of(cached, later)
    assert cached.invoke(QUESTION) == right
    assert asyncio.run(cached.ainvoke(QUESTION)) == right


@pytest.mark.parametrize("value", ["list of objects", "object", "text"])
def test_what_was_invoked_is_streamed_whole(value: str) -> None:
    chain, script = json_chain("JSON", VALUES[value])
    cached = cache_of(chain)
    right = cached.invoke(QUESTION)
    assert list(cached.stream(QUESTION))[-1] == right
    assert cached.invoke(QUESTION) == right
    assert script.count == 1


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("value", ["list of objects", "list of texts", "object of lists"])
def test_a_reader_of_a_hit_in_a_stream_sees_the_same_end(value: str, later: bool) -> None:
    cached = cache_of(json_chain("JSON", VALUES[value])[0])
    for _ in range(3):
        assert pieces_of(cached, later)[-1] == VALUES[value]


class Fee(BaseModel):
    name: str = ""
    amounts: list[int] = []


OTHER_PARSERS: dict[str, tuple[Any, str]] = {
    "comma separated": (CommaSeparatedListOutputParser, "a b, c d, e f"),
    "XML": (XMLOutputParser, "<r><a>one two</a><b>three</b><a>four</a></r>"),
    "pydantic": (
        lambda: PydanticOutputParser(pydantic_object=Fee),
        json.dumps({"name": "a b", "amounts": [1, 2]}),
    ),
    "JSON of a class": (
        lambda: JsonOutputParser(pydantic_object=Fee),
        json.dumps({"name": "a b", "amounts": [1, 2]}),
    ),
    "JSON in a fence": (JsonOutputParser, '```json\n[{"a": "b c"}, {"d": "e f"}]\n```'),
    "changes of JSON": (lambda: JsonOutputParser(diff=True), '[{"a": "b c"}, {"d": "e f"}]'),
}


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("parser", OTHER_PARSERS)
def test_other_parsers_that_stream(parser: str, later: bool) -> None:
    make, text = OTHER_PARSERS[parser]
    right = (PROMPT | model_of(AIMessage(text))[0] | make()).invoke({"input": QUESTION})
    cached = cache_of(PROMPT | model_of(AIMessage(text))[0] | make())
    pieces_of(cached, later)
    assert cached.invoke(QUESTION) == right


def test_a_list_that_a_function_streams_by_its_parts() -> None:
    """What is to be added is still added: pieces of a list, each an item."""
    from langchain_core.runnables import RunnableGenerator  # noqa: PLC0415

    def stream(_: Iterator[Any]) -> Iterator[Any]:
        for item in ("a", "b", "c"):
            yield [item]

    cached = cache_of(RunnableGenerator(stream))
    assert joined(list(cached.stream(QUESTION))) == ["a", "b", "c"]
    assert cached.invoke(QUESTION) == ["a", "b", "c"]


# Tools and nodes.


NO_RESULTS: list[tuple[Any, dict[str, Any]]] = [
    (ToolException("down"), {"handle_tool_error": True}),
    (ToolException("down"), {"handle_tool_error": "The archive is down."}),
    (ToolException("down"), {"handle_tool_error": lambda error: f"down: {error}"}),
    ("", {}),
    (" \n", {}),
    (None, {}),
    ([], {}),
    ({}, {}),
    (finished("length"), {}),
    (finished("content_filter", ""), {}),
    (AIMessage(""), {}),
    ({"answer": finished("length")}, {}),
]
NO_STATES: list[Any] = [
    {},
    None,
    {"messages": [finished("length")]},
    {"messages": [AIMessage("")]},
    {"messages": [finished("content_filter", "")]},
    {"messages": finished("error")},
    {"answer": finished("length")},
]


@pytest.mark.parametrize(
    ("bad", "settings", "later"),
    [
        *((bad, settings, False) for bad, settings in NO_RESULTS),
        *((bad, settings, True) for bad, settings in NO_RESULTS[::4]),
    ],
)
def test_a_tool_that_found_nothing(bad: Any, settings: Any, later: bool) -> None:
    tool, script = failing_tool(bad, GOOD, **settings)

    def ask() -> Any:
        arguments = {"query": QUESTION}
        return asyncio.run(tool.ainvoke(arguments)) if later else tool.invoke(arguments)

    ask()
    assert ask() == GOOD
    assert ask() == GOOD
    assert script.count == 2


@pytest.mark.parametrize(
    ("bad", "later"),
    [*((bad, False) for bad in NO_STATES), *((bad, True) for bad in NO_STATES[1:3])],
)
def test_a_node_that_found_nothing(bad: Any, later: bool) -> None:
    script = Script(bad, {"answer": GOOD})
    node = cached_node(RunnableLambda(lambda _: script.next()), reads=["question"])

    def ask() -> Any:
        state = {"question": QUESTION}
        return asyncio.run(node.ainvoke(state)) if later else node.invoke(state)

    ask()
    assert ask() == {"answer": GOOD}
    assert ask() == {"answer": GOOD}
    assert script.count == 2
