"""Steps of both frameworks that look around for a user's name, and what may name one."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypedDict

from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import get_runtime
from llama_index.core import QueryBundle
from llama_index.core.base.base_retriever import BaseRetriever as NodeRetriever
from llama_index.core.llms import (
    CompletionResponse,
    CompletionResponseGen,
    CustomLLM,
    LLMMetadata,
)
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel

from ragcache_integrations.langchain import (
    AnswerCache,
    ApproximateCacheRetriever,
    cached_node,
    cached_tool,
)
from ragcache_integrations.llama_index import AnswerCache as NodeAnswerCache
from ragcache_integrations.llama_index import ApproximateCacheRetriever as NodeCacheRetriever
from ragcache_integrations.llama_index import cached_tool as cached_function
from tests.answers.traffic import langchain_embeddings, llama_index_embeddings

QUESTION = "rome is it nice"
USER: ContextVar[Any] = ContextVar("USER")
CALLS: list[str] = []
READS: list[Callable[[], str]] = []


def read() -> str:
    """What every step here does: look around, and say what it found."""
    text = f"balance of {READS[-1]()}"
    CALLS.append(text)
    return text


# The steps of LangChain, each as a node of a graph


class State(TypedDict, total=False):
    question: str
    found: str


class Mine(BaseRetriever):
    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(read(), id="1")]


class Native(Mine):
    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document(read(), id="1")]


class Bare(Runnable[Any, Any]):
    """Sets no context of its own, as LangChain's Runnables do."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Any:  # noqa: A002 - LangChain's
        return {"found": read()}


@tool
def balance(query: str) -> str:
    """Look up the user's balance."""
    return read()


@tool
async def abalance(query: str) -> str:
    """Look up the user's balance."""
    return read()


def node_of_tool(**knobs: Any) -> Any:
    cached = cached_tool(balance, query_argument="query", **knobs)
    return lambda state: {"found": cached.invoke({"query": state["question"]})}


def node_of_async_tool(**knobs: Any) -> Any:
    cached = cached_tool(abalance, query_argument="query", **knobs)

    async def node(state: State) -> State:
        return {"found": await cached.ainvoke({"query": state["question"]})}

    return node


def node_of_tools(**knobs: Any) -> Any:
    tools = ToolNode([cached_tool(balance, query_argument="query", **knobs)])
    call = {"name": "balance", "args": {"query": QUESTION}, "id": "1"}
    return lambda _: {"found": tools.invoke([AIMessage("", tool_calls=[call])])[0].content}


def answers(**knobs: Any) -> AnswerCache:
    documents: Runnable[str, list[Document]] = RunnableLambda(lambda _: [Document("a", id="1")])
    # A step of ours within others, and a chain that hands its configuration on.
    chain = RunnableLambda(lambda inputs: inputs) | RunnableLambda(lambda _: read()).with_config(
        run_name="read"
    )
    return AnswerCache(chain=chain, retriever=documents, documents_key="context", **knobs)


def node_of_answers(**knobs: Any) -> Any:
    cached = answers(**knobs)
    return lambda state: {"found": cached.invoke(state["question"])}


def node_of_batches(**knobs: Any) -> Any:
    cached = answers(**knobs)
    return lambda state: {"found": cached.batch([state["question"]])[0]}


def node_of_async_answers(**knobs: Any) -> Any:
    cached = answers(**knobs)

    async def node(state: State) -> State:
        return {"found": await cached.ainvoke(state["question"])}

    return node


def node_of_streams(**knobs: Any) -> Any:
    cached = answers(**knobs)
    return lambda state: {"found": "".join(cached.stream(state["question"]))}


def node_of_async_streams(**knobs: Any) -> Any:
    cached = answers(**knobs)

    async def node(state: State) -> State:
        return {"found": "".join([piece async for piece in cached.astream(state["question"])])}

    return node


def retriever(search: BaseRetriever, **knobs: Any) -> ApproximateCacheRetriever:
    return ApproximateCacheRetriever.from_retriever(
        search, langchain_embeddings(), tolerance=0.05, rerank_factor=1, **knobs
    )


def node_of_retriever(**knobs: Any) -> Any:
    cached = retriever(Mine(), **knobs)
    return lambda state: {"found": cached.invoke(state["question"])[0].page_content}


def node_of_async_retriever(**knobs: Any) -> Any:
    cached = retriever(Native(), **knobs)

    async def node(state: State) -> State:
        return {"found": (await cached.ainvoke(state["question"]))[0].page_content}

    return node


