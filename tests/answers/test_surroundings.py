"""What surrounds a call of a cached step, by the table in docs/answers.md, in both frameworks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import pytest
from langchain_core.callbacks import (
    AsyncCallbackManager,
    BaseCallbackHandler,
    get_usage_metadata_callback,
)
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableBranch, RunnableConfig, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store, get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, InjectedStore, ToolNode
from langgraph.runtime import Runtime, ServerInfo, get_runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
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
from llama_index.core.workflow import Context, StartEvent, StopEvent, Workflow, step
from llama_index_instrumentation.dispatcher import active_instrument_tags, instrument_tags
from opentelemetry import baggage, trace
from opentelemetry.context import attach, create_key, detach, get_value, set_value
from pydantic import BaseModel

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import (
    AnswerCache,
    ApproximateCacheRetriever,
    cached_node,
    cached_tool,
)
from ragcache_integrations.llama_index import AnswerCache as NodeAnswerCache
from ragcache_integrations.llama_index import ApproximateCacheRetriever as NodeCacheRetriever
from ragcache_integrations.llama_index import cached_tool as cached_function
from ragcache_integrations.retrievers.keys import StepWatch
from tests.answers.redis.caches import new_tag
from tests.answers.traffic import langchain_embeddings, llama_index_embeddings
from tests.query_cache.redis.servers import patient, redis_server

DOCS = Path(__file__).parents[2] / "docs" / "answers.md"
QUESTION = "rome is it nice"
USER: ContextVar[Any] = ContextVar("USER")
CALLS: list[str] = []
READS: list[Callable[[], str]] = []


@pytest.fixture(autouse=True)
def calls() -> list[str]:
    CALLS.clear()
    READS.clear()
    return CALLS


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


def node_of_retriever(**knobs: Any) -> Any:
    cached = ApproximateCacheRetriever.from_retriever(
        Mine(), langchain_embeddings(), tolerance=0.05, rerank_factor=1, **knobs
    )
    return lambda state: {"found": cached.invoke(state["question"])[0].page_content}


def node_of_async_retriever(**knobs: Any) -> Any:
    cached = ApproximateCacheRetriever.from_retriever(
        Native(), langchain_embeddings(), tolerance=0.05, rerank_factor=1, **knobs
    )

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


def ask_retriever(**knobs: Any) -> Ask:
    cached = NodeCacheRetriever.from_retriever(
        MyNodes(), llama_index_embeddings(), tolerance=0.05, rerank_factor=1, **knobs
    )

    async def ask() -> str:
        return cached.retrieve(QUESTION)[0].text

    return ask


def ask_async_retriever(**knobs: Any) -> Ask:
    cached = NodeCacheRetriever.from_retriever(
        MyNodes(), llama_index_embeddings(), tolerance=0.05, rerank_factor=1, **knobs
    )

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


# The rows of the table: where a user's name is, and how a step reads it


class Who(BaseModel):
    user: str


@dataclass
class Connection:
    """No plain data: what it does is anybody's guess."""

    user: str

    def query(self) -> str:
        return self.user


@dataclass(frozen=True)
class Case:
    """A row.

    Attributes:
        becomes: What becomes of the result.
        read: How a step finds the user's name.
        run: Arguments of a graph's run for a user.
        around: A ``with`` block around the run.
        store: Whether there is a Store, which names the user whose run it is.
        framework: The steps that can read it; ``both`` for all.
    """

    becomes: str
    read: Callable[[], str]
    run: Callable[[str], Mapping[str, Any]] = field(default=lambda _: {})
    around: Callable[[str], contextlib.AbstractContextManager[Any]] = field(
        default=lambda _: contextlib.nullcontext()
    )
    store: bool = False
    framework: str = "langchain"


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


BY_CONFIG: Runnable[Any, Any] = RunnableLambda(
    lambda _, config: config["configurable"]["thread_id"]
)


def configurable(**values: Any) -> dict[str, Any]:
    return {"config": {"configurable": values}}


def manager(**values: Any) -> AsyncCallbackManager:
    """Callbacks that have metadata and tags of their own."""
    return AsyncCallbackManager([], **values)


def callbacks() -> Any:
    """The manager that a step gets."""
    return get_config()["callbacks"]


def written() -> str:
    get_stream_writer()("found")
    return "anybody"


KEY, NEVER, USED, SHARED = (
    "in the key",
    "not cached",
    "not cached if the step uses it",
    "not compared",
)
THREAD = "not cached if the step uses them"

