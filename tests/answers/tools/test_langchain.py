"""Cached LangChain tools: what is asked again, and what is not."""

from __future__ import annotations

import copy
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    ToolException,
    tool,
)
from llama_index.core.tools import FunctionTool
from pydantic import PrivateAttr

from ragcache_integrations import llama_index
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import MiniLMEmbeddings, cached_tool
from tests.answers.traffic import UNREAD, langchain_embeddings

CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def calls() -> list[Any]:
    CALLS.clear()
    return CALLS


@tool
def search(query: str, count: int = 3) -> list[str]:
    """Search the archive."""
    CALLS.append((query, count))
    if "nothing" in query:
        return []
    if "broken" in query:
        msg = f"the archive is closed ({len(CALLS)})"
        raise ToolException(msg)
    return [f"{query.split(maxsplit=1)[0]} {number}" for number in range(count)]


async def test_equal_calls_are_made_once(calls: list[Any]) -> None:
    cached = cached_tool(search, query_argument="query")
    assert (cached.name, cached.description, cached.args) == (
        search.name,
        search.description,
        search.args,
    )
    assert cached.invoke({"query": "rome is it nice"}) == ["rome 0", "rome 1", "rome 2"]
    found = cached.invoke({"query": "rome  is it nice?"})
    found.clear()
    assert await cached.ainvoke({"query": "rome is it nice"}) == ["rome 0", "rome 1", "rome 2"]
    assert cached.invoke({"query": "rome is it nice", "count": 1}) == ["rome 0"]
    assert calls == [("rome is it nice", 3), ("rome is it nice", 1)]
    assert cached.stats().hits == 2


@tool
def mail(query: str, config: RunnableConfig) -> str:
    """Search the user's mail."""
    CALLS.append(query)
    return f"mail of {config['configurable'].get('user', 'nobody')}"


async def test_each_user_of_a_tool_that_reads_the_run_s_values_has_results_of_their_own() -> None:
    cached = cached_tool(mail, query_argument="query")

    def config(**values: str) -> RunnableConfig:
        return {"configurable": values}

    for user in ("ann", "bob"):
        for conversation in ("1", "2"):
            of_user = config(user=user, thread_id=conversation)
            assert cached.invoke({"query": "rome"}, of_user) == f"mail of {user}"
            assert await cached.ainvoke({"query": "rome"}, of_user) == f"mail of {user}"
    assert cached.invoke({"query": "rome"}) == "mail of nobody"
    around = RunnableLambda(lambda question: cached.invoke({"query": question}))
    assert around.invoke("rome", config(user="ann")) == "mail of ann"
    assert around.invoke("rome", config(user="eve")) == "mail of eve"
    assert len(CALLS) == 4


def test_a_call_of_a_model_gets_its_message() -> None:
    cached = cached_tool(search)
    call = {"type": "tool_call", "name": "search", "args": {"query": "rome"}}
    for number in range(2):
        message = cached.invoke(call | {"id": f"call {number}"})
        assert isinstance(message, ToolMessage)
        assert (message.tool_call_id, message.name) == (f"call {number}", "search")
        assert message.content == search.invoke(call | {"id": "plain"}).content
    assert cached.stats().hits == 1


def test_nothing_found_and_errors_are_asked_again(calls: list[Any]) -> None:
    cached = cached_tool(search)
    for _ in range(2):
        assert cached.invoke({"query": "nothing"}) == []
        with pytest.raises(ToolException, match="the archive is closed"):
            cached.invoke({"query": "broken"})
    assert len(calls) == 4
    assert (cached.stats().entries, cached.stats().unkept) == (0, 2)


def test_errors_that_a_tool_turns_into_text_are_asked_again() -> None:
    cached = cached_tool(search.model_copy(update={"handle_tool_error": True}))
    assert cached.invoke({"query": "broken"}) == "the archive is closed (1)"
    assert cached.invoke({"query": "broken"}) == "the archive is closed (2)"


def test_what_is_kept_is_for_the_caller_to_say(calls: list[Any]) -> None:
    cached = cached_tool(search, keep=lambda found: len(found) > 1)
    for _ in range(2):
        cached.invoke({"query": "rome", "count": 1})
    assert len(calls) == 2


