"""Whatever a framework hands a step besides its arguments names the user: none gets another's.

Each step says whose data it reads, and finds that out in one of the ways that LangGraph, LangChain
and LlamaIndex have. Ann asks first, then Bob the same. Right are three outcomes: Bob has his own
result, because what named him is in the key or because nothing was kept, or the step is refused.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import (
    CallbackManager,
    CallbackManagerForRetrieverRun,
    CallbackManagerForToolRun,
)
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store, get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, InjectedStore, ToolNode, ToolRuntime
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, StreamWriter, interrupt
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.response.schema import Response
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.tools import FunctionTool, QueryEngineTool, RetrieverTool
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import VectorStoreQuery, VectorStoreQueryResult
from llama_index.core.workflow import Context as WorkflowContext
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step
from llama_index_instrumentation.dispatcher import active_instrument_tags, instrument_tags
from pydantic import BaseModel

from ragcache_integrations import llama_index as llama
from ragcache_integrations.langchain import (
    AnswerCache,
    ApproximateCacheRetriever,
    MiniLMEmbeddings,
    cached_node,
    cached_tool,
)
from tests.answers.traffic import langchain_embeddings, llama_index_embeddings

QUESTION = "what is my balance"
REFUSED = "refused"
WHO: ContextVar[str] = ContextVar("who_asks")


@dataclass
class Person:
    user: str


class Card(BaseModel):
    user: str


class Session:
    """Somebody's own class, which can only be compared by identity."""

    def __init__(self, user: str) -> None:
        self.user = user


SESSION = Session("nobody")


class Way(NamedTuple):
    """How a step finds out whose data it reads."""

    read: Callable[[], str]
    context: Callable[[str], Any] = lambda _: None
    config: Callable[[str], dict[str, Any]] = lambda _: {}
    before: Callable[[str, Any], object] = lambda _, __: None
    in_key: bool = True  # otherwise the result is not kept


def of_context() -> Any:
    """The run's context, of whatever class."""
    return get_runtime().context


def configurable(user: str, name: str = "user") -> dict[str, Any]:
    return {"configurable": {name: user}}


def signed_in(user: str) -> dict[str, Any]:
    return {
        "configurable": {
            "langgraph_auth_user": {"identity": user, "is_authenticated": True},
            "langgraph_auth_user_id": user,
        }
    }


def change_session(user: str, _: Any) -> Session:
    SESSION.user = user
    return SESSION


def put(user: str, store: Any) -> None:
    store.put(("users",), "current", {"user": user})


WAYS = {
    "context, a dataclass": Way(lambda: str(get_runtime(Person).context.user), Person),
    "context, a dict": Way(lambda: get_runtime().context["user"], lambda user: {"user": user}),  # type: ignore[index]
    "context, a pydantic model": Way(
        lambda: get_runtime(Card).context.user, lambda u: Card(user=u)
    ),
    "context, a text": Way(lambda: str(get_runtime().context), lambda user: user),
    "context, deep within": Way(
        lambda: get_runtime().context["session"][0].user,  # type: ignore[index]
        lambda user: {"session": [Person(user)]},
    ),
    "context, an object": Way(lambda: of_context().user, Session, in_key=False),
    "context, one object that is changed": Way(
        lambda: of_context().user, lambda _: SESSION, before=change_session, in_key=False
    ),
    "context, in the configuration": Way(
        lambda: get_config()["configurable"]["__pregel_runtime"].context.user, Person
    ),
    "store": Way(
        lambda: get_store().get(("users",), "current").value["user"],  # type: ignore[union-attr]
        before=put,
        in_key=False,
    ),
    "store, of the runtime": Way(
        lambda: get_runtime().store.get(("users",), "current").value["user"],  # type: ignore[union-attr]
        before=put,
        in_key=False,
    ),
    "store, a search": Way(
        lambda: get_store().search(("users",))[0].value["user"], before=put, in_key=False
    ),
    "metadata": Way(
        lambda: get_config()["metadata"]["user"], config=lambda user: {"metadata": {"user": user}}
    ),
    "metadata, by LangChain": Way(
        lambda: ensure_config()["metadata"]["user"], config=lambda u: {"metadata": {"user": u}}
    ),
    "metadata, deep within": Way(
        lambda: get_config()["metadata"]["session"]["user"],
        config=lambda user: {"metadata": {"session": {"user": user}}},
    ),
    "tags": Way(
        lambda: next(tag[5:] for tag in get_config()["tags"] if tag.startswith("user:")),
        config=lambda user: {"tags": [f"user:{user}"]},
    ),
    "configurable": Way(lambda: get_config()["configurable"]["user"], config=configurable),
    "configurable, deep within": Way(
        lambda: get_config()["configurable"]["session"]["user"],
        config=lambda user: {"configurable": {"session": {"user": user}}},
    ),
    "configurable, an object": Way(
        lambda: get_config()["configurable"]["session"].user,
        config=lambda user: {"configurable": {"session": Session(user)}},
        in_key=False,
    ),
    "configurable, named as LangGraph names": Way(
        lambda: get_config()["configurable"]["langgraph_auth_user_id"], config=signed_in
    ),
    "configurable, who is signed in": Way(
        lambda: get_config()["configurable"]["langgraph_auth_user"]["identity"], config=signed_in
    ),
    "thread": Way(
        lambda: get_config()["configurable"]["thread_id"],
        config=lambda user: configurable(user, "thread_id"),
        in_key=False,
    ),
    "thread, in the metadata": Way(
        lambda: get_config()["metadata"]["thread_id"],
        config=lambda user: configurable(user, "thread_id"),
        in_key=False,
    ),
    "context variable": Way(WHO.get, before=lambda user, _: WHO.set(user)),
}


class Messages(TypedDict, total=False):
    messages: list[Any]
    question: str
    found: str


def one_node(node: Any, store: Any = None, **settings: Any) -> Any:
    graph = StateGraph(Messages, context_schema=Any)  # type: ignore[type-var]
    graph.add_node("n", node)
    graph.add_edge(START, "n")
    return graph.compile(store=store, **settings)


def call(name: str = "look_up", tool_id: str = "1", **others: Any) -> dict[str, Any]:
    args = {"query": QUESTION}
    asked = {"name": name, "args": args, "id": tool_id, "type": "tool_call"}
    return {"messages": [AIMessage("", tool_calls=[asked])], **others}


def told(state: dict[str, Any]) -> str:
    message = state["messages"][-1]
    if isinstance(message, ToolMessage) and message.status == "error":
        return REFUSED
    return str(message.content)


Step = Callable[[str], str]
Ask = Callable[..., str]


def found(app: Any) -> Ask:
    return lambda **run: str(app.invoke({"question": QUESTION}, **run)["found"])


def found_later(app: Any) -> Ask:
    async def ask(**run: Any) -> str:
        return str((await app.ainvoke({"question": QUESTION}, **run))["found"])

    return lambda **run: asyncio.run(ask(**run))


def plain_tool(look_up: Step) -> BaseTool:
    def run(query: str) -> str:
        return look_up(query)

    async def arun(query: str) -> str:
        return look_up(query)

    return StructuredTool.from_function(run, arun, name="look_up", description="Look it up.")


LOOK_UPS: list[Step] = []
"""What retrievers call by its number: one that holds a function counts as a filter that is code."""


