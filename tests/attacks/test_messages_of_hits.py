"""A hit is a new message: its id is its own, and it reports no tokens that nothing used."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
)
from llama_index.core.base.response.schema import AsyncStreamingResponse, StreamingResponse
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.llms import CustomLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import FunctionTool, ToolOutput

from ragcache_integrations import llama_index as llama
from ragcache_integrations.langchain import AnswerCache, cached_node, cached_tool
from tests.answers.traffic import llama_index_embeddings

USAGE = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
FEES, HOURS = "what are the fees", "when is it open"

MADE: list[str] = []


class Counted(BaseChatModel):
    """A model as servers have them: an id and a usage for each answer, in streams by pieces."""

    @property
    def _llm_type(self) -> str:
        return "counted"

    @property
    def made(self) -> list[str]:
        """Ids of its answers, which are no setting of its own: it would change with each."""
        return MADE

    def _fields(self) -> dict[str, Any]:
        self.made.append(f"chatcmpl-{uuid.uuid4()}")
        return {
            "id": self.made[-1],
            "usage_metadata": dict(USAGE),
            "response_metadata": {
                "finish_reason": "stop",
                "id": self.made[-1],
                "model_name": "m",
                "token_usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
            },
        }

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        text = f"answer to {messages[-1].content}"
        message = AIMessage(text, **self._fields())
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> Iterator[Any]:
        fields = self._fields()
        for piece in ("answer ", "to ", str(messages[-1].content)):
            chunk = AIMessageChunk(content=piece, id=fields["id"])
            yield ChatGenerationChunk(message=chunk)
        last = AIMessageChunk(content="", **{**fields, "chunk_position": "last"})
        yield ChatGenerationChunk(message=last)


def page(_: Any) -> list[Document]:
    return [Document("The fee is 5.", id="1")]


@pytest.fixture
def model() -> Counted:
    MADE.clear()
    return Counted()


@pytest.fixture
def cached(model: Counted) -> AnswerCache:
    return AnswerCache(
        chain=ChatPromptTemplate.from_template("{input}") | model,
        retriever=RunnableLambda(page),
        documents_key="context",
        tolerance=0,
    )


def joined(pieces: Any) -> Any:
    whole = None
    for piece in pieces:
        whole = piece if whole is None else whole + piece
    return whole


async def ajoined(pieces: Any) -> Any:
    return joined([piece async for piece in pieces])


def by_events(cached: AnswerCache, question: str) -> Any:
    async def last() -> Any:
        events = [event async for event in cached.astream_events(question, version="v2")]
        return events[-1]["data"]["output"]

    return asyncio.run(last())


WAYS: dict[str, Callable[[AnswerCache, str], Any]] = {
    "invoke": lambda cached, question: cached.invoke(question),
    "ainvoke": lambda cached, question: asyncio.run(cached.ainvoke(question)),
    "stream": lambda cached, question: joined(cached.stream(question)),
    "astream": lambda cached, question: asyncio.run(ajoined(cached.astream(question))),
    "batch": lambda cached, question: cached.batch([question])[0],
    "abatch": lambda cached, question: asyncio.run(cached.abatch([question]))[0],
    "events": by_events,
}


def told_tokens(message: Any) -> int:
    """Tokens that a message says were used for it, wherever it says so."""
    usage = message.usage_metadata or {}
    inner = message.response_metadata.get("token_usage") or {}
    other = message.response_metadata.get("usage") or {}
    return sum(
        int(each.get(name) or 0)
        for each in (usage, inner, other)
        for name in ("total_tokens", "input_tokens", "output_tokens", "prompt_tokens")
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *(("invoke", way) for way in WAYS),
        *((way, "invoke") for way in ("ainvoke", "stream", "astream")),
        *(("stream", "stream"), ("astream", "astream")),
    ],
)
def test_a_hit_has_an_id_of_its_own_and_no_usage(
    cached: AnswerCache, model: Counted, first: str, second: str
) -> None:
    answer = WAYS[first](cached, FEES)
    hits = [WAYS[second](cached, FEES) for _ in range(3)]
    assert len(model.made) == 1, "it is still a hit"
    for hit in hits:
        assert hit.content == answer.content
        assert told_tokens(hit) == 0
    ids = [hit.id for hit in hits if hit.id is not None]
    assert len({answer.id, *ids}) == len(ids) + 1


@pytest.mark.parametrize("way", WAYS)
def test_a_hit_adds_a_message(cached: AnswerCache, model: Counted, way: str) -> None:
    messages: list[Any] = []
    for question in (FEES, HOURS, FEES, FEES):
        answer = WAYS[way](cached, question)
        messages = add_messages(messages, [HumanMessage(question)])  # type: ignore[assignment,arg-type]
        messages = add_messages(messages, [answer])  # type: ignore[assignment]
    assert [each.type for each in messages if each.type == "human"] == ["human"] * 4
    assert [str(each.content) for each in messages[1::2]] == [
        f"answer to {question}" for question in (FEES, HOURS, FEES, FEES)
    ]
    assert len(model.made) == 2


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_the_pieces_of_a_hit_are_one_message(cached: AnswerCache, way: str) -> None:
    first = WAYS[way](cached, FEES)

    async def pieces() -> list[Any]:
        return [piece async for piece in cached.astream(FEES)]

    given = list(cached.stream(FEES)) if way == "stream" else asyncio.run(pieces())
    ids = {piece.id for piece in given if piece.id is not None}
    assert len(ids) <= 1
    assert first.id not in ids
    assert joined(given).content == first.content
    assert sum(told_tokens(piece) for piece in given) == 0


def test_ids_of_two_caches_of_one_kind_differ(model: Counted) -> None:
    """A hit's id may not be computed from the question or the answer alone."""
    ids = []
    for _ in range(2):
        fresh = AnswerCache(
            chain=ChatPromptTemplate.from_template("{input}") | model,
            retriever=RunnableLambda(page),
            documents_key="context",
            tolerance=0,
        )
        fresh.invoke(FEES)
        ids += [fresh.invoke(FEES).id for _ in range(2)]
    ids = [each for each in ids if each is not None]
    assert len(set(ids)) == len(ids)