CASES: dict[str, list[Case]] = {
    "LangGraph's `context=`": [
        Case(KEY, lambda: get_runtime(Who).context.user, lambda user: {"context": Who(user=user)}),
        Case(KEY, lambda: str(run().context["user"]), lambda user: {"context": {"user": user}}),
        Case(
            KEY,
            lambda: get_config()["configurable"]["__pregel_runtime"].context,
            lambda user: {"context": user},
        ),
    ],
    "`configurable`": [
        Case(
            KEY,
            lambda: get_config()["configurable"]["user"],
            lambda user: configurable(user=user, thread_id="1"),
        ),
        Case(
            KEY,
            lambda: get_config()["configurable"]["__user"],
            lambda user: configurable(__user=user),
        ),
    ],
    "`metadata`": [
        Case(
            KEY,
            lambda: get_config()["metadata"]["user"],
            lambda user: {"config": {"metadata": {"user": user}}},
        ),
        Case(
            KEY,
            lambda: callbacks().inheritable_metadata["user"],
            lambda user: {"config": {"callbacks": manager(inheritable_metadata={"user": user})}},
        ),
    ],
    "`tags`, `recursion_limit`": [
        Case(
            KEY,
            lambda: get_config()["tags"][-1],  # LangChain may sort them
            lambda user: {"config": {"tags": ["all", user]}},
        ),
        Case(
            KEY,
            lambda: callbacks().inheritable_tags[0],
            lambda user: {"config": {"callbacks": manager(inheritable_tags=[user])}},
        ),
        Case(
            KEY,
            lambda: {30: "ann", 31: "bob"}[get_config()["recursion_limit"]],
            lambda user: {"config": {"recursion_limit": 30 if user == "ann" else 31}},
        ),
    ],
    "context variables of the application": [
        Case(KEY, lambda: str(USER.get()), around=user_is, framework="both"),
        Case(
            KEY,
            lambda: str(USER.get()["user"]),
            around=lambda user: user_is({"user": user}),
            framework="both",
        ),
    ],
    "LlamaIndex's `instrument_tags`": [
        Case(
            KEY,
            lambda: str(active_instrument_tags.get()["user"]),
            around=lambda user: instrument_tags({"user": user, "llamaindex.run_id": time.time()}),
            framework="both",
        )
    ],
    "one of these that is no plain data, such as a connection": [
        Case(
            NEVER,
            lambda: str(get_runtime(Connection).context.query()),
            lambda user: {"context": Connection(user)},
        ),
        Case(
            NEVER,
            lambda: str(USER.get().query()),
            around=lambda user: user_is(Connection(user)),
            framework="both",
        ),
    ],
    "LangGraph's Store": [
        Case(USED, lambda: str(get_store().get(("users",), "now").value["user"]), store=True),  # type: ignore[union-attr] # it is there
        Case(USED, lambda: str(get_store().search(("users",))[0].value["user"]), store=True),
    ],
    "`thread_id`, `run_id`": [
        Case(THREAD, find, lambda user: configurable(thread_id=user))
        for find in (
            lambda: str(get_config()["configurable"]["thread_id"]),
            lambda: str(get_config()["configurable"].get("thread_id")),
            lambda: str(get_config()["metadata"]["thread_id"]),
            lambda: str({**get_config()["configurable"]}["thread_id"]),
            lambda: str(run().execution_info.thread_id),
            lambda: str(BY_CONFIG.invoke(1)),
        )
    ]
    + [
        Case(
            THREAD,
            lambda: get_config()["configurable"]["run_id"],
            lambda user: configurable(run_id=user),
        )
    ],
    "the stream (`get_stream_writer()`)": [Case(USED, written)],
    "a graph within, in a run with a `thread_id`": [
        Case(
            NEVER,
            lambda: graph_of(lambda _: {"found": get_config()["configurable"]["thread_id"]}).invoke(
                {"question": QUESTION}
            )["found"],
            lambda user: configurable(thread_id=user),
        )
    ],
}


def graph_of(node: Any, store: Any = None, saver: Any = None) -> Any:
    graph = StateGraph(State, context_schema=Any)  # type: ignore[type-var] # each case has its own
    graph.add_node("search", node)
    graph.add_edge(START, "search")
    return graph.compile(store=store, checkpointer=saver)


def table() -> dict[str, str]:
    """The rows of the table in the documentation."""
    text = DOCS.read_text().partition("## What surrounds a call\n")[2].partition("\n## ")[0]
    rows = [re.split(r" ?\| ?", line)[1:3] for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[1] for row in rows[2:]}


ELSEWHERE = {
    "`previous` of an `@entrypoint`": "test_what_a_thread_left",
    "the user whom LangGraph's server authenticated": "test_the_server_s_user",
    "OpenTelemetry's baggage, and other values of its context": "test_baggage_says_who_asks",
    "the same, if your code reads `configurable` or `metadata` in other ways than single values by "
    "name": "test_a_thread_is_in_the_key_of_what_may_read_it_without_its_name",
    "LlamaIndex's `Context.get_step_context()`": "test_a_workflow",
    "`interrupt()`": "test_every_person_is_asked",
    "a step that is resumed": "test_a_step_that_is_resumed",
    "arguments that a framework injects: state, store, runtime": "test_what_is_injected",
    "a graph within that has a `thread_id` of its own, by `with_config()`": (
        "test_a_graph_with_a_thread_of_its_own"
    ),
    "a node's parameters `runtime`, `store`, `writer`": "test_refused",
    "a tool's parameters for the call's id, or for LlamaIndex's `Context`": "test_refused",
    "names, callbacks and `max_concurrency` of a run; "
    "frameworks' own entries and tags, such as `langgraph_step`; "
    "context variables of frameworks, tracing and logging; ids of traces": "test_what_says_nothing",
    "what a step reads on its own: files, databases, globals, the time": "test_what_is_yours",
}


def test_each_row_of_the_table_has_its_tests() -> None:
    rows = table()
    assert rows.keys() == CASES.keys() | ELSEWHERE.keys()
    for name, cases in CASES.items():
        assert {case.becomes for case in cases} == {rows[name]}
    assert all(name in globals() for name in ELSEWHERE.values())


PAIRS = [
    pytest.param(case, name, id=f"{row}, {number}: {name}")
    for row, cases in CASES.items()
    for number, case in enumerate(cases)
    for name in [*STEPS, *(ASKS if case.framework == "both" else ())]
]


async def asked(case: Case, name: str, users: tuple[str, ...]) -> list[str]:
    """What a step finds for each user in turn."""
    store = InMemoryStore() if case.store else None
    ask = ASKS[name]() if name in ASKS else None
    graph = None if ask else graph_of(STEPS[name](), store)
    found = []
    for user in users:
        if store is not None:
            store.put(("users",), "now", {"user": user})
        with case.around(user):
            if graph is None:
                assert ask is not None
                found.append(await ask())
            else:
                state = await graph.ainvoke({"question": QUESTION}, **case.run(user))
                found.append(state["found"])
    return found