class Found(BaseRetriever):
    number: int

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(LOOK_UPS[self.number](query), id="1")]


def page(_: Any) -> list[Document]:
    return [Document("All balances are in the table.", id="1")]


def answers_of(look_up: Step, **settings: Any) -> AnswerCache:
    return AnswerCache(
        chain=RunnableLambda(lambda inputs: look_up(inputs["input"])),
        retriever=RunnableLambda(page),
        documents_key="context",
        tolerance=0,
        **settings,
    )


def retriever_of(look_up: Step, **settings: Any) -> ApproximateCacheRetriever:
    LOOK_UPS.append(look_up)
    return ApproximateCacheRetriever.from_retriever(
        Found(number=len(LOOK_UPS) - 1), embeddings=langchain_embeddings(), **settings
    )


def tool_node(look_up: Step, store: Any) -> Ask:
    app = one_node(ToolNode([cached_tool(plain_tool(look_up), query_argument="query")]), store)
    return lambda **run: told(app.invoke(call(), **run))


def tool_node_later(look_up: Step, store: Any) -> Ask:
    app = one_node(ToolNode([cached_tool(plain_tool(look_up))]), store)

    async def ask(**run: Any) -> str:
        return told(await app.ainvoke(call(), **run))

    return lambda **run: asyncio.run(ask(**run))


def tool_in_a_node(look_up: Step, store: Any) -> Ask:
    tool = cached_tool(plain_tool(look_up))
    return found(
        one_node(lambda state: {"found": tool.invoke({"query": state["question"]})}, store)
    )


def tool_of_an_agent(look_up: Step, store: Any) -> Ask:
    class Caller(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "caller"

        def bind_tools(self, *_: Any, **__: Any) -> Any:
            return self

        def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
            if isinstance(messages[-1], ToolMessage):
                answer = AIMessage(messages[-1].content)
            else:
                answer = call()["messages"][0]
            return ChatResult(generations=[ChatGeneration(message=answer.model_copy())])

    agent: Any = create_agent(
        Caller(), [cached_tool(plain_tool(look_up))], context_schema=Any, store=store
    )
    return lambda **run: told(agent.invoke({"messages": [("human", QUESTION)]}, **run))


def node_function(look_up: Step, store: Any) -> Ask:
    def node(state: Messages) -> Any:
        return {"found": look_up(state["question"])}

    return found(one_node(cached_node(node, reads=["question"], query_argument="question"), store))


def node_coroutine(look_up: Step, store: Any) -> Ask:
    async def node(state: Messages) -> Any:
        return {"found": look_up(state["question"])}

    return found_later(one_node(cached_node(node, reads=["question"]), store))


def node_runnable(look_up: Step, store: Any) -> Ask:
    chain = RunnableLambda(lambda state: state["question"]) | (
        lambda question: {"found": look_up(question)}
    )
    return found(one_node(cached_node(chain, reads=["question"]), store))


def node_graph(look_up: Step, store: Any) -> Ask:
    inner = one_node(lambda state: {"found": look_up(state["question"])})
    return found(one_node(cached_node(inner, reads=["question"]), store))


def node_graph_later(look_up: Step, store: Any) -> Ask:
    inner = one_node(lambda state: {"found": look_up(state["question"])})
    return found_later(one_node(cached_node(inner, reads=["question"]), store))


def node_in_a_subgraph(look_up: Step, store: Any) -> Ask:
    node = cached_node(lambda state: {"found": look_up(state["question"])}, reads=["question"])
    return found(one_node(one_node(node), store))


def node_that_calls_a_graph(look_up: Step, store: Any) -> Ask:
    inner = one_node(lambda state: {"found": look_up(state["question"])})

    def node(state: Messages) -> Any:
        return {"found": inner.invoke({"question": state["question"]})["found"]}

    return found(one_node(cached_node(node, reads=["question"]), store))


def answer(look_up: Step, store: Any) -> Ask:
    cached = answers_of(look_up)
    return found(one_node(lambda state: {"found": cached.invoke(state["question"])}, store))


def answer_later(look_up: Step, store: Any) -> Ask:
    cached = answers_of(look_up)

    async def node(state: Messages) -> Any:
        return {"found": await cached.ainvoke(state["question"])}

    return found_later(one_node(node, store))


def answer_streamed(look_up: Step, store: Any) -> Ask:
    cached = answers_of(look_up)
    return found(
        one_node(lambda state: {"found": "".join(cached.stream(state["question"]))}, store)
    )


def answer_with_the_configuration(look_up: Step, store: Any) -> Ask:
    cached = answers_of(look_up)

    def node(state: Messages, config: RunnableConfig) -> Any:
        return {"found": cached.invoke({"input": state["question"]}, config)}

    return found(one_node(node, store))


def answer_as_a_node(look_up: Step, store: Any) -> Ask:
    chain = (
        RunnableLambda(lambda state: state["question"])
        | answers_of(look_up)
        | (lambda text: {"found": text})
    )
    return found(one_node(chain, store))


def retriever(look_up: Step, store: Any) -> Ask:
    cached = retriever_of(look_up)
    return found(
        one_node(lambda state: {"found": cached.invoke(state["question"])[0].page_content}, store)
    )


def retriever_later(look_up: Step, store: Any) -> Ask:
    cached = retriever_of(look_up)

    async def node(state: Messages) -> Any:
        return {"found": (await cached.ainvoke(state["question"]))[0].page_content}

    return found_later(one_node(node, store))


def retriever_of_exact_text(look_up: Step, store: Any) -> Ask:
    cached = retriever_of(look_up, tolerance=0)
    return found(
        one_node(lambda state: {"found": cached.invoke(state["question"])[0].page_content}, store)
    )


def retriever_of_a_runnable(look_up: Step, store: Any) -> Ask:
    cached = ApproximateCacheRetriever.from_retriever(
        RunnableLambda(lambda query: [Document(look_up(query), id="1")]),
        embeddings=langchain_embeddings(),
    )
    return found(
        one_node(lambda state: {"found": cached.invoke(state["question"])[0].page_content}, store)
    )


def tool_in_an_entrypoint(look_up: Step, store: Any) -> Ask:
    tool = cached_tool(plain_tool(look_up))

    @entrypoint(store=store, context_schema=Any)  # type: ignore[type-var]
    def flow(question: str) -> str:
        return str(tool.invoke({"query": question}))

    return lambda **run: str(flow.invoke(QUESTION, **run))


def answer_in_a_task(look_up: Step, store: Any) -> Ask:
    cached = answers_of(look_up)

    @task
    def ask(question: str) -> str:
        return str(cached.invoke(question))

    @entrypoint(store=store, context_schema=Any)  # type: ignore[type-var]
    def flow(question: str) -> str:
        return ask(question).result()

    return lambda **run: str(flow.invoke(QUESTION, **run))


FACES: dict[str, Callable[[Step, Any], Ask]] = {
    each.__name__: each
    for each in (
        tool_node,
        tool_node_later,
        tool_in_a_node,
        tool_of_an_agent,
        tool_in_an_entrypoint,
        node_function,
        node_coroutine,
        node_runnable,
        node_graph,
        node_graph_later,
        node_in_a_subgraph,
        node_that_calls_a_graph,
        answer,
        answer_later,
        answer_streamed,
        answer_with_the_configuration,
        answer_as_a_node,
        answer_in_a_task,
        retriever,
        retriever_later,
        retriever_of_exact_text,
        retriever_of_a_runnable,
    )
}


def noting(calls: list[str]) -> Step:
    """Return a step whose result is the same for all, and which notes its calls itself.

    A list that it handed to another function would count as a setting that has changed.
    """

    def look_up(query: str) -> str:
        calls.append(query)
        return "the table"

    return look_up


def refused(make: Callable[..., Any], *arguments: Any) -> Any:
    """What comes of it, or that it was refused in words."""
    try:
        return make(*arguments)
    except ValueError as error:
        check_refusal(error)
        return REFUSED


def check_refusal(error: ValueError) -> None:
    assert len(str(error).split()) > 4, "a refusal is a sentence"


def run_as(way: Way, user: str, store: Any, ask: Ask) -> str:
    """One request of a user, in a context of its own, as a server would run it."""

    def request() -> str:
        way.before(user, store)
        run: dict[str, Any] = {"config": way.config(user)}
        if (context := way.context(user)) is not None:
            run["context"] = context
        return ask(**run)

    return str(refused(lambda: contextvars.copy_context().run(request)))


@pytest.fixture
def calls() -> list[str]:
    return []


PAIRS = [
    pytest.param(face, way, id=f"{face}-{way}")
    for number, way in enumerate(WAYS)
    for other, face in enumerate(FACES)
    if (number + other) % 5 == 0
]
"""Each way with every fifth face, and so each face with every fifth way."""


@pytest.mark.parametrize(("face", "way"), PAIRS)
def test_each_user_of_a_graph_has_a_result_of_their_own(
    face: str, way: str, calls: list[str]
) -> None:
    store = InMemoryStore()

    def look_up(_: str) -> str:
        calls.append(WAYS[way].read())
        return f"balance of {calls[-1]}"

    ask = FACES[face](look_up, store)
    for user in ("ann", "bob", "ann"):
        assert run_as(WAYS[way], user, store, ask) == f"balance of {user}"
    assert len(calls) == (2 if WAYS[way].in_key else 3), "Ann, who asks again, is served if she may"


@pytest.mark.parametrize("face", FACES)
def test_a_step_in_a_graph_that_gets_nothing_is_still_cached(face: str, calls: list[str]) -> None:
    store = InMemoryStore()
    ask = FACES[face](noting(calls), store)
    assert [ask() for _ in range(3)] == ["the table"] * 3
    assert len(calls) == 1


@pytest.mark.parametrize("way", ["context, a dataclass", "metadata", "context variable"])
@pytest.mark.parametrize("face", ["tool_node", "node_function", "answer", "retriever"])
def test_users_who_ask_at_the_same_time_have_results_of_their_own(face: str, way: str) -> None:
    def look_up(_: str) -> str:
        user = WAYS[way].read()
        entered.set()
        release.wait(5)
        return f"balance of {user}"

    entered, release = threading.Event(), threading.Event()
    ask = refused(lambda: FACES[face](look_up, None))
    if ask == REFUSED:
        return
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run_as, WAYS[way], "ann", None, ask)
        entered.wait(5)
        second = pool.submit(run_as, WAYS[way], "bob", None, ask)
        threading.Timer(0.1, release.set).start()
        assert first.result() in {"balance of ann", REFUSED}
        assert second.result() in {"balance of bob", REFUSED}


