"""What divides the results of a cached step, what keeps them out, and what may be ignored."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.callbacks import (
    BaseCallbackHandler,
    get_usage_metadata_callback,
)
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableBranch, RunnableConfig, RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import get_runtime
from llama_index_instrumentation.dispatcher import instrument_tags

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import (
    AnswerCache,
    ApproximateCacheRetriever,
    cached_node,
    cached_tool,
)
from ragcache_integrations.retrievers.keys import StepWatch
from tests.answers.redis.caches import new_tag
from tests.answers.surroundings.steps import (
    ASKS,
    CALLS,
    QUESTION,
    READS,
    STEPS,
    Ask,
    Connection,
    Mine,
    Who,
    abalance,
    answers,
    ask_answers,
    ask_async_retriever,
    ask_retriever,
    ask_tool,
    balance,
    configurable,
    engine,
    graph_of,
    node_of_retriever,
    node_of_tool,
    read,
    retriever,
    run,
    user_is,
)
from tests.answers.traffic import langchain_embeddings
from tests.query_cache.redis.servers import patient, redis_server

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
    first, second = retriever(Mine()), retriever(Mine())
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
