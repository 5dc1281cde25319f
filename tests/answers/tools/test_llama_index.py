"""Cached LlamaIndex tools: what is asked again, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.base.response.schema import Response
from llama_index.core.llms import CompletionResponse
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools import FunctionTool, call_tool_with_selection
from llama_index.core.workflow import Context

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llama_index import MiniLMEmbeddings, cached_tool
from tests.answers.test_llama_index import Told
from tests.answers.traffic import UNREAD, llama_index_embeddings

CALLS: list[Any] = []


def find(query: str, count: int = 3) -> list[str]:
    """Search the archive."""
    CALLS.append((query, count))
    if "nothing" in query:
        return []
    return [f"{query.split(maxsplit=1)[0]} {number}" for number in range(count)]


@pytest.fixture
def search() -> FunctionTool:
    CALLS.clear()
    return FunctionTool.from_defaults(find, name="search")


async def test_equal_calls_are_made_once(search: FunctionTool) -> None:
    cached = cached_tool(search, query_argument="query")
    assert cached.metadata == search.metadata
    first = cached.call(query="rome is it nice")
    assert first.raw_output == ["rome 0", "rome 1", "rome 2"]
    first.raw_output.clear()
    second = await cached.acall(query="rome is it nice?")
    assert second.raw_output == ["rome 0", "rome 1", "rome 2"]
    assert cached("rome is it nice").content == second.content
    cached.call(query="rome is it nice", count=1)
    assert CALLS == [("rome is it nice", 3), ("rome is it nice", 1)]
    cached.clear()
    assert cached.stats().entries == 0


def test_an_agents_calls_are_served(search: FunctionTool) -> None:
    cached = cached_tool(search)
    for _ in range(2):
        selection = ToolSelection(tool_id="1", tool_name="search", tool_kwargs={"query": "rome"})
        output = call_tool_with_selection(selection, [cached])
        assert output.raw_output == ["rome 0", "rome 1", "rome 2"]
    assert cached.stats().hits == 1


def test_nothing_found_is_asked_again(search: FunctionTool) -> None:
    cached = cached_tool(search)
    for _ in range(2):
        assert cached.call(query="nothing").raw_output == []
    assert len(CALLS) == 2


async def test_a_near_query_gets_the_result_and_one_that_differs_does_not(
    search: FunctionTool,
) -> None:
    cached = cached_tool(
        search, query_argument="query", embed_model=llama_index_embeddings(), tolerance=0.6
    )
    cached.call(query="rome is it nice")
    assert (await cached.acall(query="rome is it pretty")).raw_output[0] == "rome 0"
    cached.call(query="rome is it nice in 1950")
    assert [query for query, _ in CALLS] == ["rome is it nice", "rome is it nice in 1950"]


async def read(ctx: Context, name: str) -> str:
    """Read something."""
    return name


read.__annotations__["ctx"] = Context  # LlamaIndex doesn't resolve a module's own postponed names


def test_what_cannot_be_a_cached_tool(search: FunctionTool) -> None:
    with pytest.raises(ConfigurationError, match="tool must be a BaseTool, got 'search'"):
        cached_tool("search")  # type: ignore[arg-type] # the point
    with pytest.raises(ConfigurationError, match="which has 'query', 'count', got 'text'"):
        cached_tool(search, query_argument="text")
    with pytest.raises(ConfigurationError, match="gets the workflow's context"):
        cached_tool(FunctionTool.from_defaults(async_fn=read))


def test_a_call_without_a_query_is_as_without_the_cache() -> None:
    tool = FunctionTool.from_defaults(fn=lambda query="all": f"found {query}", name="find")
    cached = cached_tool(tool, query_argument="query")
    assert [cached.call().raw_output, cached.call(3).raw_output] == ["found all", "found 3"]
    assert cached.stats().unkept == 2


def test_arguments_without_a_name_are_others_than_those_with_one() -> None:
    tool = FunctionTool.from_defaults(fn=lambda *args, **kwargs: [args, kwargs], name="find")
    cached = cached_tool(tool)
    for _ in range(2):
        assert cached.call("a", "b").raw_output == [("a", "b"), {}]
        assert cached.call("a", **{"1": "b"}).raw_output == [("a",), {"1": "b"}]
    assert cached.stats().hits == 2


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_tool_whose_model_was_cut_off_is_asked_again(asynchronous: bool) -> None:
    model = Told(answers=[("first,", "length"), ("five", "stop"), ("never", "stop")])

    def ask(query: str) -> str:
        """Ask a model."""
        return str(model.complete(query))

    cached = cached_tool(FunctionTool.from_defaults(ask))
    found = []
    for _ in range(3):
        output = await cached.acall(query="fees") if asynchronous else cached.call(query="fees")
        found.append(output.raw_output)
    assert found == ["first,", "five", "five"]


def test_an_engine_that_found_nothing_is_asked_again() -> None:
    answers = iter([Response("Empty Response"), Response(" "), Response("five"), Response("no")])

    def ask(query: str) -> Response:
        """Ask an engine."""
        return next(answers)

    cached = cached_tool(FunctionTool.from_defaults(ask))
    found = [str(cached.call(query="fees").raw_output) for _ in range(4)]
    assert found[2:] == ["five", "five"]


def test_a_served_response_of_a_model_used_no_tokens() -> None:
    raw = {"finish_reason": "stop", "usage": {"total_tokens": 3}}
    answer = CompletionResponse(text="five", raw=raw, additional_kwargs={"total_tokens": 3})
    cached = cached_tool(FunctionTool.from_defaults(lambda query: answer, name="ask"))
    assert cached.call(query="fees").raw_output.additional_kwargs == {"total_tokens": 3}
    served = cached.call(query="fees").raw_output
    assert served.raw == {"finish_reason": "stop", "usage": {"total_tokens": 0}}
    assert served.additional_kwargs == {"total_tokens": 0}
    assert raw["usage"] == {"total_tokens": 3}


async def test_what_a_tool_depends_on_is_noticed() -> None:
    style = {"greeting": "Hello"}

    def ask(query: str) -> str:
        """Ask somebody."""
        return f"{style['greeting']} {query}"

    cached = cached_tool(FunctionTool.from_defaults(ask))
    for greeting in ("Hello", "Hi"):
        style["greeting"] = greeting
        assert cached.call(query="rome").raw_output == f"{greeting} rome"
        assert (await cached.acall(query="rome")).raw_output == f"{greeting} rome"
    assert cached.stats().hits == 2


@pytest.mark.parametrize(("text", "other"), UNREAD)
async def test_what_the_embedding_model_cannot_read_is_near_to_nothing(
    text: str, other: str, search: FunctionTool
) -> None:
    cached = cached_tool(
        search, query_argument="query", embed_model=MiniLMEmbeddings(), tolerance=0.5, guard=False
    )
    for query in (text, other, text):
        cached.call(query=query)
        await cached.acall(query=query)
    assert [(text, 3), (other, 3)] == CALLS