@pytest.mark.parametrize("face", ["tool_node", "node_function", "answer", "retriever"])
def test_two_graphs_with_stores_of_their_own(face: str) -> None:
    """One cached step in two applications, each of which has its own store."""
    made: dict[str, Any] = {}

    def look_up(_: str) -> str:
        return f"balance of {get_store().get(('users',), 'current').value['user']}"  # type: ignore[union-attr]

    def ask(user: str) -> str:
        store = InMemoryStore()
        put(user, store)
        if face == "tool_node":
            tool = made.setdefault("it", cached_tool(plain_tool(look_up)))
            return told(one_node(ToolNode([tool]), store).invoke(call()))
        if face == "node_function":
            node = made.setdefault(
                "it", cached_node(lambda s: {"found": look_up(s["question"])}, reads=["question"])
            )
        elif face == "answer":
            cached = made.setdefault("it", answers_of(look_up))
            node = RunnableLambda(lambda s: {"found": cached.invoke(s["question"])})
        else:
            cached = made.setdefault("it", retriever_of(look_up))
            node = RunnableLambda(lambda s: {"found": cached.invoke(s["question"])[0].page_content})
        return str(one_node(node, store).invoke({"question": QUESTION})["found"])

    for user in ("ann", "bob"):
        assert refused(ask, user) in {f"balance of {user}", REFUSED}


# What is injected into parameters.


def by_runtime_context(query: str, runtime: ToolRuntime[Any, Any]) -> str:
    """Look it up."""
    return str(runtime.context["user"])


def by_runtime_state(query: str, runtime: ToolRuntime[Any, Any]) -> str:
    """Look it up."""
    return str(runtime.state["user"])


def by_runtime_config(query: str, runtime: ToolRuntime[Any, Any]) -> str:
    """Look it up."""
    return str(runtime.config["metadata"]["user"])


def by_runtime_store(query: str, runtime: ToolRuntime[Any, Any]) -> str:
    """Look it up."""
    return str(runtime.store.get(("users",), "current").value["user"])  # type: ignore[union-attr]


def by_runtime_call(query: str, runtime: ToolRuntime[Any, Any]) -> str:
    """Look it up."""
    return str(runtime.tool_call_id)


def by_state(query: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
    """Look it up."""
    return str(state["user"])


def by_a_value_of_the_state(query: str, user: Annotated[str, InjectedState("user")]) -> str:
    """Look it up."""
    return user


def by_store(query: str, store: Annotated[Any, InjectedStore()]) -> str:
    """Look it up."""
    return str(store.get(("users",), "current").value["user"])


def by_call_id(query: str, call_id: Annotated[str, InjectedToolCallId]) -> str:
    """Look it up."""
    return call_id


def by_config(query: str, config: RunnableConfig) -> str:
    """Look it up."""
    return str(config["metadata"]["user"])


def by_config_tags(query: str, config: RunnableConfig) -> str:
    """Look it up."""
    return next(tag[5:] for tag in config["tags"] if tag.startswith("user:"))


def by_callbacks(query: str, callbacks: Any) -> str:
    """Look it up."""
    return str(callbacks.metadata["user"])


class UserState(MessagesState):
    user: str


def run_of(user: str, *places: str) -> dict[str, Any]:
    """Arguments of a graph's run that name the user in some places, and in no others."""
    config = {
        "metadata": {"user": user},
        "tags": [f"user:{user}"],
        "configurable": {"thread_id": user},
    }
    run: dict[str, Any] = {"config": {name: config[name] for name in places if name in config}}
    return {**run, "context": {"user": user}} if "context" in places else run


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("function", "place"),
    [
        (by_runtime_context, "context"),
        (by_runtime_state, "state"),
        (by_runtime_config, "metadata"),
        (by_runtime_store, "store"),
        (by_runtime_call, "call"),
        (by_state, "state"),
        (by_a_value_of_the_state, "state"),
        (by_store, "store"),
        (by_call_id, "call"),
        (by_config, "metadata"),
        (by_config_tags, "tags"),
        (by_callbacks, "metadata"),
    ],
)
def test_what_is_injected_into_a_tool(
    function: Callable[..., str], place: str, later: bool
) -> None:
    store = InMemoryStore()
    plain = StructuredTool.from_function(function, name="look_up")
    tool = refused(lambda: cached_tool(plain, query_argument="query"))
    if tool == REFUSED:
        return

    def graph(each: BaseTool) -> Any:
        graph = StateGraph(UserState, context_schema=Any)  # type: ignore[type-var]
        graph.add_node("n", ToolNode([each]))
        graph.add_edge(START, "n")
        return graph.compile(store=store)

    def ask(app: Any, user: str) -> str:
        put(user if place == "store" else "all", store)
        run = run_of(user, place)
        state = call(
            user=user if place == "state" else "all", tool_id=user if place == "call" else "1"
        )
        return told(asyncio.run(app.ainvoke(state, **run)) if later else app.invoke(state, **run))

    assert ask(graph(plain), "eve") == "eve"
    app = graph(tool)
    for user in ("ann", "bob"):
        assert refused(ask, app, user) in {user, REFUSED}