def test_a_callback_that_counts_tokens_counts_a_hit_once(cached: AnswerCache) -> None:
    counter = UsageMetadataCallbackHandler()
    for _ in range(3):
        cached.invoke(FEES, {"callbacks": [counter]})
    assert sum(each["total_tokens"] for each in counter.usage_metadata.values()) == 10


def test_the_first_answer_keeps_its_own_id_and_usage(cached: AnswerCache, model: Counted) -> None:
    first = cached.invoke(FEES)
    cached.invoke(FEES)
    assert first.id == model.made[0]
    assert first.usage_metadata == USAGE
    streamed = joined(cached.stream(HOURS))
    assert streamed.usage_metadata["total_tokens"] == 10


def test_what_is_done_to_a_hit_is_not_done_to_the_next(cached: AnswerCache) -> None:
    cached.invoke(FEES)
    hit = cached.invoke(FEES)
    hit.content = "changed"
    hit.id = "mine"
    hit.response_metadata["user"] = "ann"
    again = cached.invoke(FEES)
    assert again.content == f"answer to {FEES}"
    assert again.id != "mine"
    assert "user" not in again.response_metadata


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("shape", ["dict", "list", "deep"])
def test_messages_within_other_answers(model: Counted, way: str, shape: str) -> None:
    answer = ChatPromptTemplate.from_template("{input}") | model
    wrap: dict[str, Any] = {
        "dict": RunnableParallel(answer=answer, sources=RunnableLambda(lambda _: ["1"])),
        "list": answer | RunnableLambda(lambda message: [HumanMessage("x"), message]),
        "deep": answer | RunnableLambda(lambda message: {"a": {"b": [message]}}),
    }
    reach: dict[str, Callable[[Any], Any]] = {
        "dict": lambda value: value["answer"],
        "list": lambda value: value[-1],
        "deep": lambda value: value["a"]["b"][0],
    }
    cached = AnswerCache(
        chain=wrap[shape], retriever=RunnableLambda(page), documents_key="context", tolerance=0
    )
    first = reach[shape](cached.invoke(FEES))
    hits = [reach[shape](WAYS[way](cached, FEES)) for _ in range(2)]
    assert len(model.made) == 1
    ids = [each.id for each in hits if each.id is not None]
    assert len({first.id, *ids}) == len(ids) + 1
    assert [told_tokens(each) for each in hits] == [0, 0]


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_the_id_of_a_message_that_calls_a_tool(way: str) -> None:
    """The calls have new ids, too: a result in the conversation names that of the first answer."""
    call = {"name": "f", "args": {"a": 1}, "id": "call-1", "type": "tool_call"}
    made: list[str] = []

    def answer(_: Any) -> AIMessage:
        made.append(str(uuid.uuid4()))
        return AIMessage("see", id=made[-1], tool_calls=[call])

    cached = AnswerCache(
        chain=RunnableLambda(answer),
        retriever=RunnableLambda(page),
        documents_key="context",
        tolerance=0,
    )
    first = cached.invoke(FEES)
    hit = WAYS[way](cached, FEES)
    assert hit.id != first.id
    assert [each["args"] for each in hit.tool_calls] == [{"a": 1}]
    assert [each["id"] for each in first.tool_calls] == ["call-1"]
    assert "call-1" not in {each["id"] for each in hit.tool_calls}
    assert len(made) == 1


