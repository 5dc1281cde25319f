"""What surrounds a call of a cached step, by the table in docs/answers.md, in both frameworks."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.callbacks import (
    AsyncCallbackManager,
)
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store, get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import InjectedState, InjectedStore, ToolNode
from langgraph.runtime import Runtime, ServerInfo, get_runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, StartEvent, StopEvent, Workflow, step
from llama_index_instrumentation.dispatcher import active_instrument_tags, instrument_tags
from opentelemetry import baggage, trace
from opentelemetry.context import attach, create_key, detach, get_value, set_value

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import (
    cached_node,
    cached_tool,
)
from ragcache_integrations.llama_index import cached_tool as cached_function
from tests.answers.surroundings.steps import (
    ASKS,
    CALLS,
    QUESTION,
    READS,
    STEPS,
    USER,
    Ask,
    Connection,
    State,
    Who,
    asking,
    configurable,
    graph_of,
    read,
    run,
    user_is,
)
from tests.answers.traffic import langchain_embeddings

DOCS = Path(__file__).parents[3] / "docs" / "answers.md"


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


BY_CONFIG: Runnable[Any, Any] = RunnableLambda(
    lambda _, config: config["configurable"]["thread_id"]
)


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
    "a Store that the step's own code names or holds itself": "test_a_store_that_the_code_names",
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
    ask = asking(name, store)
    found = []
    for user in users:
        if store is not None:
            store.put(("users",), "now", {"user": user})
        with case.around(user):
            found.append(await ask(**case.run(user)))
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


def test_a_store_that_the_code_names() -> None:
    store = InMemoryStore()
    node = cached_node(
        lambda state: {"found": store.get(("users",), "now").value["user"]},  # type: ignore[union-attr]
        reads=["question"],
    )
    for user in ("ann", "bob"):
        store.put(("users",), "now", {"user": user})
        assert node.invoke({"question": "who"}) == {"found": user}


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
    ask = asking(name)
    for user in ("ann", "bob", "ann"):
        with telling(said(user)):
            assert await ask() == f"balance of {user}"
    assert len(CALLS) == 2


@pytest.mark.parametrize("name", ["cached_tool", "LlamaIndex: AnswerCache"])
async def test_traces_divide_nothing(name: str) -> None:
    READS.append(lambda: "anybody")
    ask = asking(name)
    for number in (1, 2):
        span = trace.NonRecordingSpan(
            trace.SpanContext(trace_id=number, span_id=number, is_remote=False)
        )
        context = trace.set_span_in_context(span)
        context = baggage.set_baggage("sentry-trace_id", str(number), context)
        with telling(context):
            await ask()
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