def node_of_runtime(state: Messages, runtime: Runtime[Any]) -> Any:
    return {"found": runtime.context["user"]}


def node_of_store(state: Messages, *, store: BaseStore) -> Any:
    return {"found": store.get(("users",), "current").value["user"]}  # type: ignore[union-attr]


def node_of_metadata(state: Messages, config: RunnableConfig) -> Any:
    return {"found": config["metadata"]["user"]}


def node_of_tags(state: Messages, config: RunnableConfig) -> Any:
    return {"found": next(tag[5:] for tag in config["tags"] if tag.startswith("user:"))}


def node_of_thread(state: Messages, config: RunnableConfig) -> Any:
    return {"found": config["configurable"]["thread_id"]}


def node_of_all_it_gets(state: Any, config: RunnableConfig, runtime: Any = None) -> Any:
    return {"found": config["configurable"]["__pregel_runtime"].context["user"]}


class NodeObject:
    def __call__(self, state: Messages, config: RunnableConfig) -> Any:
        return {"found": config["metadata"]["user"]}


class NodeMethod:
    def search(self, state: Messages, runtime: Runtime[Any]) -> Any:
        return {"found": runtime.context["user"]}


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("node", "place"),
    [
        (node_of_runtime, "context"),
        (node_of_store, "store"),
        (node_of_metadata, "metadata"),
        (node_of_tags, "tags"),
        (node_of_thread, "configurable"),
        (node_of_all_it_gets, "context"),
        (NodeObject(), "metadata"),
        (NodeMethod().search, "context"),
        (RunnableLambda(node_of_metadata), "metadata"),
    ],
    ids=lambda each: each if isinstance(each, str) else getattr(each, "__name__", "object"),
)
def test_what_is_injected_into_a_node(node: Any, place: str, later: bool) -> None:
    store = InMemoryStore()
    cached = refused(lambda: cached_node(node, reads=["question"]))
    if cached == REFUSED:
        return

    def graph(each: Any) -> Any:
        graph = StateGraph(Messages, context_schema=Any)  # type: ignore[type-var]
        graph.add_node("n", each)
        graph.add_edge(START, "n")
        return graph.compile(store=store)

    def ask(app: Any, user: str) -> str:
        put(user if place == "store" else "all", store)
        run = run_of(user, place)
        state = {"question": QUESTION}
        done = asyncio.run(app.ainvoke(state, **run)) if later else app.invoke(state, **run)
        return str(done["found"])

    assert ask(graph(node), "eve") == "eve"
    app = graph(cached)
    for user in ("ann", "bob"):
        assert refused(ask, app, user) in {user, REFUSED}


@pytest.mark.parametrize(
    ("face", "by"),
    [
        ("tool", "get_stream_writer"),
        ("tool", "the runtime"),
        ("node", "get_stream_writer"),
        ("node", "the runtime"),
        ("node", "a parameter"),  # tools have no such parameter
    ],
)
def test_what_a_step_writes_to_the_stream_reaches_each_reader(face: str, by: str) -> None:
    """A served result writes nothing: such a step is refused, or not kept, or written again."""

    def write(_: str) -> str:
        (get_stream_writer() if by == "get_stream_writer" else get_runtime().stream_writer)("half")
        return "whole"

    def node(state: Messages) -> Any:
        return {"found": write(state["question"])}

    def node_of_writer(state: Messages, writer: StreamWriter) -> Any:
        writer("half")
        return {"found": "whole"}

    def make() -> Any:
        if face == "tool":
            return ToolNode([cached_tool(plain_tool(write))])
        return cached_node(node_of_writer if by == "a parameter" else node, reads=["question"])

    made = refused(make)
    if made == REFUSED:
        return
    app = one_node(made)
    for _ in range(2):
        written = list(app.stream(call(question=QUESTION), stream_mode="custom"))
        assert written == ["half"]


def test_what_an_entrypoint_returned_before() -> None:
    def look_up(_: str) -> str:
        return f"after {get_runtime().previous}"

    tool = cached_tool(plain_tool(look_up))

    @entrypoint(checkpointer=InMemorySaver())
    def flow(question: str) -> Any:
        return entrypoint.final(value=tool.invoke({"query": "x"}), save=question)

    config: RunnableConfig = {"configurable": {"thread_id": "1"}}
    assert flow.invoke("first", config) == "after None"
    assert refused(lambda: flow.invoke("second", config)) in {"after first", REFUSED}


# Interrupts: one person's decision is no other's.


def decide(question: str) -> str:
    decision = interrupt({"approve": question})
    return f"{question}: {decision}"


def decide_twice(question: str) -> str:
    return f"{question}: {interrupt('first?')} {interrupt('second?')}"


def decide_in_a_graph(question: str) -> str:
    inner = one_node(lambda state: {"found": decide(state["question"])})
    return str(inner.invoke({"question": question})["found"])


def decide_and_go_on(question: str) -> str:
    """Writes an approval down, and does not tell that a person gave it."""
    interrupt("approve?")
    return f"{question}: done"


def node_of(look_up: Step) -> Any:
    return cached_node(lambda state: {"found": look_up(state["question"])}, reads=["question"])


def answer_node(look_up: Step) -> Any:
    cached = answers_of(look_up)
    return lambda state: {"found": cached.invoke(state["question"])}


def answer_stream_node(look_up: Step) -> Any:
    cached = answers_of(look_up)
    return lambda state: {"found": "".join(cached.stream(state["question"]))}


def retriever_node(look_up: Step) -> Any:
    cached = retriever_of(look_up)
    return lambda state: {"found": cached.invoke(state["question"])[0].page_content}


def tool_called(look_up: Step) -> Any:
    tool = cached_tool(plain_tool(look_up))
    return lambda state: {"found": tool.invoke({"query": state["question"]})}


def tools(look_up: Step) -> Any:
    return ToolNode([cached_tool(plain_tool(look_up), query_argument="query")])


def subgraph(look_up: Step) -> Any:
    inner = one_node(lambda state: {"found": look_up(state["question"])})
    return cached_node(inner, reads=["question"])