STEPS: dict[str, Callable[..., Any]] = {
    "cached_tool": node_of_tool,
    "cached_tool, a coroutine": node_of_async_tool,
    "cached_tool, in a ToolNode": node_of_tools,
    "cached_node": lambda **knobs: cached_node(
        lambda _: {"found": read()}, reads=["question"], **knobs
    ),
    "cached_node, a Runnable": lambda **knobs: cached_node(Bare(), reads=["question"], **knobs),
    "AnswerCache": node_of_answers,
    "AnswerCache, batches": node_of_batches,
    "AnswerCache, a coroutine": node_of_async_answers,
    "AnswerCache, streams": node_of_streams,
    "AnswerCache, asynchronous streams": node_of_async_streams,
    "retriever": node_of_retriever,
    "retriever, a coroutine": node_of_async_retriever,
}


# The steps of LlamaIndex


class Nodes(NodeRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(id_="1", text="a"))]


class MyNodes(NodeRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(id_="1", text=read()))]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._retrieve(query_bundle)


class Reading(CustomLLM):
    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        return CompletionResponse(text=read())

    def stream_complete(
        self, prompt: str, formatted: bool = False, **_: Any
    ) -> CompletionResponseGen:
        text = read()
        return (CompletionResponse(text=text, delta=text) for _ in range(1))


Ask = Callable[[], Awaitable[str]]


def ask_tool(**knobs: Any) -> Ask:
    cached = cached_function(FunctionTool.from_defaults(lambda query: read(), name="b"), **knobs)

    async def ask() -> str:
        return str(cached.call(query=QUESTION).raw_output)

    return ask


def ask_async_tool(**knobs: Any) -> Ask:
    async def look_up(query: str) -> str:
        """Look up the user's balance."""
        return read()

    cached = cached_function(FunctionTool.from_defaults(async_fn=look_up), **knobs)

    async def ask() -> str:
        return str((await cached.acall(query=QUESTION)).raw_output)

    return ask


def engine(*, streaming: bool = False, **knobs: Any) -> NodeAnswerCache:
    llm = Reading()
    inner = RetrieverQueryEngine.from_args(Nodes(), llm=llm, streaming=streaming)
    return NodeAnswerCache(inner, **knobs)


def ask_answers(**knobs: Any) -> Ask:
    cached = engine(**knobs)

    async def ask() -> str:
        return str(cached.query(QUESTION))

    return ask


def ask_async_answers(**knobs: Any) -> Ask:
    cached = engine(**knobs)

    async def ask() -> str:
        return str(await cached.aquery(QUESTION))

    return ask


def ask_streams(**knobs: Any) -> Ask:
    cached = engine(streaming=True, **knobs)

    async def ask() -> str:
        response: Any = cached.query(QUESTION)
        return "".join(response.response_gen)

    return ask


def node_retriever(**knobs: Any) -> NodeCacheRetriever:
    return NodeCacheRetriever.from_retriever(
        MyNodes(), llama_index_embeddings(), tolerance=0.05, rerank_factor=1, **knobs
    )


def ask_retriever(**knobs: Any) -> Ask:
    cached = node_retriever(**knobs)

    async def ask() -> str:
        return cached.retrieve(QUESTION)[0].text

    return ask


def ask_async_retriever(**knobs: Any) -> Ask:
    cached = node_retriever(**knobs)

    async def ask() -> str:
        return (await cached.aretrieve(QUESTION))[0].text

    return ask


ASKS: dict[str, Callable[..., Ask]] = {
    "LlamaIndex: cached_tool": ask_tool,
    "LlamaIndex: cached_tool, a coroutine": ask_async_tool,
    "LlamaIndex: AnswerCache": ask_answers,
    "LlamaIndex: AnswerCache, a coroutine": ask_async_answers,
    "LlamaIndex: AnswerCache, streams": ask_streams,
    "LlamaIndex: retriever": ask_retriever,
    "LlamaIndex: retriever, a coroutine": ask_async_retriever,
}


class Who(BaseModel):
    user: str


@dataclass
class Connection:
    """No plain data: what it does is anybody's guess."""

    user: str

    def query(self) -> str:
        return self.user


@contextlib.contextmanager
def user_is(value: Any) -> Iterator[None]:
    token = USER.set(value)
    try:
        yield
    finally:
        USER.reset(token)


def run() -> Any:
    """LangGraph's runtime."""
    return get_runtime()


def configurable(**values: Any) -> dict[str, Any]:
    return {"config": {"configurable": values}}


def graph_of(node: Any, store: Any = None, saver: Any = None) -> Any:
    graph = StateGraph(State, context_schema=Any)  # type: ignore[type-var] # each case has its own
    graph.add_node("search", node)
    graph.add_edge(START, "search")
    return graph.compile(store=store, checkpointer=saver)


def asking(name: str, store: Any = None) -> Callable[..., Awaitable[str]]:
    """How to ask a step of either framework; those of LangChain are nodes of a graph."""
    if name in ASKS:
        ask = ASKS[name]()
        return lambda **_: ask()
    graph = graph_of(STEPS[name](), store)

    async def ask_graph(**run: Any) -> str:
        return str((await graph.ainvoke({"question": QUESTION}, **run))["found"])

    return ask_graph