def test_artifacts_are_kept_with_the_content() -> None:
    @tool(response_format="content_and_artifact")
    def lookup(name: str) -> tuple[str, dict[str, int]]:
        """Look something up."""
        CALLS.append(name)
        return f"about {name}", {"number": len(CALLS)}

    cached = cached_tool(lookup)
    for number in range(2):
        call = {"type": "tool_call", "name": "lookup", "args": {"name": "rome"}, "id": str(number)}
        message = cached.invoke(call)
        assert (message.content, message.artifact) == ("about rome", {"number": 1})
        message.artifact["number"] = 7


def test_what_is_injected_and_cannot_be_compared_is_never_cached(calls: list[Any]) -> None:
    @tool
    def read(name: str, connection: Annotated[Any, InjectedToolArg]) -> str:
        """Read something."""
        calls.append(name)
        return name

    cached = cached_tool(read)
    for _ in range(2):
        assert cached.invoke({"name": "rome", "connection": object()}) == "rome"
    assert len(calls) == 2
    for _ in range(2):
        assert cached.invoke({"name": "rome", "connection": "same"}) == "rome"
    assert len(calls) == 3


def test_a_near_query_gets_the_result_and_one_that_differs_does_not(calls: list[Any]) -> None:
    cached = cached_tool(
        search, query_argument="query", embeddings=langchain_embeddings(), tolerance=0.6
    )
    cached.invoke({"query": "rome is it nice"})
    assert cached.invoke({"query": "rome is it pretty"}) == ["rome 0", "rome 1", "rome 2"]
    cached.invoke({"query": "rome is it nice in 1950"})
    assert [query for query, _ in calls] == ["rome is it nice", "rome is it nice in 1950"]


class Runs(BaseCallbackHandler):
    """Hears runs of tools."""

    def __init__(self) -> None:
        self.names: list[tuple[str, bool]] = []

    def on_tool_start(self, serialized: Any, input_str: str, **run: Any) -> None:
        self.names.append((serialized["name"], run["parent_run_id"] is None))


def test_traces_show_whether_the_tool_ran() -> None:
    cached, runs = cached_tool(search), Runs()
    cached.invoke({"query": "rome"}, {"callbacks": [runs]})
    assert runs.names == [("search", True), ("search", False)]
    cached.invoke({"query": "rome"}, {"callbacks": [runs]})
    assert runs.names[2:] == [("search", True)]


def test_what_cannot_be_a_cached_tool() -> None:
    with pytest.raises(ConfigurationError, match="tool must be a BaseTool, got 'search'"):
        cached_tool("search")  # type: ignore[arg-type] # the point
    with pytest.raises(ConfigurationError, match="which has 'query', 'count', got 'text'"):
        cached_tool(search, query_argument="text")
    with pytest.raises(ConfigurationError, match="did you mean 'ttl'"):
        cached_tool(search, tll=3)  # type: ignore[call-arg] # the point


async def test_a_text_alone_and_a_default_are_as_without_the_cache(calls: list[Any]) -> None:
    @tool
    def find(query: str = "all") -> str:
        """Find."""
        calls.append(query)
        return query

    cached = copy.deepcopy(cached_tool(find, query_argument="query"))
    assert [cached.invoke("rome"), await cached.ainvoke("rome"), cached.invoke({})] == [
        *["rome"] * 2,
        "all",
    ]
    assert calls == ["rome", "all"]


def test_what_is_no_embedding_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="embeddings must be Embeddings or None, got 3"):
        cached_tool(search, embeddings=3)  # type: ignore[arg-type]


@tool
def hand_over(query: str, call: Annotated[str, InjectedToolCallId]) -> str:
    """Answer a call."""
    return call


@pytest.mark.parametrize("given", [{}, {"query_argument": "query"}, {"embeddings": "some"}])
def test_a_tolerance_that_compares_nothing_is_refused(given: dict[str, Any]) -> None:
    if "embeddings" in given:
        given = {"embeddings": langchain_embeddings()}

    @tool
    def plain(query: str) -> str:
        """Return the query."""
        return query

    with pytest.raises(ConfigurationError, match="pass query_argument= and the embedding model"):
        cached_tool(plain, tolerance=0.7, **given)
    assert cached_tool(plain, **given).invoke({"query": "a"}) == "a"


def test_a_tool_that_gets_the_id_of_its_call_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hand_over gets the id of each call"):
        cached_tool(hand_over)