@pytest.mark.parametrize(
    ("make", "look_up", "later"),
    [
        (make, look_up, (number + other) % 2 == 1)
        for number, make in enumerate(
            (node_of, answer_node, answer_stream_node, retriever_node, tool_called, tools, subgraph)
        )
        for other, look_up in enumerate((decide, decide_twice, decide_in_a_graph, decide_and_go_on))
    ],
)
def test_everybody_is_asked(make: Callable[[Step], Any], look_up: Step, later: bool) -> None:
    node = refused(lambda: make(look_up))
    if node == REFUSED:
        return
    app = one_node(node, checkpointer=InMemorySaver())

    def invoke(value: Any, config: Any) -> Any:
        return asyncio.run(app.ainvoke(value, config)) if later else app.invoke(value, config)

    def person(name: str, decision: str) -> tuple[int, str]:
        config = {"configurable": {"thread_id": name}}
        state, asked = invoke(call(question="pay 7"), config), 0
        while "__interrupt__" in state:
            asked += 1
            state = invoke(Command(resume=decision), config)
        return asked, str(state["found"] if "found" in state else told(state))

    expected = 2 if look_up is decide_twice else 1
    outcomes = [refused(person, n, d) for n, d in (("ann", "yes"), ("bob", "no"))]
    if REFUSED in outcomes:
        return
    for (asked, text), decision in zip(outcomes, ("yes", "no"), strict=True):
        assert asked == expected
        if look_up is not decide_and_go_on:
            assert decision in text


def test_a_run_that_was_interrupted_elsewhere_and_resumed_still_serves(calls: list[str]) -> None:
    """Another step's question to a person does not switch the cache of this one off."""

    def approve(state: Messages) -> Any:
        return {"messages": [interrupt("approve?")]}

    graph = StateGraph(Messages)
    graph.add_node("approve", approve)
    graph.add_node("look up", node_of(noting(calls)))
    graph.add_edge(START, "approve")
    graph.add_edge("approve", "look up")
    app: Any = graph.compile(checkpointer=InMemorySaver())
    for user in ("ann", "bob"):
        config = {"configurable": {"thread_id": user}}
        assert "__interrupt__" in app.invoke({"question": QUESTION}, config)
        state = app.invoke(Command(resume=user), config)
        assert (state["messages"], state["found"]) == ([user], "the table")
    assert len(calls) == 1


# LangChain without a graph.


class ToolOfManager(BaseTool):
    name: str = "look_up"
    description: str = "Look it up."

    def _run(self, query: str, run_manager: CallbackManagerForToolRun | None = None) -> str:
        assert run_manager is not None
        return str(run_manager.metadata["user"])


class ToolOfTags(BaseTool):
    name: str = "look_up"
    description: str = "Look it up."

    def _run(self, query: str, run_manager: CallbackManagerForToolRun | None = None) -> str:
        assert run_manager is not None
        return next(tag[5:] for tag in run_manager.tags if tag.startswith("user:"))


class ToolOfConfig(BaseTool):
    name: str = "look_up"
    description: str = "Look it up."

    def _run(self, query: str, config: RunnableConfig) -> str:
        return str(config["metadata"]["user"])


class RetrieverOfManager(BaseRetriever):
    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(str(run_manager.metadata["user"]), id="1")]


class RetrieverOfTags(BaseRetriever):
    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [
            Document(next(tag[5:] for tag in run_manager.tags if tag.startswith("user:")), id="1")
        ]


def by_metadata(user: str) -> RunnableConfig:
    return {"metadata": {"user": user}}


def by_tags(user: str) -> RunnableConfig:
    return {"tags": ["all", f"user:{user}"]}


def by_metadata_of_callbacks(user: str) -> RunnableConfig:
    metadata = {"user": user}
    manager = CallbackManager([], metadata=metadata, inheritable_metadata=metadata)
    return {"callbacks": manager}


def by_tags_of_callbacks(user: str) -> RunnableConfig:
    tags = [f"user:{user}"]
    return {"callbacks": CallbackManager([], tags=tags, inheritable_tags=tags)}


def by_nothing(_: str) -> RunnableConfig:
    return {}


OfUser = Callable[[str], RunnableConfig]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("plain", "of_user"),
    [
        (ToolOfManager(), by_metadata),
        (ToolOfTags(), by_tags),
        (ToolOfConfig(), by_metadata),
        (StructuredTool.from_function(by_config, name="look_up"), by_metadata),
        (StructuredTool.from_function(by_config_tags, name="look_up"), by_tags),
        (plain_tool(lambda _: ensure_config()["metadata"]["user"]), by_metadata),
        (plain_tool(lambda _: WHO.get()), by_nothing),
        (ToolOfManager(), by_metadata_of_callbacks),
        (ToolOfTags(), by_tags_of_callbacks),
    ],
    ids=[
        *("manager", "tags", "config", "function", "function tags", "current", "variable"),
        *("manager's metadata", "manager's tags"),
    ],
)
def test_a_tool_of_a_run_with_metadata(plain: BaseTool, of_user: OfUser, later: bool) -> None:
    def ask(tool: BaseTool, user: str) -> str:
        def request() -> Any:
            WHO.set(user)
            if later:
                return asyncio.run(tool.ainvoke({"query": QUESTION}, of_user(user)))
            return tool.invoke({"query": QUESTION}, of_user(user))

        return str(contextvars.copy_context().run(request))

    assert ask(plain, "eve") == "eve"
    tool = refused(lambda: cached_tool(plain))
    if tool == REFUSED:
        return
    for user in ("ann", "bob"):
        assert refused(ask, tool, user) in {user, REFUSED}


@pytest.mark.parametrize(
    ("kind", "of_user", "how"),
    [
        (RetrieverOfManager, by_metadata, "invoke"),
        (RetrieverOfManager, by_metadata, "batch"),
        (RetrieverOfTags, by_tags, "ainvoke"),
        (RetrieverOfTags, by_tags, "settings"),
        (RetrieverOfManager, by_metadata_of_callbacks, "settings"),
        (RetrieverOfManager, by_metadata_of_callbacks, "ainvoke"),
        (RetrieverOfTags, by_tags_of_callbacks, "invoke"),
        (RetrieverOfTags, by_tags_of_callbacks, "batch"),
    ],
)
def test_a_wrapped_retriever_of_a_run_with_metadata(kind: Any, of_user: OfUser, how: str) -> None:
    cached = refused(
        lambda: ApproximateCacheRetriever.from_retriever(kind(), embeddings=langchain_embeddings())
    )
    if cached == REFUSED:
        return

    def ask(user: str) -> str:
        if how == "ainvoke":
            documents = asyncio.run(cached.ainvoke(QUESTION, of_user(user)))
        elif how == "batch":
            documents = cached.batch([QUESTION], [of_user(user)])[0]
        elif how == "settings":
            documents = cached.with_config(of_user(user)).invoke(QUESTION)
        else:
            documents = cached.invoke(QUESTION, of_user(user))
        return str(documents[0].page_content)

    for user in ("ann", "bob"):
        assert refused(ask, user) in {user, REFUSED}


CHAINS: dict[str, tuple[Any, OfUser]] = {
    "metadata": (RunnableLambda(lambda _, config: config["metadata"]["user"]), by_metadata),
    "tags": (
        RunnableLambda(
            lambda _, config: next(tag[5:] for tag in config["tags"] if tag.startswith("user:"))
        ),
        by_tags,
    ),
    "current": (RunnableLambda(lambda _: ensure_config()["metadata"]["user"]), by_metadata),
    "deep within": (
        RunnableLambda(lambda inputs: inputs)
        | RunnableLambda(lambda _: {"a": 1})
        | RunnableLambda(lambda _, config: config["metadata"]["user"]),
        by_metadata,
    ),
    "manager": (RunnableLambda(lambda _, run_manager: run_manager.metadata["user"]), by_metadata),
    "manager's own": (
        RunnableLambda(lambda _, run_manager: run_manager.metadata["user"]),
        by_metadata_of_callbacks,
    ),
}
HOWS = ("invoke", "ainvoke", "stream", "astream", "batch", "abatch")