# LangGraph.


def conversation(node: Any) -> list[Any]:
    class State(MessagesState):
        question: str

    graph = StateGraph(State)
    graph.add_node("n", node)
    graph.add_edge(START, "n")
    app: Any = graph.compile(checkpointer=InMemorySaver())
    state: dict[str, Any] = {}
    for question in (FEES, HOURS, FEES, HOURS, FEES):
        given = {"messages": [HumanMessage(question)], "question": question}
        state = app.invoke(given, {"configurable": {"thread_id": "1"}})
    return list(state["messages"])


def conversation_later(node: Any) -> list[Any]:
    class State(MessagesState):
        question: str

    graph = StateGraph(State)
    graph.add_node("n", node)
    graph.add_edge(START, "n")
    app: Any = graph.compile(checkpointer=InMemorySaver())

    async def talk() -> list[Any]:
        state: dict[str, Any] = {}
        for question in (FEES, HOURS, FEES, HOURS, FEES):
            given = {"messages": [HumanMessage(question)], "question": question}
            state = await app.ainvoke(given, {"configurable": {"thread_id": "1"}})
        return list(state["messages"])

    return asyncio.run(talk())


def answer_node(model: Counted, cached: AnswerCache) -> Any:
    return lambda state: {"messages": [cached.invoke(state["question"])]}


def stream_node(model: Counted, cached: AnswerCache) -> Any:
    return lambda state: {"messages": [joined(cached.stream(state["question"]))]}


def node_of_messages(model: Counted, cached: AnswerCache) -> Any:
    return cached_node(
        lambda state: {"messages": [model.invoke(state["question"])]}, reads=["question"]
    )


def node_of_one_message(model: Counted, cached: AnswerCache) -> Any:
    return cached_node(
        lambda state: {"messages": model.invoke(state["question"])}, reads=["question"]
    )


def node_of_dicts(model: Counted, cached: AnswerCache) -> Any:
    """Messages may be dicts, whose ids count just as well."""
    return cached_node(
        lambda state: {
            "messages": [
                {
                    "role": "assistant",
                    "content": f"answer to {state['question']}",
                    "id": model.invoke(state["question"]).id,
                }
            ]
        },
        reads=["question"],
    )


@pytest.mark.parametrize(
    ("make", "talk"),
    [
        (answer_node, conversation),
        (stream_node, conversation),
        (node_of_messages, conversation),
        (node_of_one_message, conversation),
        (node_of_dicts, conversation),
        (answer_node, conversation_later),
        (node_of_messages, conversation_later),
    ],
)
def test_each_question_of_a_conversation_has_its_answer(
    model: Counted, cached: AnswerCache, make: Any, talk: Any
) -> None:
    messages = talk(make(model, cached))
    assert [each.type for each in messages] == ["human", "ai"] * 5
    assert [each.content for each in messages[1::2]] == [
        f"answer to {each.content}" for each in messages[::2]
    ]
    assert len(model.made) == 2
    assert sum(told_tokens(each) > 0 for each in messages[1::2]) <= 2


def test_a_cached_tool_s_message_belongs_to_its_call() -> None:
    """A tool may return the message itself: its id and the call it answers are of each call."""
    count: list[str] = []

    def run(query: str) -> Any:
        count.append(query)
        return "found", ToolMessage("raw", tool_call_id="inner", id="inner")

    plain = StructuredTool.from_function(
        run, name="look_up", description="d", response_format="content_and_artifact"
    )
    graph = StateGraph(MessagesState)
    graph.add_node("n", ToolNode([cached_tool(plain)]))
    graph.add_edge(START, "n")
    app = graph.compile(checkpointer=InMemorySaver())
    for number in ("1", "2", "3"):
        call = {"name": "look_up", "args": {"query": "q"}, "id": number, "type": "tool_call"}
        state = app.invoke(
            {"messages": [AIMessage("", tool_calls=[call])]},
            {"configurable": {"thread_id": "1"}},
        )
    tools = [each for each in state["messages"] if each.type == "tool"]
    assert [each.tool_call_id for each in tools] == ["1", "2", "3"]
    assert len({each.id for each in tools}) == 3
    assert len(count) == 1


def test_a_tool_that_returns_a_message(model: Counted) -> None:
    def run(query: str) -> AIMessage:
        return model.invoke(query)

    tool = cached_tool(StructuredTool.from_function(run, name="look_up", description="d"))
    first, *hits = [tool.invoke({"query": FEES}) for _ in range(3)]
    assert len(model.made) == 1
    ids = [each.id for each in hits if each.id is not None]
    assert len({first.id, *ids}) == len(ids) + 1
    assert [told_tokens(each) for each in hits] == [0, 0]