@pytest.mark.parametrize(("case", "name"), PAIRS)
async def test_nobody_is_served_what_another_user_s_surroundings_gave(
    case: Case, name: str
) -> None:
    READS.append(case.read)
    users = ("ann", "ann", "bob", "ann")
    wanted = [f"balance of {'anybody' if case.read is written else user}" for user in users]
    assert await asked(case, name, users) == wanted
    assert len(CALLS) == (2 if case.becomes == KEY else 4)


@pytest.mark.parametrize(("case", "name"), PAIRS)
async def test_what_is_not_used_keeps_nobody_from_being_served(case: Case, name: str) -> None:
    """But for what is in the key, which counts whether the step reads it or not."""
    READS.append(lambda: "anybody")
    assert await asked(case, name, ("ann", "bob", "ann")) == ["balance of anybody"] * 3
    users_apart, nobody = case.becomes == KEY, case.becomes == NEVER and not is_within(case)
    assert len(CALLS) == (3 if nobody else 2 if users_apart else 1)


def is_within(case: Case) -> bool:
    return case in CASES["a graph within, in a run with a `thread_id`"]


# What the table says of single things


def previous_of(node: Any) -> Any:
    @entrypoint(checkpointer=InMemorySaver())
    def flow(word: str) -> Any:
        found = node.invoke({"question": QUESTION})["found"]
        return entrypoint.final(value=found, save=word)

    return flow


def test_what_a_thread_left() -> None:
    READS.append(lambda: str(get_runtime().previous))
    flow = previous_of(cached_node(lambda _: {"found": read()}, reads=["question"]))
    found = [
        flow.invoke(word, configurable(thread_id=thread)["config"])
        for word, thread in (("ann", 1), ("ann", 1), ("ann", 1), ("bob", 2), ("bob", 2))
    ]
    assert found == [f"balance of {user}" for user in ("None", "ann", "ann", "None", "bob")]
    assert len(CALLS) == 3


UNHEARD = ("cached_node, a Runnable", "retriever", "retriever, a coroutine")
"""Steps that hand no callbacks on, or of which none are heard."""


@pytest.mark.parametrize("name", [name for name in STEPS if name not in UNHEARD])
async def test_a_graph_with_a_thread_of_its_own(name: str) -> None:
    """It remembers earlier runs, although nothing of the call's configuration says so."""

    def remember(state: State) -> Any:
        return {"found": f"{state.get('found') or ''}+"}

    inner = graph_of(remember, saver=InMemorySaver()).with_config(configurable={"thread_id": "own"})
    READS.append(lambda: str(inner.invoke({"question": QUESTION})["found"]))
    graph = graph_of(STEPS[name]())
    found = [(await graph.ainvoke({"question": QUESTION}))["found"] for _ in range(3)]
    assert found == [f"balance of {'+' * times}" for times in (1, 2, 3)]


class User(dict[str, Any]):
    """As LangGraph's server has them, with methods."""

    @property
    def identity(self) -> str:
        return str(self["name"])


def test_the_server_s_user() -> None:
    cached = cached_node(lambda _: {"found": read()}, reads=["question"])
    READS.append(lambda: str(run().server_info.user["name"]))
    for user in ("ann", "bob", "ann"):
        server = ServerInfo(assistant_id="1", graph_id="g", user=User(name=user))  # type: ignore[arg-type] # has all that is asked for
        runtime: Any = Runtime(server_info=server)
        config = configurable(__pregel_runtime=runtime)["config"]
        assert cached.invoke({"question": QUESTION}, config)["found"] == f"balance of {user}"
    assert cached.stats().hits == 1


OWNERS: dict[int, str] = {}
"""Users, by the store of their workflow's context, which is read by coroutines alone."""


class Steps(Workflow):
    """A workflow whose step asks twice, in a context that names a user."""

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self.ask = ask

    @step
    async def answer(self, ctx: Context, ev: StartEvent) -> StopEvent:
        OWNERS[id(ctx.store)] = ev.user
        return StopEvent(result=[await self.ask() for _ in range(2)])


@pytest.mark.parametrize("name", ASKS)
async def test_a_workflow(name: str) -> None:
    ask = ASKS[name]()

    def user_of_the_workflow() -> str:
        return OWNERS[id(Context.get_step_context().store)]

    for reads, calls in ((user_of_the_workflow, 4), (lambda: "anybody", 5)):
        READS[:] = [reads]
        for user in ("ann", "bob"):
            found = await Steps(ask).run(user=user)
            assert found == [f"balance of {user if calls == 4 else 'anybody'}"] * 2
        assert len(CALLS) == calls


@pytest.mark.parametrize("name", STEPS)
async def test_every_person_is_asked(name: str) -> None:
    """Nobody's answer is another's, and none is asked twice for the same."""
    READS.append(lambda: str(interrupt("pay?")))
    graph = graph_of(STEPS[name](), saver=InMemorySaver())
    for user in ("ann", "bob", "ann again"):
        config = configurable(thread_id=user)["config"]
        state = await graph.ainvoke({"question": QUESTION}, config)
        assert "__interrupt__" in state
        state = await graph.ainvoke(Command(resume=user), config)
        assert state["found"] == f"balance of {user}"


def asks_within(*, as_node: bool) -> Any:
    inner = graph_of(lambda _: {"found": read()})
    return inner if as_node else lambda state: {**inner.invoke(state)}


