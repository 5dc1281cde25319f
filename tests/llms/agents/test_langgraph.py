"""LangGraph's agents with our chat model, over a server and over the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import create_retriever_tool, tool
from langchain_core.tracers import Run
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from langchain_core.vectorstores import InMemoryVectorStore

from ragcache_integrations import __version__
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.serving.wire import PROTOCOL
from ragcache_integrations.langchain import ApproximateCacheRetriever
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from tests.llms.agents.conversations import (
    ANSWER,
    CONVERSATIONS,
    SYSTEM,
    add,
    check_bodies,
    check_growth,
    check_prompts,
    clerk,
    count_words,
    embedding,
    found_documents,
    questions,
)
from tests.llms.doubles import Recorder, StubServer
from tests.llms.retrieving import TEXTS
from tests.llms.scripted import ScriptedModel
from tests.support.embeddings import LangChainEmbeddings

FACTS = {"ragcache": __version__, "protocol": PROTOCOL, "tokenizer": "its own"}

prebuilt = pytest.importorskip("langgraph.prebuilt", reason="langgraph is not installed")
agents = pytest.importorskip("langchain.agents", reason="langchain is not installed")

# LangGraph's own, of create_react_agent, which has moved but works.
pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")


@pytest.fixture
def retriever() -> ApproximateCacheRetriever:
    store = InMemoryVectorStore.from_texts(TEXTS, LangChainEmbeddings(embedding))
    return ApproximateCacheRetriever.from_vectorstore(store, k=1, tolerance=0.0)


@pytest.fixture
def tools(retriever: ApproximateCacheRetriever) -> list[Any]:
    search = create_retriever_tool(retriever, "search", "Looks a topic up.")
    return [tool(add), tool(count_words), search]


def react_agent(model: ChatRAGCache, tools: list[Any]) -> Any:
    return prebuilt.create_react_agent(model, tools, prompt=SYSTEM)


def agent(model: ChatRAGCache, tools: list[Any]) -> Any:
    return agents.create_agent(model, tools, system_prompt=SYSTEM)


MAKERS = [react_agent, agent]


def converse(made: Any, number: int, way: str) -> list[BaseMessage]:
    """One conversation; every turn gets the messages of the turns before."""
    messages: list[Any] = []
    for said in questions(number):
        state = {"messages": [*messages, HumanMessage(said)]}
        if way == "invoke":
            messages = made.invoke(state)["messages"]
        elif way == "ainvoke":
            messages = asyncio.run(made.ainvoke(state))["messages"]
        elif way == "stream":
            *_, last = made.stream(state, stream_mode="values")
            messages = last["messages"]
        else:
            messages = asyncio.run(_astreamed(made, state))
    return messages


async def _astreamed(made: Any, state: dict[str, Any]) -> list[BaseMessage]:
    """With the model's own tokens streamed, too."""
    tokens, last = 0, state
    async for mode, part in made.astream(state, stream_mode=["messages", "values"]):
        if mode == "values":
            last = part
        else:
            tokens += 1
    assert tokens > 5
    messages: list[BaseMessage] = last["messages"]
    return messages


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
@pytest.mark.parametrize("make", MAKERS)
def test_over_a_server(stub: StubServer, tools: list[Any], make: Any, way: str) -> None:
    model = ChatRAGCache(base_url=stub.base_url, model="m", streaming=way.endswith("stream"))
    made = make(model, tools)
    for number in range(CONVERSATIONS):
        stub.seen.clear()
        stub.reply = ScriptedModel(clerk)
        messages = converse(made, number, way)
        assert len(stub.seen) == 6
        assert messages[-1].content == ANSWER
        assert not any(isinstance(m, AIMessage) and m.invalid_tool_calls for m in messages)
        found = [m for m in messages if isinstance(m, ToolMessage)]
        assert [m.status for m in found] == ["success"] * 5
        assert found[1].content == str(2 * number + 1)
        check_bodies([seen.body for seen in stub.seen])
        check_growth(cached_tokens(messages))
        assert all(
            seen.body.get("stream", False) is (way == "astream" or model.streaming)
            for seen in stub.seen
        )