# LlamaIndex.


class LlamaCounted(CustomLLM):
    """Says in ``raw`` and ``additional_kwargs`` what it used, as servers' classes do."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def _fields(self) -> dict[str, Any]:
        MADE.append(f"chatcmpl-{uuid.uuid4()}")
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        return {"raw": {"id": MADE[-1], "usage": usage}, "additional_kwargs": usage}

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        return CompletionResponse(text="the fee is 5", **self._fields())

    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> Any:
        fields, text = self._fields(), ""
        for piece in ("the ", "fee ", "is 5"):
            text += piece
            yield CompletionResponse(text=text, delta=piece, **fields)


class LlamaPage(LlamaRetriever):
    def _retrieve(self, query_bundle: Any) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="The fee is 5.", id_="1"), score=1.0)]


def llama_cached(streaming: bool, *, later: bool = False, **settings: Any) -> llama.AnswerCache:
    MADE.clear()
    synthesizer = get_response_synthesizer(llm=LlamaCounted(), streaming=streaming, use_async=False)
    engine = RetrieverQueryEngine(LlamaPage(), response_synthesizer=synthesizer)
    return llama.AnswerCache(engine, embed_model=llama_index_embeddings(), tolerance=0, **settings)


def whole(response: Any) -> str:
    if isinstance(response, StreamingResponse):
        return "".join(response.response_gen)
    return str(response)


def numbers_in(value: Any) -> set[str]:
    """Names under which metadata say how many tokens were used."""
    if isinstance(value, dict):
        deeper = set().union(*(numbers_in(each) for each in value.values())) if value else set()
        return {str(key) for key, each in value.items() if "tokens" in str(key) and each} | deeper
    return set()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("way", ["query", "aquery"])
def test_a_hit_of_llama_index_is_a_response_of_its_own(streaming: bool, way: str) -> None:
    cached = llama_cached(streaming)

    async def later() -> tuple[Any, str]:
        response = await cached.aquery(FEES)
        if isinstance(response, AsyncStreamingResponse):
            gen = response.async_response_gen()
            return response, "".join([piece async for piece in gen])
        return response, whole(response)

    def ask() -> tuple[Any, str]:
        if way == "aquery":
            return asyncio.run(later())
        response = cached.query(FEES)
        return response, whole(response)

    first, text = ask()
    second, again = ask()
    third, once_more = ask()
    assert text == again == once_more == "the fee is 5"
    assert len(MADE) == 1
    assert second is not third
    assert second is not first
    assert second.metadata is not third.metadata
    assert second.source_nodes is not third.source_nodes
    second.metadata["user"] = "ann"
    second.source_nodes.clear()
    fourth, _ = ask()
    assert "user" not in fourth.metadata
    assert len(fourth.source_nodes) == 1
    assert MADE[0] not in str(fourth.metadata)
    assert not numbers_in(fourth.metadata)


def test_a_counter_of_llama_index_counts_a_hit_once() -> None:
    counter = TokenCountingHandler(tokenizer=str.split)
    manager = CallbackManager([counter])
    synthesizer = get_response_synthesizer(llm=LlamaCounted(), callback_manager=manager)
    engine = RetrieverQueryEngine(
        LlamaPage(callback_manager=manager),
        response_synthesizer=synthesizer,
        callback_manager=manager,
    )
    cached = llama.AnswerCache(
        engine,
        embed_model=llama_index_embeddings(),
        tolerance=0,
        callback_manager=manager,
    )
    cached.query(FEES)
    counted = counter.total_llm_token_count
    cached.query(FEES)
    assert counter.total_llm_token_count == counted


@pytest.mark.parametrize("later", [False, True])
def test_a_tool_of_llama_index_that_returns_a_response_of_a_model(later: bool) -> None:
    def run(query: str) -> ChatResponse:
        MADE.append("call")
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        message = ChatMessage(role="assistant", content="the fee is 5")
        return ChatResponse(message=message, raw={"usage": usage}, additional_kwargs=usage)

    MADE.clear()
    tool = llama.cached_tool(FunctionTool.from_defaults(run, name="look_up"))

    def ask() -> ToolOutput:
        return asyncio.run(tool.acall(query=FEES)) if later else tool.call(query=FEES)

    first, second = ask(), ask()
    assert first.content == second.content
    assert len(MADE) == 1
    second.raw_output.message.additional_kwargs["user"] = "ann"
    assert "user" not in ask().raw_output.message.additional_kwargs