@pytest.mark.parametrize("as_node", [False, True])
def test_a_graph_within_that_asks_a_person(as_node: bool) -> None:
    READS.append(lambda: str(interrupt("pay?")))
    cached = cached_node(asks_within(as_node=as_node), reads=["question"], ignores=["thread_id"])
    graph = graph_of(cached, saver=InMemorySaver())
    for user in ("ann", "bob"):
        config = configurable(thread_id=user)["config"]
        assert "__interrupt__" in graph.invoke({"question": QUESTION}, config)
        assert graph.invoke(Command(resume=user), config)["found"] == f"balance of {user}"


def test_a_person_who_is_asked_in_some_cases_is_never_passed_over() -> None:
    """Once a step has asked, it is never served in the place of a question that was to come."""

    def pay(state: State) -> State:
        if "much" not in state["question"]:
            return {"found": "paid"}
        return {"found": f"paid, as {interrupt('pay?')} says"}

    cached = cached_node(
        pay,
        reads=["question"],
        query_argument="question",
        embeddings=langchain_embeddings(),
        tolerance=0.6,
    )
    graph = graph_of(cached, saver=InMemorySaver())
    graph.invoke({"question": "pay a little"}, configurable(thread_id=1)["config"])
    graph.invoke({"question": "transfer much"}, configurable(thread_id=2)["config"])
    asked = graph.invoke({"question": "pay a much"}, configurable(thread_id=3)["config"])
    assert "__interrupt__" in asked


def test_a_question_to_a_person_that_a_step_gives_up_is_kept_by_nobody() -> None:
    def give_up() -> str:
        try:
            return str(interrupt("pay?"))
        except Exception:
            return "nobody"

    READS.append(give_up)
    cached = cached_node(lambda _: {"found": read()}, reads=["question"])
    graph = graph_of(cached, saver=InMemorySaver())
    for thread in range(2):
        graph.invoke({"question": QUESTION}, configurable(thread_id=thread)["config"])
    assert (len(CALLS), cached.stats().entries) == (2, 0)


def test_a_step_that_is_resumed() -> None:
    """A person has let it go on, and may have changed the state before."""
    READS.append(lambda: "anybody")
    cached = cached_node(lambda _: {"found": read()}, reads=["question"])
    graph = StateGraph(State).add_node("search", cached).add_edge(START, "search")
    app = graph.compile(checkpointer=InMemorySaver(), interrupt_before=["search"])
    for thread in range(2):
        config = configurable(thread_id=thread)["config"]
        app.invoke({"question": QUESTION}, config)
        app.invoke(None, config)
    assert (len(CALLS), cached.stats().entries) == (2, 0)


def test_what_is_injected() -> None:
    @tool
    def of_state(query: str, user: Annotated[str, InjectedState("user")]) -> str:
        """Look up the user's balance."""
        CALLS.append(user)
        return f"balance of {user}"

    @tool
    def of_store(query: str, store: Annotated[Any, InjectedStore()]) -> str:
        """Look up the user's balance."""
        user = store.get(("users",), "now").value["user"]
        CALLS.append(user)
        return f"balance of {user}"

    class Messages(TypedDict, total=False):
        messages: list[Any]
        user: str

    for each, calls in ((of_state, 2), (of_store, 3)):
        CALLS.clear()
        store = InMemoryStore()
        graph = StateGraph(Messages).add_node("tools", ToolNode([cached_tool(each)]))
        app = graph.add_edge(START, "tools").compile(store=store)
        for user in ("ann", "bob", "ann"):
            store.put(("users",), "now", {"user": user})
            call = {"name": each.name, "args": {"query": QUESTION}, "id": "1"}
            state = app.invoke({"messages": [AIMessage("", tool_calls=[call])], "user": user})
            assert state["messages"][-1].content == f"balance of {user}"
        assert len(CALLS) == calls


def test_refused() -> None:
    def by_runtime(state: State, runtime: Runtime[Any]) -> State:
        return state

    def by_store(state: State, *, store: Any) -> State:
        return state

    def by_writer(state: State, writer: Any) -> State:
        return state

    for node in (by_runtime, by_store, by_writer):
        with pytest.raises(ConfigurationError, match="so its results depend on more"):
            cached_node(node, reads=["question"])

    @tool
    def by_call(query: str, call: Annotated[str, InjectedToolCallId]) -> str:
        """Answer a call."""
        return call

    with pytest.raises(ConfigurationError, match="gets the id of each call"):
        cached_tool(by_call)

    async def by_context(ctx: Context, query: str) -> str:
        """Answer in a workflow."""
        return query

    by_context.__annotations__["ctx"] = Context
    with pytest.raises(ConfigurationError, match="gets the workflow's context"):
        cached_function(FunctionTool.from_defaults(async_fn=by_context))


@pytest.mark.parametrize("name", STEPS)
async def test_what_says_nothing(name: str) -> None:
    """The same user, in other threads, in runs of other names, in graphs of other nodes: served."""
    READS.append(lambda: "anybody")
    made = STEPS[name]()
    for thread, node in ((1, "one"), (2, "one"), (3, "two")):
        graph = StateGraph(State, context_schema=Any)  # type: ignore[type-var] # as above
        app = (
            graph.add_node(node, made)
            .add_edge(START, node)
            .compile(checkpointer=InMemorySaver(), store=InMemoryStore())
        )
        await app.ainvoke(  # type: ignore[call-overload]
            {"question": QUESTION},
            {
                "configurable": {"thread_id": str(thread), "user": "ann"},
                "tags": ["prod"],
                "run_name": f"run {thread}",
                "max_concurrency": thread,
                "metadata": {"tenant": "acme"},
            },
            context=Who(user="ann"),
        )
    assert len(CALLS) == 1