@pytest.mark.parametrize(
    ("chain", "how"),
    [
        (chain, how)
        for number, chain in enumerate(CHAINS)
        for other, how in enumerate(HOWS)
        if (number + other) % 2 == 0
    ],
)
def test_an_answer_of_a_run_with_metadata(chain: str, how: str) -> None:
    plain, of_user = CHAINS[chain]
    cached = AnswerCache(
        chain=plain,
        retriever=RunnableLambda(page),
        documents_key="context",
        tolerance=0,
    )

    async def streamed(user: str) -> str:
        return "".join([piece async for piece in cached.astream(QUESTION, of_user(user))])

    def ask(user: str) -> str:
        match how:
            case "invoke":
                return str(cached.invoke(QUESTION, of_user(user)))
            case "ainvoke":
                return str(asyncio.run(cached.ainvoke(QUESTION, of_user(user))))
            case "stream":
                return "".join(cached.stream(QUESTION, of_user(user)))
            case "astream":
                return asyncio.run(streamed(user))
            case "batch":
                return str(cached.batch([QUESTION], [of_user(user)])[0])
            case _:
                return str(asyncio.run(cached.abatch([QUESTION], [of_user(user)]))[0])

    for user in ("ann", "bob"):
        assert refused(ask, user) in {user, REFUSED}


def test_a_batch_of_several_users() -> None:
    cached = AnswerCache(
        chain=CHAINS["metadata"][0],
        retriever=RunnableLambda(page),
        documents_key="context",
        tolerance=0,
    )
    users = ["ann", "bob", "ann", "eve"]
    given = refused(lambda: cached.batch([QUESTION] * 4, [by_metadata(user) for user in users]))
    assert given in (users, REFUSED)


@pytest.mark.parametrize("later", [False, True])
def test_an_answer_to_who_a_context_variable_names(later: bool) -> None:
    cached = answers_of(lambda _: WHO.get())

    def ask(user: str) -> str:
        def request() -> Any:
            WHO.set(user)
            return asyncio.run(cached.ainvoke(QUESTION)) if later else cached.invoke(QUESTION)

        return str(contextvars.copy_context().run(request))

    for user in ("ann", "bob"):
        assert refused(ask, user) in {user, REFUSED}


@pytest.mark.parametrize("face", ["tool", "answer", "retriever", "node"])
def test_equal_questions_outside_a_graph_are_served(face: str, calls: list[str]) -> None:
    def look_up(query: str) -> str:
        calls.append(query)
        return "the table"

    tool, node = cached_tool(plain_tool(look_up)), node_of(look_up)
    answers, retriever = answers_of(look_up), retriever_of(look_up)
    ask: dict[str, Callable[[], Any]] = {
        "tool": lambda: tool.invoke({"query": QUESTION}),
        "answer": lambda: answers.invoke(QUESTION),
        "retriever": lambda: retriever.invoke(QUESTION)[0].page_content,
        "node": lambda: node.invoke({"question": QUESTION})["found"],
    }
    assert [ask[face]() for _ in range(3)] == ["the table"] * 3
    assert len(calls) == 1


# LlamaIndex.


class LlamaFound(LlamaRetriever):
    def __init__(self, look_up: Step) -> None:
        super().__init__()
        LOOK_UPS.append(look_up)
        self._number = len(LOOK_UPS) - 1

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        text = LOOK_UPS[self._number](query_bundle.query_str)
        return [NodeWithScore(node=TextNode(text=text, id_="1"), score=1.0)]


class Says(BaseSynthesizer):
    """Answers by what it looks up."""

    def __init__(self, look_up: Step) -> None:
        from llama_index.core.llms import MockLLM  # noqa: PLC0415 # makes an event loop

        super().__init__(llm=MockLLM())
        self._look_up = look_up

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass

    def get_response(self, query_str: str, text_chunks: Any, **_: Any) -> str:
        return self._look_up(query_str)

    async def aget_response(self, query_str: str, text_chunks: Any, **_: Any) -> str:
        return self._look_up(query_str)


def llama_tool(look_up: Step) -> FunctionTool:
    def run(query: str) -> str:
        return look_up(query)

    async def arun(query: str) -> str:
        return look_up(query)

    return FunctionTool.from_defaults(run, name="look_up", description="Look it up.", async_fn=arun)


def llama_engine(look_up: Step) -> BaseQueryEngine:
    return RetrieverQueryEngine(
        LlamaFound(lambda _: "All balances are in the table."), response_synthesizer=Says(look_up)
    )


def in_tool(look_up: Step) -> Callable[[], str]:
    tool = llama.cached_tool(llama_tool(look_up), query_argument="query")
    return lambda: str(tool.call(query=QUESTION).raw_output)


def in_tool_later(look_up: Step) -> Callable[[], str]:
    tool = llama.cached_tool(llama_tool(look_up))
    return lambda: str(asyncio.run(tool.acall(query=QUESTION)).raw_output)


def in_tool_s_callback(look_up: Step) -> Callable[[], str]:
    plain = FunctionTool.from_defaults(
        lambda query: "raw", name="look_up", description="d", callback=lambda _: look_up("q")
    )
    tool = llama.cached_tool(plain)
    return lambda: str(tool.call(query=QUESTION).content)


def in_engine_tool(look_up: Step) -> Callable[[], str]:
    tool = llama.cached_tool(QueryEngineTool.from_defaults(llama_engine(look_up)))
    return lambda: str(tool.call(input=QUESTION).content)


def in_retriever_tool(look_up: Step) -> Callable[[], str]:
    tool = llama.cached_tool(RetrieverTool.from_defaults(LlamaFound(look_up), description="d"))
    return lambda: str(tool.call(input=QUESTION).raw_output[0].text)


def in_engine(look_up: Step) -> Callable[[], str]:
    cached = llama.AnswerCache(
        llama_engine(look_up), embed_model=llama_index_embeddings(), tolerance=0
    )
    return lambda: str(cached.query(QUESTION))


def in_engine_later(look_up: Step) -> Callable[[], str]:
    cached = llama.AnswerCache(
        llama_engine(look_up), embed_model=llama_index_embeddings(), tolerance=0
    )
    return lambda: str(asyncio.run(cached.aquery(QUESTION)))


def in_retriever(look_up: Step) -> Callable[[], str]:
    cached = llama.ApproximateCacheRetriever.from_retriever(
        LlamaFound(look_up), embed_model=llama_index_embeddings()
    )
    return lambda: cached.retrieve(QUESTION)[0].text


def in_retriever_later(look_up: Step) -> Callable[[], str]:
    cached = llama.ApproximateCacheRetriever.from_retriever(
        LlamaFound(look_up), embed_model=llama_index_embeddings(), tolerance=0
    )
    return lambda: str(asyncio.run(cached.aretrieve(QUESTION))[0].text)


