"""A user's name reaches a step by its parameters, or by a run of LangChain: none gets another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import (
    CallbackManager,
    CallbackManagerForRetrieverRun,
    CallbackManagerForToolRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, InjectedStore, ToolNode, ToolRuntime
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import StreamWriter

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
    answers_by,
    answers_of,
    call,
    each_has_a_result_of_their_own,
    in_a_request,
    node_of,
    noting,
    one_node,
    plain_tool,
    put,
    refused,
    retriever_of,
    told,
)

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
    each_has_a_result_of_their_own(lambda user: ask(app, user))


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
    each_has_a_result_of_their_own(lambda user: ask(app, user))


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
        def call_it() -> Any:
            if later:
                return asyncio.run(tool.ainvoke({"query": QUESTION}, of_user(user)))
            return tool.invoke({"query": QUESTION}, of_user(user))

        return in_a_request(user, call_it)

    assert ask(plain, "eve") == "eve"
    tool = refused(lambda: cached_tool(plain))
    if tool == REFUSED:
        return
    each_has_a_result_of_their_own(lambda user: ask(tool, user))


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

    each_has_a_result_of_their_own(ask)


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
    cached = answers_by(plain)

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

    each_has_a_result_of_their_own(ask)


def test_a_batch_of_several_users() -> None:
    cached = answers_by(CHAINS["metadata"][0])
    users = ["ann", "bob", "ann", "eve"]
    given = refused(lambda: cached.batch([QUESTION] * 4, [by_metadata(user) for user in users]))
    assert given in (users, REFUSED)


@pytest.mark.parametrize("later", [False, True])
def test_an_answer_to_who_a_context_variable_names(later: bool) -> None:
    cached = answers_of(lambda _: WHO.get())

    def ask() -> Any:
        return asyncio.run(cached.ainvoke(QUESTION)) if later else cached.invoke(QUESTION)

    each_has_a_result_of_their_own(lambda user: in_a_request(user, ask))


@pytest.mark.parametrize("face", ["tool", "answer", "retriever", "node"])
def test_equal_questions_outside_a_graph_are_served(face: str) -> None:
    calls: list[str] = []
    look_up = noting(calls)
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