def test_what_is_yours(tmp_path: Path) -> None:
    """Nothing shows that a step reads a file."""
    file = tmp_path / "user"
    READS.append(file.read_text)
    cached = cached_node(lambda _: {"found": read()}, reads=["question"])
    file.write_text("ann")
    cached.invoke({"question": QUESTION})
    file.write_text("bob")
    assert cached.invoke({"question": QUESTION}) == {"found": "balance of ann"}


# What is ignored, and what else there is to say


@pytest.mark.parametrize("name", [*STEPS, *ASKS])
async def test_what_is_ignored_divides_nothing(name: str) -> None:
    READS.append(lambda: "anybody")
    make: Any = STEPS.get(name) or ASKS[name]
    made = make(ignores=["user", "USER", "thread_id", "context", "tags"])
    for user in ("ann", "bob"):
        with user_is(Connection(user)):
            if name in ASKS:
                await made()
                continue
            await graph_of(made).ainvoke(
                {"question": QUESTION},
                {
                    "configurable": {"user": user, "thread_id": user},
                    "metadata": {"user": user},
                    "tags": [user],
                },
                context=Connection(user),
            )
    assert len(CALLS) == 1


@pytest.mark.parametrize("wrong", ["user", 3, ["user", 3], {"user": 1}])
def test_what_is_ignored_has_names(wrong: Any) -> None:
    for make in (answers, engine, node_of_tool, node_of_retriever, ask_retriever):
        with pytest.raises((ConfigurationError, ValueError), match="ignores must be several names"):
            make(ignores=wrong)


def test_a_graph_within_that_keeps_no_state_may_ignore_the_thread() -> None:
    READS.append(lambda: get_runtime(Who).context.user)
    inner = graph_of(lambda _: {"found": read()})
    graph = graph_of(
        cached_node(inner, reads=["question"], ignores=["thread_id"]), saver=InMemorySaver()
    )
    for thread, user in enumerate(("ann", "bob", "ann")):
        config = configurable(thread_id=thread)["config"]
        state = graph.invoke({"question": QUESTION}, config, context=Who(user=user))
        assert state["found"] == f"balance of {user}"
    assert len(CALLS) == 2


def by_metadata() -> str:
    return str(get_config()["metadata"]["user"])


@pytest.mark.parametrize(
    ("step", "call"),
    [
        (cached_tool(balance, query_argument="query"), {"query": QUESTION}),
        (cached_tool(abalance, query_argument="query"), {"query": QUESTION}),
        (cached_node(lambda _: read(), reads=["question"]), {"question": QUESTION}),
        (answers(), QUESTION),
        (
            ApproximateCacheRetriever.from_retriever(
                RunnableLambda(lambda _: [Document(read(), id="1")]), langchain_embeddings()
            ),
            QUESTION,
        ),
    ],
    ids=["cached_tool", "cached_tool, a coroutine", "cached_node", "AnswerCache", "retriever"],
)
async def test_each_call_of_a_batch_has_its_own_user(step: Runnable[Any, Any], call: Any) -> None:
    READS.append(by_metadata)
    users = ("ann", "bob", "ann", "bob")
    configs = [RunnableConfig(metadata={"user": user}) for user in users]
    wanted = [f"balance of {user}" for user in users]
    found = await step.abatch([call] * 4, configs)
    if getattr(step, "name", "") != "abalance":
        found += step.batch([call] * 4, configs)
        wanted *= 2
    assert [one[0].page_content if isinstance(one, list) else one for one in found] == wanted


def test_a_graph_that_keeps_a_history_is_asked_each_time() -> None:
    def turn(state: Any) -> dict[str, Any]:
        return {"messages": [("ai", f"turn {len(state['messages'])}")]}

    graph = StateGraph(MessagesState).add_node("turn", turn).add_edge(START, "turn")
    app: Any = graph.compile(checkpointer=InMemorySaver())
    chain = (
        RunnableLambda(lambda inputs: {"messages": [("human", inputs["question"])]})
        | app
        | RunnableLambda(lambda state: state["messages"][-1].content)
    )
    documents: Runnable[str, list[Document]] = RunnableLambda(lambda _: [Document("a", id="1")])
    cached = AnswerCache(chain=chain, retriever=documents, documents_key="context")
    found = [
        cached.invoke({"question": QUESTION}, configurable(thread_id=thread)["config"])
        for thread in ("1", "1", "2")
    ]
    assert found == ["turn 1", "turn 3", "turn 1"]