LLAMA_FACES = [
    in_tool,
    in_tool_later,
    in_tool_s_callback,
    in_engine_tool,
    in_retriever_tool,
    in_engine,
    in_engine_later,
    in_retriever,
    in_retriever_later,
]


@contextmanager
def variable(user: str) -> Iterator[None]:
    token = WHO.set(user)
    try:
        yield
    finally:
        WHO.reset(token)


@contextmanager
def tagged(user: str) -> Iterator[None]:
    with instrument_tags({"user": user}):
        yield


LLAMA_WAYS: dict[str, tuple[Callable[[], str], Any]] = {
    "context variable": (WHO.get, variable),
    "tags of the instrumentation": (lambda: active_instrument_tags.get()["user"], tagged),
}


@pytest.mark.parametrize("way", LLAMA_WAYS)
@pytest.mark.parametrize("face", LLAMA_FACES)
def test_each_user_in_llama_index_has_a_result_of_their_own(face: Any, way: str) -> None:
    read, entered = LLAMA_WAYS[way]
    ask = refused(lambda: face(lambda _: f"balance of {read()}"))
    if ask == REFUSED:
        return
    for user in ("ann", "bob", "ann"):
        with entered(user):
            assert refused(ask) in {f"balance of {user}", REFUSED}


@pytest.mark.parametrize("face", LLAMA_FACES)
def test_what_gets_nothing_in_llama_index_is_served(face: Any, calls: list[str]) -> None:
    ask = face(noting(calls))
    if face is in_tool_s_callback:
        assert [ask() for _ in range(3)] == ["the table"] * 3
        return  # whether a callback runs for each call is the framework's affair
    assert [ask() for _ in range(3)] == ["the table"] * 3
    assert len(calls) == 1


async def by_workflow(ctx: WorkflowContext, query: str) -> str:
    """Look it up."""
    return str(await ctx.store.get("user"))


by_workflow.__annotations__["ctx"] = WorkflowContext  # LlamaIndex reads no postponed names


async def _ask(self: Any, ctx: Any, ev: Any) -> Any:
    await ctx.store.set("user", ev.user)
    WHO.set(ev.user)
    arguments = {"ctx": ctx} if self.tool.metadata.name == "by_workflow" else {}
    output = await self.tool.acall(**arguments, query=QUESTION)
    return StopEvent(result=str(output.raw_output))


_ask.__annotations__ = {"ctx": WorkflowContext, "ev": StartEvent, "return": StopEvent}
_ask.__qualname__ = "Flow.ask"


class Flow(Workflow):
    """Calls a tool, and says who asks by its state and by a variable."""

    ask = step(_ask)

    def __init__(self, tool: Any) -> None:
        super().__init__(timeout=20)
        self.tool = tool


def by_variable(query: str) -> str:
    """Look it up."""
    return WHO.get()


@pytest.mark.parametrize("how", ["state of the workflow", "variable of the step"])
def test_a_tool_in_a_workflow(how: str) -> None:
    if how == "state of the workflow":
        plain = FunctionTool.from_defaults(async_fn=by_workflow)
    else:
        plain = FunctionTool.from_defaults(by_variable)
    tool = refused(lambda: llama.cached_tool(plain))
    if tool == REFUSED:
        return

    async def ask(user: str) -> str:
        return str(await Flow(tool).run(user=user))

    def run(user: str) -> str:
        return asyncio.run(ask(user))

    for user in ("ann", "bob"):
        assert refused(run, user) in {user, REFUSED}


def test_arguments_that_a_tool_was_given_beforehand() -> None:
    """LlamaIndex fills in ``partial_params``, which no call shows."""

    def run(query: str, user: str) -> str:
        return f"balance of {user}"

    partial = {"user": "ann"}
    plain = FunctionTool.from_defaults(run, name="look_up", partial_params=partial)
    tool = refused(lambda: llama.cached_tool(plain))
    if tool == REFUSED:
        return
    assert tool.call(query=QUESTION).raw_output == "balance of ann"
    plain.partial_params["user"] = "bob"
    assert refused(lambda: tool.call(query=QUESTION).raw_output) in {"balance of bob", REFUSED}


@pytest.mark.parametrize("field", ["image_path", "embedding", "custom_embedding_strs"])
def test_what_a_bundle_carries_besides_its_text(field: str) -> None:
    """An embedding is a form of the text: what is found by it counts, and not itself."""

    class FoundBy(LlamaRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            text = str(query_bundle.embedding)
            return [NodeWithScore(node=TextNode(text=text, id_="1"), score=1.0)]

    class Engine(RetrieverQueryEngine):
        def synthesize(
            self, query_bundle: Any, nodes: Any, additional_source_nodes: Any = None
        ) -> Any:
            text = nodes[0].text if field == "embedding" else getattr(query_bundle, field)
            return Response(str(text), source_nodes=nodes)

    engine = Engine(FoundBy(), response_synthesizer=Says(lambda _: ""))
    cached = refused(
        lambda: llama.AnswerCache(engine, embed_model=llama_index_embeddings(), tolerance=0)
    )
    if cached == REFUSED:
        return
    values: dict[str, Any] = {
        "image_path": ["ann.png", "bob.png"],
        "embedding": [[1.0, 0.0], [0.0, 1.0]],
        "custom_embedding_strs": [["ann"], ["bob"]],
    }
    for value in values[field]:
        bundle = QueryBundle(QUESTION, **{field: value})
        given = str(refused(cached.query, bundle))
        assert given in {str(value), REFUSED}


# Stores, indexes and embedding models of the application's own class.

ROWS = {"ann": "balance of ann", "bob": "balance of bob"}


def who() -> str:
    """Who asks, by a variable or by the run."""
    config = ensure_config()
    return str(WHO.get(None) or config["configurable"].get("user") or config["metadata"]["user"])


class OwnStore(InMemoryVectorStore):
    """Has row-level security, as databases do by a setting of the session."""

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        return [Document(ROWS[who()], id=who())]

    async def asimilarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        return self.similarity_search_by_vector(embedding, k)


class OwnModel(Embeddings):
    """Embeds for one user, whose rows have vectors near to it."""

    def __init__(self) -> None:
        self.calls = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.0] if "ann" in text else [0.0, 1.0] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.calls += 1
        return self.embed_documents([who()])[0]


class OwnFlatModel(OwnModel):
    """Reads nothing; its class alone is the application's."""

    def embed_query(self, text: str) -> list[float]:
        self.calls += 1
        return [0.5, 0.5]


class OwnRows(dict[str, Any]):
    """The place that a library's store reads from."""

    def values(self) -> Any:
        return [row for row in super().values() if row["id"] == who()]


def stores() -> dict[str, Any]:
    own_rows: Any = InMemoryVectorStore(OwnFlatModel())
    own_rows.add_texts(list(ROWS.values()), ids=list(ROWS))
    own_rows.store = OwnRows(own_rows.store)
    own_model: Any = InMemoryVectorStore(OwnModel())
    own_model.add_texts(list(ROWS.values()), ids=list(ROWS))
    own_method: Any = InMemoryVectorStore(langchain_embeddings())
    own_method.similarity_search_by_vector = lambda *_, **__: [Document(ROWS[who()], id=who())]
    return {
        "store": OwnStore(langchain_embeddings()),
        "rows": own_rows,
        "model": own_model,
        "method": own_method,
    }


