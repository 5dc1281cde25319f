"""LlamaIndex's context variables, tags and workflows name the user: none gets another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import Response
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import BaseRetriever as LlamaRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.tools import FunctionTool, QueryEngineTool, RetrieverTool
from llama_index.core.workflow import Context as WorkflowContext
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step
from llama_index_instrumentation.dispatcher import active_instrument_tags, instrument_tags

from ragcache_integrations import llama_index as llama
from tests.answers.traffic import llama_index_embeddings
from tests.attacks.context.steps import (
    QUESTION,
    REFUSED,
    WHO,
    LlamaFound,
    Says,
    Step,
    each_has_a_result_of_their_own,
    noting,
    refused,
    variable,
)


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
def test_what_gets_nothing_in_llama_index_is_served(face: Any) -> None:
    calls: list[str] = []
    ask = face(noting(calls))
    assert [ask() for _ in range(3)] == ["the table"] * 3
    if face is not in_tool_s_callback:  # whether it runs for each call is the framework's affair
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

    each_has_a_result_of_their_own(lambda user: asyncio.run(ask(user)))


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