class Tracer(BaseCallbackHandler):
    """Groups runs by their thread, as tracers do."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def on_chain_start(self, *_: Any, **run: Any) -> None:
        self.threads.add(run["metadata"].get("thread_id", ""))

    def on_tool_start(self, *_: Any, **run: Any) -> None:
        self.threads.add(run["metadata"]["thread_id"])

    def on_retriever_start(self, *_: Any, **run: Any) -> None:
        self.threads.add(run["metadata"]["thread_id"])


@pytest.mark.parametrize("name", STEPS)
async def test_a_tracer_may_look_for_the_thread(name: str) -> None:
    READS.append(lambda: "anybody")
    graph, tracer = graph_of(STEPS[name]()), Tracer()
    for thread in ("1", "2"):
        config = configurable(thread_id=thread)["config"] | {"callbacks": [tracer]}
        await graph.ainvoke({"question": QUESTION}, config)
    assert len(CALLS) == 1
    assert tracer.threads >= {"1", "2"}


def test_a_warning_names_what_keeps_results_out(caplog: pytest.LogCaptureFixture) -> None:
    READS.append(lambda: get_config()["configurable"]["thread_id"])
    graph = graph_of(cached_node(lambda _: {"found": read()}, reads=["question"]))
    for thread in range(2):
        config = configurable(thread_id=thread)["config"]
        graph.invoke({"question": QUESTION}, config)
        with user_is(Connection("ann")):
            graph.invoke({"question": QUESTION}, config)
    kept, served = [record.message for record in caplog.records]
    assert (
        kept
        == "A result is not kept: the step used the run's thread_id, which the key does not hold"
    )
    assert served == (
        "Nothing is served from the cache or kept: USER can't be compared. "
        "Pass ignores=['USER'] if no result depends on it"
    )


def test_what_a_step_changes_in_its_surroundings_keeps_its_result_out() -> None:
    def change() -> str:
        run().context["user"] = "eve"
        return "eve"

    READS.append(change)
    cached = cached_node(lambda _: {"found": read()}, reads=["question"])
    graph = graph_of(cached)
    graph.invoke({"question": QUESTION}, context={"user": "ann"})
    assert cached.stats().entries == 0


async def test_searches_that_are_joined_are_those_of_one_thread() -> None:
    def slowly() -> str:
        time.sleep(0.05)
        return str(get_config()["configurable"]["thread_id"])

    READS.append(slowly)
    graph = graph_of(STEPS["retriever, a coroutine"]())
    runs = (
        graph.ainvoke({"question": QUESTION}, configurable(thread_id=user)["config"])
        for user in ("ann", "bob", "eve")
    )
    found = [state["found"] for state in await asyncio.gather(*runs)]
    assert found == ["balance of ann", "balance of bob", "balance of eve"]


def test_a_cached_step_within_another_is_watched_for_both() -> None:
    READS.append(lambda: get_config()["configurable"]["thread_id"])
    inner = cached_node(lambda _: {"found": read()}, reads=["question"])
    outer = cached_node(lambda state: {**inner.invoke(state)}, reads=["question"])
    graph = graph_of(outer)
    for user in ("ann", "bob", "ann"):
        config = configurable(thread_id=user)["config"]
        assert graph.invoke({"question": QUESTION}, config)["found"] == f"balance of {user}"
    assert (inner.stats().entries, outer.stats().entries) == (0, 0)


def test_a_step_of_llama_index_in_a_graph_is_asked_for_its_user() -> None:
    cached = engine()
    READS.append(lambda: get_runtime(Who).context.user)
    graph = graph_of(lambda state: {"found": str(cached.query(state["question"]))})
    for user in ("ann", "bob", "ann"):
        state = graph.invoke({"question": QUESTION}, context=Who(user=user))
        assert state["found"] == f"balance of {user}"
    assert cached.stats().hits == 1


def test_processes_share_answers_of_the_same_user() -> None:
    READS.append(lambda: get_runtime(Who).context.user)
    with redis_server() as server:
        shared = {"cache": patient(server.url), "tag": new_tag()}
        one, other = answers(**shared), answers(**shared)
        for cached, user in ((one, "ann"), (other, "bob"), (other, "ann"), (one, "bob")):
            graph = graph_of(
                lambda state, cached=cached: {"found": cached.invoke(state["question"])}
            )
            state = graph.invoke({"question": QUESTION}, context=Who(user=user))
            assert state["found"] == f"balance of {user}"
        assert (one.stats().hits, other.stats().hits) == (1, 1)
        one.close()
        other.close()


def test_saved_documents_are_for_the_same_user(tmp_path: Path) -> None:
    READS.append(lambda: get_runtime(Who).context.user)
    first, second = (
        ApproximateCacheRetriever.from_retriever(
            Mine(), langchain_embeddings(), tolerance=0.05, rerank_factor=1
        )
        for _ in range(2)
    )
    for cached, user in ((first, "ann"), (second, "bob"), (second, "ann")):
        graph = graph_of(
            lambda state, cached=cached: {"found": cached.invoke(state["question"])[0].page_content}
        )
        state = graph.invoke({"question": QUESTION}, context=Who(user=user))
        assert state["found"] == f"balance of {user}"
        if cached is first:
            first.save(tmp_path / "documents.npz")
            second.load(tmp_path / "documents.npz")
    assert len(CALLS) == 2


def test_a_saved_answer_is_for_the_same_user(tmp_path: Path) -> None:
    READS.append(lambda: get_runtime(Who).context.user)
    first, second = answers(), answers()
    found = []
    for cached, user in ((first, "ann"), (second, "bob"), (second, "ann")):
        graph = graph_of(lambda state, cached=cached: {"found": cached.invoke(state["question"])})
        found.append(graph.invoke({"question": QUESTION}, context=Who(user=user))["found"])
        if cached is first:
            first.save(tmp_path / "answers.npz", tag="test")
            second.load(tmp_path / "answers.npz", tag="test")
    assert found == ["balance of ann", "balance of bob", "balance of ann"]
    assert len(CALLS) == 2


def test_a_copy_of_a_watched_configuration_is_plain_again() -> None:
    """What leaves a step, such as a checkpoint, a trace or a pickle, has nothing of ours."""
    found: list[Any] = []
    config = configurable(thread_id="1", user="ann")["config"]
    around = StepWatch().surroundings(config)
    values = around.config["configurable"]
    found.append(json.loads(json.dumps(values)))
    assert found == [{"thread_id": "1", "user": "ann"}]
    assert values == found[0]
    assert {type(name) for name in eval(repr(values))} == {str}
    assert np.array(list(values)).tolist() == ["thread_id", "user"]


def test_langchains_counters_of_tokens_divide_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """They are in a context variable of their own, which each call makes."""

    @tool
    def look_up(query: str) -> str:
        """Look something up."""
        return query

    cached = cached_tool(look_up)
    for _ in range(3):
        with get_usage_metadata_callback():
            assert cached.invoke({"query": "rome"}) == "rome"
    assert cached.stats().hits == 2
    assert not caplog.records


def test_a_variable_that_each_call_makes_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    def look_up(query: str) -> str:
        """Look something up."""
        return query

    cached = cached_tool(look_up)

    def ask() -> None:
        ContextVar[object]("connection").set(object())
        cached.invoke({"query": "rome"})

    for _ in range(3):
        copy_context().run(ask)
    assert caplog.text.count("ignores=['connection']") == 1


# Names by which an application and a library may call different things


@pytest.mark.parametrize(
    "name",
    ["current_context", "langgraph_user", "langchain_user", "structlog_user", "parent_header"],
)
@pytest.mark.parametrize("make", [ask_tool, ask_answers, ask_async_retriever])
async def test_a_variable_of_the_application_may_have_a_library_s_name(
    name: str, make: Callable[..., Ask]
) -> None:
    variables: list[ContextVar[str]] = [ContextVar(name)]  # no module's attribute
    READS.append(variables[0].get)
    ask = make()
    for user in ("ann", "bob", "ann"):
        token = variables[0].set(user)
        assert await ask() == f"balance of {user}"
        variables[0].reset(token)
    assert len(CALLS) == 2


@pytest.mark.parametrize("name", ["cached_tool", "cached_node", "AnswerCache", "retriever"])
@pytest.mark.parametrize("tag", ["branch:", "condition:", "seq:step:", "seq:step:1", "map:key:"])
async def test_a_tag_of_the_application_may_look_like_a_framework_s(name: str, tag: str) -> None:
    READS.append(lambda: "".join(sorted(get_config()["tags"])))
    graph = graph_of(STEPS[name]())
    for user in ("1", "2", "1"):
        state = await graph.ainvoke({"question": QUESTION}, {"tags": [tag + user]})
        assert state["found"] == f"balance of {tag}{user}"
    assert len(CALLS) == 2


def test_the_same_step_in_other_places_of_a_chain_shares_its_results() -> None:
    """Frameworks have tags for places, which differ from run to run."""
    READS.append(lambda: "anybody")
    cached = answers()
    chains: tuple[Runnable[Any, Any], ...] = (
        RunnableLambda(str) | cached,
        RunnableLambda(str) | str | cached,
        RunnableLambda(lambda text: {"a": text})
        | {"b": RunnableLambda(lambda inputs: inputs["a"]) | cached},
        RunnableBranch((lambda _: True, cached), cached),
        RunnableBranch((lambda _: False, cached), cached),
        cached.with_retry(),
    )
    for chain in chains:
        chain.invoke(QUESTION)
    assert len(CALLS) == 1


# OpenTelemetry


@contextlib.contextmanager
def telling(context: Any) -> Iterator[None]:
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


KEY_OF_MINE = create_key("tenant")


@pytest.mark.parametrize(
    ("said", "read_it"),
    [
        (lambda user: baggage.set_baggage("user", user), lambda: baggage.get_baggage("user")),
        (lambda user: set_value("user.id", user), lambda: get_value("user.id")),
        (lambda user: set_value(KEY_OF_MINE, user), lambda: get_value(KEY_OF_MINE)),
    ],
)
@pytest.mark.parametrize("name", ["cached_tool", "AnswerCache", "retriever", *ASKS])
async def test_baggage_says_who_asks(name: str, said: Any, read_it: Any) -> None:
    READS.append(lambda: str(read_it()))
    ask = ASKS[name]() if name in ASKS else None
    graph = None if ask else graph_of(STEPS[name]())
    for user in ("ann", "bob", "ann"):
        with telling(said(user)):
            if graph is None:
                assert ask is not None
                assert await ask() == f"balance of {user}"
            else:
                state = await graph.ainvoke({"question": QUESTION})
                assert state["found"] == f"balance of {user}"
    assert len(CALLS) == 2


@pytest.mark.parametrize("name", ["cached_tool", "LlamaIndex: AnswerCache"])
async def test_traces_divide_nothing(name: str) -> None:
    READS.append(lambda: "anybody")
    ask = ASKS.get(name, lambda: None)()
    graph = None if ask else graph_of(STEPS[name]())
    for number in (1, 2):
        span = trace.NonRecordingSpan(
            trace.SpanContext(trace_id=number, span_id=number, is_remote=False)
        )
        context = trace.set_span_in_context(span)
        context = baggage.set_baggage("sentry-trace_id", str(number), context)
        with telling(context):
            await (ask() if ask else graph.ainvoke({"question": QUESTION}))  # type: ignore[union-attr]
    assert len(CALLS) == 1


# What a step reads without naming it


def all_values() -> str:
    return ", ".join(map(str, (get_config()["configurable"] | {}).values()))


def as_json() -> str:
    config = get_config()
    return json.dumps({"all": config["configurable"]}, default=str)


def as_text() -> str:
    return f"{ {**get_config()['metadata']} }"


def in_a_loop() -> str:
    values = get_config()["configurable"]
    return str([values[name] for name in values])


class Reader:
    """An object whose method does it."""

    def __call__(self) -> str:
        return str(dict(get_config()["configurable"]).items())


async def in_threads(name: str, look: Callable[[], str], **knobs: Any) -> list[str]:
    """What a step finds in three threads, the last of which is the first again."""
    READS.append(look)
    graph = graph_of(STEPS[name](**knobs))
    return [
        (await graph.ainvoke({"question": QUESTION}, configurable(thread_id=thread)["config"]))[
            "found"
        ]
        for thread in ("of ann", "of bob", "of ann")
    ]


@pytest.mark.parametrize("look", [all_values, as_json, as_text, in_a_loop, Reader()])
@pytest.mark.parametrize("name", STEPS)
async def test_a_thread_is_in_the_key_of_what_may_read_it_without_its_name(
    name: str, look: Callable[[], str]
) -> None:
    for found, thread in zip(
        await in_threads(name, look), ("of ann", "of bob", "of ann"), strict=True
    ):
        assert thread in found


@pytest.mark.parametrize("name", STEPS)
async def test_what_reads_other_values_by_name_is_shared_across_threads(name: str) -> None:
    found = await in_threads(name, lambda: f"{get_config()['configurable'].get('user', 'all')}")
    assert found == ["balance of all"] * 3
    assert len(CALLS) == 1


async def test_a_warning_says_that_the_thread_counts(caplog: pytest.LogCaptureFixture) -> None:
    await in_threads("cached_tool", all_values)
    assert caplog.text.count("so its thread_id counts. Read values by name, or pass") == 1
    CALLS.clear()
    await in_threads("cached_tool", lambda: str([*get_config()["tags"]]), ignores=["thread_id"])
    assert len(CALLS) == 1


# What keeps everything from being served


@pytest.mark.parametrize(
    ("run_of", "name"),
    [
        (lambda number: {"config": {"metadata": {"request_id": number}}}, "request_id"),
        (lambda number: {"config": {"configurable": {"request": number}}}, "request"),
        (lambda number: {"config": {"tags": [f"request {number}"]}}, "tags"),
        (lambda number: {"context": {"user": "ann", "request_id": number}}, "context.request_id"),
        (lambda number: {"context": Who(user=str(number))}, "context.user"),
        (lambda number: {"context": number}, "context"),
    ],
)
def test_what_differs_in_each_call_is_warned_of_once_by_its_name(
    run_of: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    READS.append(lambda: "anybody")
    for ignores, calls in (([], 70), ([name], 1)):
        graph = graph_of(STEPS["cached_node"](ignores=ignores))
        CALLS.clear()
        for number in range(70):
            graph.invoke({"question": QUESTION}, **run_of(number))
        assert len(CALLS) == calls
    assert caplog.text.count(f"pass ignores=[{name!r}]") == 1
    assert caplog.text.count("Hardly anything is served") == 1


async def test_a_variable_or_a_tag_of_each_call_is_warned_of_by_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    READS.append(lambda: "anybody")
    for ignores, calls in (([], 40), (["USER", "request"], 1)):
        ask = ask_tool(ignores=ignores)
        CALLS.clear()
        for number in range(40):
            with user_is(number), instrument_tags({"request": number}):
                await ask()
        assert len(CALLS) == calls
    assert caplog.text.count("pass ignores=['USER']") == 1
    assert caplog.text.count("pass ignores=['request']") == 1


async def test_users_who_come_again_are_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    READS.append(lambda: "anybody")
    ask = ask_tool()
    for number in range(100):
        with user_is(number % 20):
            await ask()
    assert not caplog.records


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("variable.__main__.USER", "USER"),
        ("configurable.user", "user"),
        ("metadata.user", "user"),
        ("baggage.user.id", "user.id"),
    ],
)
def test_a_name_with_its_place_is_refused(wrong: str, right: str) -> None:
    for make in (answers, engine, node_of_tool, node_of_retriever, ask_retriever):
        message = re.escape(f"names without their place, got {wrong!r}; did you mean {right!r}?")
        with pytest.raises((ConfigurationError, ValueError), match=message):
            make(ignores=[wrong])


async def test_a_misspelt_name_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    READS.append(lambda: "anybody")
    ask = ask_tool(ignores=["USR", "thread_ids", "tags"])
    for _ in range(40):
        with user_is("ann"):
            await ask()
    said = [record.message for record in caplog.records]
    nothing = "A name in ignores= does nothing: none of the first 32 calls had"
    assert said == [
        f"{nothing} 'USR', but 'USER'; did you mean 'USER'?",
        f"{nothing} 'thread_ids', but 'USER'; did you mean 'thread_id'?",
    ]


def test_a_context_whose_request_is_ignored_still_says_who_asks() -> None:
    READS.append(lambda: str(run().context["user"]))
    graph = graph_of(STEPS["cached_node"](ignores=["context.request"]))
    for number, user in enumerate(("ann", "bob", "ann")):
        state = graph.invoke({"question": QUESTION}, context={"user": user, "request": number})
        assert state["found"] == f"balance of {user}"
    assert len(CALLS) == 2


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")
@pytest.mark.filterwarnings("ignore:The class .InMemoryChatMessageHistory. was deprecated")
def test_a_history_around_the_cache_may_share_its_sessions() -> None:
    """The turns come as an input, which counts; the session's id is ignored."""
    histories: dict[str, InMemoryChatMessageHistory] = {}

    def history_of(session: str) -> InMemoryChatMessageHistory:
        return histories.setdefault(session, InMemoryChatMessageHistory())

    def answer(inputs: Any) -> str:
        return f"{inputs['question']} after {len(inputs['history'])}"

    def cached(**knobs: Any) -> AnswerCache:
        return AnswerCache(
            chain=RunnableLambda(answer),
            retriever=RunnableLambda(lambda _: [Document("a", id="1")]),
            documents_key="context",
            tolerance=0,
            **knobs,
        )

    for ignores, hits in ((["session_id"], 2), ([], 0)):
        inner = cached(ignores=ignores)
        chat = RunnableWithMessageHistory(
            inner, history_of, input_messages_key="question", history_messages_key="history"
        )
        histories.clear()
        for session in ("of ann", "of bob"):
            for turns in (0, 2):
                said = chat.invoke({"question": "more"}, configurable(session_id=session)["config"])
                assert said == f"more after {turns}"
        assert inner.stats().hits == hits
