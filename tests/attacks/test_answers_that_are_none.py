"""Answers that are none are not kept: the next who asks gets an answer.

The first answer is empty, cut off, filtered, refused, broken or halfway. The second time, the model
has a right answer, which has to arrive, and is then served from the cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers import (
    CommaSeparatedListOutputParser,
    JsonOutputParser,
    PydanticOutputParser,
    SimpleJsonOutputParser,
    StrOutputParser,
    XMLOutputParser,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tools import StructuredTool, ToolException
from llama_index.core.base.response.schema import (
    AsyncStreamingResponse,
    PydanticResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.llms.callbacks import llm_completion_callback
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer, get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import FunctionTool, ToolOutput
from pydantic import BaseModel

from ragcache_integrations import llama_index as llama
from ragcache_integrations.langchain import AnswerCache, cached_node, cached_tool
from tests.answers.traffic import llama_index_embeddings

QUESTION = "what is the fee"
GOOD = "The fee is 5 euro."
HALF = "The three steps are: first,"


class Script:
    """Gives one thing after the other, the last one for ever."""

    def __init__(self, *steps: Any) -> None:
        self.steps, self.count = steps, 0

    def next(self) -> Any:
        self.count += 1
        return self.steps[min(self.count, len(self.steps)) - 1]


SCRIPTS: list[Script] = []
"""Models take theirs from here: an attribute of their own that changes would end all answers."""


def cache_of(chain: Any, **settings: Any) -> AnswerCache:
    return AnswerCache(
        chain=chain,
        retriever=RunnableLambda(lambda _: [Document("The fee is 5 euro.", id="1")]),
        documents_key="context",
        tolerance=0,
        **settings,
    )


def joined(pieces: list[Any]) -> Any:
    whole = None
    for piece in pieces:
        whole = piece if whole is None else whole + piece
    return whole


def streamed(cached: Any) -> Any:
    return joined(list(cached.stream(QUESTION)))


def streamed_later(cached: Any) -> Any:
    async def collect() -> list[Any]:
        return [piece async for piece in cached.astream(QUESTION)]

    return joined(asyncio.run(collect()))


WAYS: dict[str, Callable[[Any], Any]] = {
    "invoke": lambda cached: cached.invoke(QUESTION),
    "ainvoke": lambda cached: asyncio.run(cached.ainvoke(QUESTION)),
    "stream": streamed,
    "astream": streamed_later,
}


def in_ways(
    names: Iterable[str], ways: Iterable[Any], few: Iterable[str], others: Iterable[Any]
) -> list[tuple[str, Any]]:
    """Every case in some ways, and a few of them in the others, which judge by the same code."""
    return [*itertools.product(names, ways), *itertools.product(few, others)]


def text_of(answer: Any) -> Any:
    return answer.content if isinstance(answer, BaseMessage) else answer


def finished(reason: str, text: str = HALF, key: str = "finish_reason") -> AIMessage:
    return AIMessage(text, response_metadata={key: reason})


CALL = {"name": "f", "args": {}, "id": "1", "type": "tool_call"}
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


class Model(BaseChatModel):
    """Answers as its script has it; streams word by word, and says how it ended at the end."""

    number: int

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        message = SCRIPTS[self.number].next()
        info = dict(message.response_metadata)
        copy = message.model_copy(deep=True)
        return ChatResult(generations=[ChatGeneration(message=copy, generation_info=info)])

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[Any]:
        message = SCRIPTS[self.number].next()
        for number, word in enumerate(str(message.content).split(" ")):
            piece = f" {word}" if number else word
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
        calls = [
            tool_call_chunk(
                name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=number
            )
            for number, call in enumerate(message.tool_calls)
        ]
        last = AIMessageChunk(
            content="",
            tool_call_chunks=calls,
            response_metadata=message.response_metadata,
            additional_kwargs=message.additional_kwargs,
        )
        yield ChatGenerationChunk(
            message=last, generation_info=dict(message.response_metadata) or None
        )


def model_of(*messages: Any) -> tuple[Model, Script]:
    SCRIPTS.append(Script(*messages))
    return Model(number=len(SCRIPTS) - 1), SCRIPTS[-1]


PROMPT = ChatPromptTemplate.from_template("{input}")
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

    async def collect() -> list[Any]:
        return [piece async for piece in cached.astream(QUESTION)]

    if later:
        asyncio.run(collect())
    else:
        list(cached.stream(QUESTION))
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

    async def last() -> Any:
        return [piece async for piece in cached.astream(QUESTION)][-1]

    for _ in range(3):
        end = asyncio.run(last()) if later else list(cached.stream(QUESTION))[-1]
        assert end == VALUES[value]


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

    async def collect() -> list[Any]:
        return [piece async for piece in cached.astream(QUESTION)]

    if later:
        asyncio.run(collect())
    else:
        list(cached.stream(QUESTION))
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


def failing_tool(*steps: Any, **settings: Any) -> tuple[Any, Script]:
    script = Script(*steps)

    def run(query: str) -> Any:
        step = script.next()
        if isinstance(step, Exception):
            raise step
        return step

    plain = StructuredTool.from_function(run, name="look_up", description="d", **settings)
    return cached_tool(plain), script


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


# LlamaIndex.


class Page(LlamaRetriever):
    def __init__(self, found: int = 1) -> None:
        super().__init__()
        self._found = found

    def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
        page = TextNode(text="The fee is 5 euro.", id_="1")
        return [NodeWithScore(node=page, score=1.0)] * self._found


class Engine(RetrieverQueryEngine):
    """Synthesizes what its script has."""

    number: int

    def synthesize(self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None) -> Any:
        step = SCRIPTS[self.number].next()
        if isinstance(step, Exception):
            raise step
        made = step() if callable(step) else step
        if isinstance(made, str) or made is None:
            return Response(made, source_nodes=nodes)
        return made

    async def asynthesize(
        self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None
    ) -> Any:
        return self.synthesize(query_bundle, nodes)


class Unused(BaseSynthesizer):
    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass

    def get_response(self, *_: Any, **__: Any) -> str:
        return ""

    async def aget_response(self, *_: Any, **__: Any) -> str:
        return ""


def llama_cached(engine: Any, **settings: Any) -> llama.AnswerCache:
    model = llama_index_embeddings()
    return llama.AnswerCache(engine, embed_model=model, tolerance=0, **settings)


def scripted(*steps: Any) -> tuple[llama.AnswerCache, Script]:
    from llama_index.core.llms import MockLLM  # noqa: PLC0415

    SCRIPTS.append(Script(*steps))
    engine = Engine(Page(), response_synthesizer=Unused(llm=MockLLM()))
    engine.number = len(SCRIPTS) - 1
    return llama_cached(engine), SCRIPTS[-1]


def whole(response: Any) -> str:
    if isinstance(response, StreamingResponse):
        return "".join(response.response_gen)
    return str(response)


def ask_llama(cached: llama.AnswerCache, later: bool) -> str:
    async def ask() -> str:
        response = await cached.aquery(QUESTION)
        if isinstance(response, AsyncStreamingResponse):
            return "".join([piece async for piece in response.async_response_gen()])
        return whole(response)

    return asyncio.run(ask()) if later else whole(cached.query(QUESTION))


def stream_of(*pieces: Any) -> Callable[[], StreamingResponse]:
    def generate() -> Generator[str, None, None]:
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    return lambda: StreamingResponse(response_gen=generate())


LLAMA_NONE: dict[str, Any] = {
    "empty": "",
    "white space": " \n",
    "None": None,
    "Empty Response": "Empty Response",
    "Empty Response, with a full stop": " Empty Response\n",
    "no object": lambda: PydanticResponse(response=None),
    "empty stream": stream_of(),
    "stream of nothing": stream_of("", " ", ""),
    "stream of Empty Response": stream_of("Empty Response"),
    "stream of Empty Response, in pieces": stream_of("Empty ", "Response"),
}


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("bad", LLAMA_NONE)
def test_a_response_that_is_none_is_not_served(bad: str, later: bool) -> None:
    cached, script = scripted(LLAMA_NONE[bad], GOOD)
    ask_llama(cached, later)
    assert ask_llama(cached, later) == GOOD
    assert ask_llama(cached, later) == GOOD
    assert script.count == 2


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    "good",
    [GOOD, "no", "0", "An Empty Response is what the server sends.", stream_of("The fee ", "is 5")],
    ids=["text", "no", "0", "what speaks of it", "stream"],
)
def test_a_response_that_is_one_is_kept(good: Any, later: bool) -> None:
    cached, script = scripted(good, "another answer")
    first = ask_llama(cached, later)
    assert ask_llama(cached, later) == first != "another answer"
    assert script.count == 1


@pytest.mark.parametrize("later", [False, True])
def test_a_stream_of_llama_index_that_breaks_midway(later: bool) -> None:
    cached, script = scripted(stream_of("The fee ", ConnectionError("reset")), GOOD)
    with pytest.raises(ConnectionError):
        ask_llama(cached, later)
    assert ask_llama(cached, later) == GOOD
    assert ask_llama(cached, later) == GOOD
    assert script.count == 2


def test_a_stream_of_llama_index_that_its_reader_leaves() -> None:
    cached, _ = scripted(stream_of("The fee ", "is 5 euro."), GOOD)
    response: Any = cached.query(QUESTION)
    next(iter(response.response_gen))
    response.response_gen.close()
    assert ask_llama(cached, later=False) == GOOD


@pytest.mark.parametrize("later", [False, True])
def test_an_error_of_llama_index_is_not_kept(later: bool) -> None:
    cached, _ = scripted(RuntimeError("down"), GOOD)
    with pytest.raises(RuntimeError):
        ask_llama(cached, later)
    assert ask_llama(cached, later) == GOOD


class Untold(CustomLLM):
    """Answers as its script has it, a text and how it ended, of which LlamaIndex hears nothing."""

    number: int

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def _fields(self, end: str) -> dict[str, Any]:
        choice = {"index": 0, "finish_reason": end, "message": {"role": "assistant"}}
        return {"raw": {"choices": [choice]}, "additional_kwargs": {"finish_reason": end}}

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        text, end = SCRIPTS[self.number].next()
        return CompletionResponse(text=text, **self._fields(end))

    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> Any:
        (text, end), given = SCRIPTS[self.number].next(), ""
        for word in text.split(" "):
            given += f"{word} "
            yield CompletionResponse(text=given, delta=f"{word} ", **self._fields(""))
        yield CompletionResponse(text=given, delta="", **self._fields(end))


class LlamaModel(Untold):
    """Says how it ended as servers' classes do: by LlamaIndex's events, as docs/answers.md asks."""

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **more: Any) -> CompletionResponse:
        return super().complete(prompt, formatted, **more)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **more: Any) -> Any:
        return super().stream_complete(prompt, formatted, **more)

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **more: Any) -> Any:
        async def later() -> AsyncIterator[CompletionResponse]:
            for piece in Untold.stream_complete(self, prompt, formatted, **more):
                yield piece

        return later()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("text", "end"), [(HALF, "length"), (HALF, "content_filter"), ("", "stop")]
)
def test_a_model_of_llama_index_that_was_stopped_short(
    text: str, end: str, streaming: bool, later: bool
) -> None:
    SCRIPTS.append(Script((text, end), (GOOD, "stop")))
    script = SCRIPTS[-1]
    model = LlamaModel(number=len(SCRIPTS) - 1)
    synthesizer = get_response_synthesizer(llm=model, streaming=streaming)
    cached = llama_cached(RetrieverQueryEngine(Page(), response_synthesizer=synthesizer))
    ask_llama(cached, later)
    assert ask_llama(cached, later).strip() == GOOD
    assert ask_llama(cached, later).strip() == GOOD
    assert script.count == 2


@pytest.mark.parametrize("later", [False, True])
def test_what_a_model_does_not_report_is_for_keep_to_see(later: bool) -> None:
    """A class without LlamaIndex's decorators reports nothing, which docs/answers.md says."""
    SCRIPTS.append(Script((HALF, "length"), (GOOD, "stop")))
    model = Untold(number=len(SCRIPTS) - 1)
    engine = RetrieverQueryEngine(Page(), response_synthesizer=get_response_synthesizer(llm=model))
    cached = llama_cached(engine, keep=lambda response: not str(response).endswith(","))
    ask_llama(cached, later)
    assert ask_llama(cached, later) == GOOD
    assert ask_llama(cached, later) == GOOD
    assert SCRIPTS[-1].count == 2


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
def test_nothing_was_found_and_then_something(streaming: bool, later: bool) -> None:
    """LlamaIndex's own words for no nodes are not looked up as an answer."""
    SCRIPTS.append(Script((GOOD, "stop")))
    model = LlamaModel(number=len(SCRIPTS) - 1)
    synthesizer = get_response_synthesizer(llm=model, streaming=streaming and not later)
    nothing = Page(found=0)
    cached = llama_cached(RetrieverQueryEngine(nothing, response_synthesizer=synthesizer))
    assert ask_llama(cached, later).strip() == "Empty Response"
    ask_llama(cached, later)
    assert cached.stats().hits == 0


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    "bad",
    [
        lambda: ToolOutput(
            tool_name="look_up", content="down", raw_input={}, raw_output="down", is_error=True
        ),
        lambda: "",
        lambda: None,
        list,
        lambda: " \n",
        lambda: Response("Empty Response"),
        lambda: Response(None),
        lambda: Response(""),
        lambda: CompletionResponse(text=""),
    ],
    ids=[
        *("error", "empty", "None", "empty list", "white space", "Empty Response"),
        *("response of None", "empty response", "empty completion"),
    ],
)
def test_a_tool_of_llama_index_that_found_nothing(bad: Any, later: bool) -> None:
    script = Script(bad, lambda: GOOD)
    plain = FunctionTool.from_defaults(
        lambda query: script.next()(), name="look_up", description="d"
    )
    tool = llama.cached_tool(plain)

    def ask() -> Any:
        return asyncio.run(tool.acall(query=QUESTION)) if later else tool.call(query=QUESTION)

    ask()
    assert ask().raw_output == GOOD
    assert ask().raw_output == GOOD
    assert script.count == 2