def documents_of(store: Any, how: str) -> Callable[..., str]:
    cached = ApproximateCacheRetriever.from_vectorstore(store, k=1, tolerance=0)
    if how in ("answer", "answer stream"):
        chain = RunnableLambda(lambda inputs: inputs["context"][0].page_content)
        answers = AnswerCache(chain=chain, retriever=cached, documents_key="context", tolerance=0)
        if how == "answer":
            return lambda: str(answers.invoke(QUESTION))
        return lambda: "".join(answers.stream(QUESTION))
    if how == "stages":
        return lambda: str(list(cached.stages(QUESTION))[-1].documents[0].page_content)
    if how == "ainvoke":
        return lambda: str(asyncio.run(cached.ainvoke(QUESTION))[0].page_content)
    return lambda: str(cached.invoke(QUESTION)[0].page_content)


@pytest.mark.parametrize("by", ["variable", "context of a graph", "metadata"])
@pytest.mark.parametrize("how", ["invoke", "ainvoke", "stages", "answer", "answer stream"])
@pytest.mark.parametrize("kind", stores())
def test_a_store_of_the_application_finds_each_user_s_documents(
    kind: str, how: str, by: str
) -> None:
    find = documents_of(stores()[kind], how)
    graph = one_node(RunnableLambda(lambda _: {"found": find()}))

    def ask(user: str) -> str:
        if by == "variable":
            WHO.set(user)
            return find()
        place = "configurable" if by == "context of a graph" else "metadata"
        config: Any = {place: {"user": user}}
        return str(graph.invoke({"question": QUESTION}, config)["found"])

    for user in ("ann", "bob", "ann"):
        assert contextvars.copy_context().run(ask, user) == ROWS[user]


def test_a_store_of_the_application_is_asked_once_by_each_user() -> None:
    model = OwnModel()
    store = InMemoryVectorStore(model)
    store.add_texts(list(ROWS.values()), ids=list(ROWS))
    cached = ApproximateCacheRetriever.from_vectorstore(store, k=1)

    def ask(user: str) -> None:
        WHO.set(user)
        assert cached.invoke(QUESTION)[0].page_content == ROWS[user]

    for user in ("ann", "bob") * 3:
        contextvars.copy_context().run(ask, user)
    assert (cached.stats().misses, cached.stats().hits, model.calls) == (2, 4, 2)


def test_a_store_of_the_application_that_reads_its_thread_is_asked_each_time() -> None:
    class ByThread(InMemoryVectorStore):
        def similarity_search_by_vector(
            self, embedding: list[float], k: int = 4, **kwargs: Any
        ) -> list[Document]:
            return [Document(get_config()["configurable"]["thread_id"], id="1")]

    cached = ApproximateCacheRetriever.from_vectorstore(ByThread(langchain_embeddings()), k=1)
    graph = one_node(lambda _: {"found": cached.invoke(QUESTION)[0].page_content})
    for user in ("ann", "bob", "ann"):
        state = graph.invoke({"question": QUESTION}, configurable(user, "thread_id"))
        assert state["found"] == user
    assert cached.stats().misses == 3


def test_a_store_of_a_library_is_shared_by_requests() -> None:
    store = InMemoryVectorStore(MiniLMEmbeddings())
    store.add_texts(list(ROWS.values()))
    cached = ApproximateCacheRetriever.from_vectorstore(store, k=1)

    def ask(request: int) -> None:
        WHO.set(f"request {request}")
        cached.invoke(QUESTION)

    for request in range(3):
        contextvars.copy_context().run(ask, request)
    assert cached.stats().hits == 2


class OwnNodes(SimpleVectorStore):
    """Finds the rows of who asks."""

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        return VectorStoreQueryResult(similarities=[1.0], ids=[who()])


class OwnNodeModel(BaseEmbedding):
    """Embeds for one user."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return [1.0, 0.0] if "ann" in text else [0.0, 1.0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(who())

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


class OwnDocuments(SimpleDocumentStore):
    """Has another text for each user."""

    def get_document(self, doc_id: str, raise_error: bool = True) -> Any:
        return TextNode(id_=doc_id, text=ROWS[who()])

    def get_nodes(self, node_ids: list[str], raise_error: bool = True) -> Any:
        return [self.get_document(node_id) for node_id in node_ids]


class OwnIndex(VectorStoreIndex):
    """Has a retriever of the application's."""

    def as_retriever(self, **kwargs: Any) -> LlamaRetriever:
        return LlamaFound(lambda _: ROWS[who()])


def indexes() -> dict[str, Callable[[], VectorStoreIndex]]:
    nodes: list[Any] = [TextNode(id_=user, text=text) for user, text in ROWS.items()]
    model = llama.MiniLMEmbeddings()

    def of(**parts: Any) -> VectorStoreIndex:
        context = StorageContext.from_defaults(**parts)
        return VectorStoreIndex(nodes, storage_context=context, embed_model=model)

    return {
        "store": lambda: of(vector_store=OwnNodes()),
        "documents": lambda: of(docstore=OwnDocuments()),
        "model": lambda: VectorStoreIndex(nodes, embed_model=OwnNodeModel()),
        "index": lambda: OwnIndex(nodes, embed_model=model),
    }


def nodes_of(index: VectorStoreIndex, how: str) -> Callable[[], str]:
    own = isinstance(index, OwnIndex)  # whose retriever has no model
    model = llama.MiniLMEmbeddings() if own else None
    if how in ("answer", "answer later"):
        cached = llama.ApproximateCacheRetriever.from_index(index, model, k=1, tolerance=0)
        engine = RetrieverQueryEngine(cached, response_synthesizer=SaysAll())
        answers = llama.AnswerCache(engine, tolerance=0)
        if how == "answer":
            return lambda: str(answers.query(QUESTION))
        return lambda: str(asyncio.run(answers.aquery(QUESTION)))
    cached = llama.ApproximateCacheRetriever.from_index(index, model, k=1)
    if how == "stages":
        return lambda: list(cached.stages(QUESTION))[-1].documents[0].text
    if how == "aretrieve":
        return lambda: asyncio.run(cached.aretrieve(QUESTION))[0].text
    return lambda: cached.retrieve(QUESTION)[0].text


class SaysAll(Says):
    """Answers with the nodes' text."""

    def __init__(self) -> None:
        super().__init__(lambda _: "")

    def get_response(self, query_str: str, text_chunks: Any, **_: Any) -> str:
        return str(text_chunks[0])

    async def aget_response(self, query_str: str, text_chunks: Any, **_: Any) -> str:
        return str(text_chunks[0])


@pytest.mark.parametrize("how", ["retrieve", "aretrieve", "stages", "answer", "answer later"])
@pytest.mark.parametrize("kind", indexes())
def test_an_index_of_the_application_finds_each_user_s_nodes(kind: str, how: str) -> None:
    with variable("ann"):
        find = nodes_of(indexes()[kind](), how)
    for user in ("ann", "bob", "ann"):
        with variable(user):
            assert find() == ROWS[user]


def test_an_index_of_a_library_is_shared_by_requests() -> None:
    cached = llama.ApproximateCacheRetriever.from_index(
        VectorStoreIndex([TextNode(text="a")], embed_model=llama.MiniLMEmbeddings()), k=1
    )
    for request in range(3):
        with variable(f"request {request}"):
            cached.retrieve(QUESTION)
    assert cached.stats().hits == 2