def cached_tokens(messages: list[BaseMessage]) -> list[int]:
    said = [m.usage_metadata for m in messages if isinstance(m, AIMessage)]
    return [usage["input_token_details"]["cache_read"] for usage in said if usage is not None]


def test_documents_go_to_our_server_as_documents(stub: StubServer, tools: list[Any]) -> None:
    stub.introduce = lambda exchange: exchange.send(FACTS)
    stub.reply = ScriptedModel(clerk)
    model = ChatRAGCache(base_url=stub.base_url, model="m")
    converse(react_agent(model, tools), 3, "invoke")
    for seen in stub.seen[1:]:
        first = next(m for m in seen.body["messages"] if m["role"] == "tool")
        assert first["content"] == [
            {"type": "document", "text": TEXTS[3], "id": first["content"][0]["id"]}
        ]


def test_hits_are_visible_in_an_agents_traces(stub: StubServer, tools: list[Any]) -> None:
    stub.reply = ScriptedModel(clerk)
    made = agent(ChatRAGCache(base_url=stub.base_url, model="m"), tools)
    collector = RunCollectorCallbackHandler()
    for _ in range(2):
        state = {"messages": [HumanMessage("Look up: look up topic 2, please.")]}
        made.invoke(state, {"callbacks": [collector]})
    found = [run for root in collector.traced_runs for run in runs_in(root)]
    hits = [run.metadata["query_cache_hit"] for run in found if run.run_type == "retriever"]
    assert hits == [False, True]
    assert [run.name for run in found if run.run_type == "tool"] == ["search", "search"]


def runs_in(run: Run) -> Iterator[Run]:
    yield run
    for child in run.child_runs:
        yield from runs_in(child)


def forced(model: ChatRAGCache, tools: list[Any], namespace: str) -> Any:
    """An agent whose model must call after the user, and must not after a tool."""

    def choose(state: dict[str, Any], _: Any) -> Any:
        choice = "any" if isinstance(state["messages"][-1], HumanMessage) else "none"
        # One call: noise would go on calling.
        call: dict[str, Any] = {"parallel_tool_calls": False, "namespace": namespace}
        return model.bind_tools(tools, tool_choice=choice, **call)

    return prebuilt.create_react_agent(choose, tools, prompt=SYSTEM)


@pytest.mark.engine
@pytest.mark.parametrize("way", ["invoke", "astream"])
def test_over_the_engine(engine: RAGCacheEngine, tools: list[Any], way: str) -> None:
    model = ChatRAGCache(engine=engine)
    for number in range(CONVERSATIONS):
        messages = converse(forced(model, tools, f"{way} {number}"), number, way)
        called = [call for m in messages if isinstance(m, AIMessage) for call in m.tool_calls]
        answered = [m for m in messages if isinstance(m, ToolMessage)]
        assert len(called) >= 3
        assert [m.tool_call_id for m in answered] == [call["id"] for call in called]
        assert not any(isinstance(m, AIMessage) and m.invalid_tool_calls for m in messages)
        cached = cached_tokens(messages)
        assert len(cached) == 6
        check_growth(cached)


@pytest.mark.engine
def test_what_the_retriever_brings_is_a_document(
    recorder: Recorder, tools: list[Any], retriever: ApproximateCacheRetriever
) -> None:
    model = ChatRAGCache(engine=recorder)
    search = [t for t in tools if t.name == "search"]
    converse(forced(model, search, "documents"), 5, "invoke")
    check_prompts(recorder.prompts)
    assert all(found_documents(prompt) for prompt in recorder.prompts[1:])
    # Earlier turns are split as they were.
    counts = [len(prompt.documents) for prompt in recorder.prompts]
    assert counts == sorted(counts)
    assert retriever.stats().requests == 3