async def test_messages_that_a_tool_returns_are_new_ones() -> None:
    def write(query: str) -> list[AIMessage]:
        """Write an answer."""
        CALLS.append(query)
        return [AIMessage(query, id="lc_run--1")]

    cached = cached_tool(tool(write))
    served = [cached.invoke({"query": "rome"}), await cached.ainvoke({"query": "rome"})]
    assert len({message.id for [message] in served}) == 2
    call = {"type": "tool_call", "name": "write", "args": {"query": "rome"}}
    for name in "ab":
        assert cached.invoke({**call, "id": name}).tool_call_id == name
    assert CALLS == ["rome"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_tool_whose_model_was_cut_off_is_asked_again(asynchronous: bool) -> None:
    cut = AIMessage("first,", response_metadata={"finish_reason": "length"})
    model = GenericFakeChatModel(messages=iter([cut, AIMessage("five"), AIMessage("never")]))

    @tool
    def ask(query: str) -> str:
        """Ask a model."""
        return model.invoke(query).text

    cached = cached_tool(ask)
    found = []
    for _ in range(3):
        call = {"query": "fees"}
        found.append(await cached.ainvoke(call) if asynchronous else cached.invoke(call))
    assert found == ["first,", "five", "five"]


def test_blank_texts_and_errors_in_results_are_asked_again() -> None:
    results = iter([" ", {"error": "timeout"}, {"found": []}, "five", "never"])

    @tool
    def ask(query: str) -> Any:
        """Ask somebody."""
        return next(results)

    cached = cached_tool(ask)
    assert [cached.invoke({"query": "fees"}) for _ in range(5)][3:] == ["five", "five"]


async def test_what_a_tool_depends_on_is_noticed() -> None:
    style = {"greeting": "Hello"}

    @tool
    def ask(query: str) -> str:
        """Ask somebody."""
        return f"{style['greeting']} {query}"

    cached = cached_tool(ask)
    for greeting in ("Hello", "Hi"):
        style["greeting"] = greeting
        assert cached.invoke({"query": "rome"}) == f"{greeting} rome"
        assert await cached.ainvoke({"query": "rome"}) == f"{greeting} rome"
    assert cached.stats().hits == 2


@pytest.mark.parametrize(("text", "other"), UNREAD)
async def test_what_the_embedding_model_cannot_read_is_near_to_nothing(
    text: str, other: str, calls: list[Any]
) -> None:
    cached = cached_tool(
        search, query_argument="query", embeddings=MiniLMEmbeddings(), tolerance=0.5, guard=False
    )
    for query in (text, other, text):
        cached.invoke({"query": query})
        await cached.ainvoke({"query": query})
    assert calls == [(text, 3), (other, 3)]


class Greeting(BaseTool):
    """Answers for whom it was made."""

    name: str = "greet"
    description: str = "Greet."
    user: str = "ann"
    _secret: str = PrivateAttr("a")

    def _run(self, query: str) -> str:
        return f"{query} {self.user} {self._secret}"


def test_a_tool_that_is_changed_later_answers_as_it_is_now() -> None:
    greet = Greeting()
    cached = cached_tool(greet, query_argument="query")
    assert [cached.invoke("dear") for _ in range(2)] == ["dear ann a"] * 2
    greet.user = "bob"
    assert cached.invoke("dear") == "dear bob a"
    greet._secret = "b"
    assert [cached.invoke("dear") for _ in range(2)] == ["dear bob b"] * 2
    assert cached.stats().hits == 2


def test_a_function_that_is_replaced_is_called() -> None:
    greet = StructuredTool.from_function(
        lambda query: f"old {query}", name="find", description="Find."
    )
    cached = cached_tool(greet, query_argument="query")
    assert cached.invoke("rome") == "old rome"
    greet.func = lambda query: f"new {query}"
    assert cached.invoke("rome") == "new rome"


def test_a_tool_of_the_other_framework_is_named() -> None:
    other = FunctionTool.from_defaults(lambda query: query, name="find", description="Find.")
    with pytest.raises(ConfigurationError, match="of LangChain, got FunctionTool of LlamaIndex"):
        cached_tool(other)  # type: ignore[arg-type] # the point
    with pytest.raises(ConfigurationError, match="of LlamaIndex, got StructuredTool of LangChain"):
        llama_index.cached_tool(search)  # type: ignore[arg-type] # the point
