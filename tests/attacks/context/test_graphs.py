"""Whatever a framework hands a step besides its arguments names the user: none gets another's.

Each step says whose data it reads, and finds that out in one of the ways that LangGraph, LangChain
and LlamaIndex have. Ann asks first, then Bob the same. Right are three outcomes: Bob has his own
result, because what named him is in the key or because nothing was kept, or the step is refused.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.runnables.config import ensure_config
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.runtime import get_runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from ragcache_integrations.langchain import (
    ApproximateCacheRetriever,
    cached_node,
    cached_tool,
)
from tests.answers.traffic import langchain_embeddings
from tests.attacks.context.steps import (
    QUESTION,
    REFUSED,
    WHO,
    Messages,
    Step,
    answer_node,
    answer_stream_node,
    answers_of,
    call,
    configurable,
    node_of,
    noting,
    one_node,
    plain_tool,
    put,
    refused,
    retriever_node,
    retriever_of,
    subgraph,
    told,
    tool_called,
    tools,
)


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

Ask = Callable[..., str]


def found(app: Any) -> Ask:
    return lambda **run: str(app.invoke({"question": QUESTION}, **run)["found"])


def found_later(app: Any) -> Ask:
    async def ask(**run: Any) -> str:
        return str((await app.ainvoke({"question": QUESTION}, **run))["found"])

    return lambda **run: asyncio.run(ask(**run))


def tool_node(look_up: Step, store: Any) -> Ask:
    app = one_node(tools(look_up), store)
    return lambda **run: told(app.invoke(call(), **run))


def tool_node_later(look_up: Step, store: Any) -> Ask:
    app = one_node(tools(look_up, query_argument=None), store)

    async def ask(**run: Any) -> str:
        return told(await app.ainvoke(call(), **run))

    return lambda **run: asyncio.run(ask(**run))


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


def node_function(look_up: Step) -> Any:
    def node(state: Messages) -> Any:
        return {"found": look_up(state["question"])}

    return cached_node(node, reads=["question"], query_argument="question")


def node_coroutine(look_up: Step) -> Any:
    async def node(state: Messages) -> Any:
        return {"found": look_up(state["question"])}

    return cached_node(node, reads=["question"])


def node_runnable(look_up: Step) -> Any:
    chain = RunnableLambda(lambda state: state["question"]) | (
        lambda question: {"found": look_up(question)}
    )
    return cached_node(chain, reads=["question"])


def node_that_calls_a_graph(look_up: Step) -> Any:
    inner = one_node(lambda state: {"found": look_up(state["question"])})

    def node(state: Messages) -> Any:
        return {"found": inner.invoke({"question": state["question"]})["found"]}

    return cached_node(node, reads=["question"])


def answer_later(look_up: Step) -> Any:
    cached = answers_of(look_up)

    async def node(state: Messages) -> Any:
        return {"found": await cached.ainvoke(state["question"])}

    return node


def answer_with_the_configuration(look_up: Step) -> Any:
    cached = answers_of(look_up)

    def node(state: Messages, config: RunnableConfig) -> Any:
        return {"found": cached.invoke({"input": state["question"]}, config)}

    return node


def answer_as_a_node(look_up: Step) -> Any:
    return (
        RunnableLambda(lambda state: state["question"])
        | answers_of(look_up)
        | (lambda text: {"found": text})
    )


def retriever_later(look_up: Step) -> Any:
    cached = retriever_of(look_up)

    async def node(state: Messages) -> Any:
        return {"found": (await cached.ainvoke(state["question"]))[0].page_content}

    return node


def retriever_of_a_runnable(look_up: Step) -> Any:
    cached = ApproximateCacheRetriever.from_retriever(
        RunnableLambda(lambda query: [Document(look_up(query), id="1")]),
        embeddings=langchain_embeddings(),
    )
    return lambda state: {"found": cached.invoke(state["question"])[0].page_content}


def in_a_graph(make: Callable[[Step], Any], ask: Callable[[Any], Ask] = found) -> Any:
    """How to ask a graph whose only node finds the answer."""
    return lambda look_up, store: ask(one_node(make(look_up), store))


FACES: dict[str, Callable[[Step, Any], Ask]] = {
    "tool_node": tool_node,
    "tool_node_later": tool_node_later,
    "tool_in_a_node": in_a_graph(tool_called),
    "tool_of_an_agent": tool_of_an_agent,
    "tool_in_an_entrypoint": tool_in_an_entrypoint,
    "node_function": in_a_graph(node_function),
    "node_coroutine": in_a_graph(node_coroutine, found_later),
    "node_runnable": in_a_graph(node_runnable),
    "node_graph": in_a_graph(subgraph),
    "node_graph_later": in_a_graph(subgraph, found_later),
    "node_in_a_subgraph": in_a_graph(lambda look_up: one_node(node_of(look_up))),
    "node_that_calls_a_graph": in_a_graph(node_that_calls_a_graph),
    "answer": in_a_graph(answer_node),
    "answer_later": in_a_graph(answer_later, found_later),
    "answer_streamed": in_a_graph(answer_stream_node),
    "answer_with_the_configuration": in_a_graph(answer_with_the_configuration),
    "answer_as_a_node": in_a_graph(answer_as_a_node),
    "answer_in_a_task": answer_in_a_task,
    "retriever": in_a_graph(retriever_node),
    "retriever_later": in_a_graph(retriever_later, found_later),
    "retriever_of_exact_text": in_a_graph(lambda look_up: retriever_node(look_up, tolerance=0)),
    "retriever_of_a_runnable": in_a_graph(retriever_of_a_runnable),
}


def run_as(way: Way, user: str, store: Any, ask: Ask) -> str:
    """One request of a user, in a context of its own, as a server would run it."""

    def request() -> str:
        way.before(user, store)
        run: dict[str, Any] = {"config": way.config(user)}
        if (context := way.context(user)) is not None:
            run["context"] = context
        return ask(**run)

    return str(refused(lambda: contextvars.copy_context().run(request)))


PAIRS = [
    pytest.param(face, way, id=f"{face}-{way}")
    for number, way in enumerate(WAYS)
    for other, face in enumerate(FACES)
    if (number + other) % 5 == 0
]
"""Each way with every fifth face, and so each face with every fifth way."""


@pytest.mark.parametrize(("face", "way"), PAIRS)
def test_each_user_of_a_graph_has_a_result_of_their_own(face: str, way: str) -> None:
    calls: list[str] = []
    store = InMemoryStore()

    def look_up(_: str) -> str:
        calls.append(WAYS[way].read())
        return f"balance of {calls[-1]}"

    ask = FACES[face](look_up, store)
    for user in ("ann", "bob", "ann"):
        assert run_as(WAYS[way], user, store, ask) == f"balance of {user}"
    assert len(calls) == (2 if WAYS[way].in_key else 3), "Ann, who asks again, is served if she may"


@pytest.mark.parametrize("face", FACES)
def test_a_step_in_a_graph_that_gets_nothing_is_still_cached(face: str) -> None:
    calls: list[str] = []
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

    def look_up(_: str) -> str:
        return f"balance of {get_store().get(('users',), 'current').value['user']}"  # type: ignore[union-attr]

    makes: dict[str, Callable[[Step], Any]] = {
        "tool_node": lambda look_up: tools(look_up, query_argument=None),
        "node_function": node_of,
        "answer": answer_node,
        "retriever": retriever_node,
    }
    node = refused(lambda: makes[face](look_up))
    if node == REFUSED:
        return

    def ask(user: str) -> str:
        store = InMemoryStore()
        put(user, store)
        state = one_node(node, store).invoke(call(question=QUESTION))
        return told(state) if face == "tool_node" else str(state["found"])

    for user in ("ann", "bob"):
        assert refused(ask, user) in {f"balance of {user}", REFUSED}


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


MAKES = (
    *(node_of, answer_node, answer_stream_node, retriever_node, tool_called),
    *(tools, subgraph),
)


@pytest.mark.parametrize(
    ("make", "look_up", "later"),
    [
        (make, look_up, (number + other) % 2 == 1)
        for number, make in enumerate(MAKES)
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


def test_a_run_that_was_interrupted_elsewhere_and_resumed_still_serves() -> None:
    """Another step's question to a person does not switch the cache of this one off."""
    calls: list[str] = []

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
