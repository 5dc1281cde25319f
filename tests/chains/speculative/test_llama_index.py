"""SpeculativeQueryEngine on the real engine: the usual engine's answers, whatever was guessed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from llama_index.core.base.response.schema import (
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import PromptTemplate
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.core.tools import QueryEngineTool

from ragcache_integrations.chains.speculative.llama_index import SpeculativeQueryEngine
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from ragcache_integrations.speculation import SpeculationReport
from tests.chains.scripted import PlainNodes, ScriptedNodes, check_idle
from tests.speculation.doubles import assert_no_threads

pytestmark = pytest.mark.engine

QUESTION = "what do they say"


@pytest.fixture
def llm(engine: RAGCacheEngine) -> RAGCacheLLM:
    return RAGCacheLLM(engine=engine, max_tokens=6)


@pytest.fixture(autouse=True)
def _nothing_is_left(engine: RAGCacheEngine) -> Iterator[None]:
    yield
    check_idle(engine)
    assert_no_threads()


def made(llm: Any, *plan: str, **arguments: Any) -> SpeculativeQueryEngine:
    return SpeculativeQueryEngine.from_args(ScriptedNodes(list(plan)), llm, **arguments)


def usual(llm: Any, names: str, **arguments: Any) -> str:
    """What LlamaIndex's own query engine answers."""
    engine = RetrieverQueryEngine.from_args(PlainNodes(names), llm=llm, **arguments)
    return str(engine.query(QUESTION))


def found(response: Any) -> list[str]:
    return [node.node_id for node in response.source_nodes]


@pytest.mark.parametrize(
    ("plan", "confirmed"),
    # None depends on how soon the second guess is admitted.
    [(("ab", "ab"), True), (("ab", "cd", "cd"), None), (("ab", "cd"), False), (("ab",), False)],
)
class TestAnswers:
    async def test_they_are_those_of_the_usual_query_engine(
        self, llm: RAGCacheLLM, plan: tuple[str, ...], confirmed: bool | None
    ) -> None:
        expected = usual(llm, plan[-1])
        engine = made(llm, *plan)
        for response in (engine.query(QUESTION), await engine.aquery(QueryBundle(QUESTION))):
            assert isinstance(response, Response)
            assert str(response) == expected
            assert found(response) == list(plan[-1])
            assert response.metadata is not None
            report = response.metadata["speculation"]
            assert isinstance(report, SpeculationReport)
            assert report.stages == len(plan)
            assert confirmed in {report.confirmed, None}
            assert set(response.metadata) == {*plan[-1], "speculation"}

    async def test_streams_too(
        self, llm: RAGCacheLLM, plan: tuple[str, ...], confirmed: bool | None
    ) -> None:
        expected = usual(llm, plan[-1])
        engine = made(llm, *plan, streaming=True)
        response = engine.query(QUESTION)
        assert isinstance(response, StreamingResponse)
        assert found(response) == list(plan[-1])
        assert "".join(response.response_gen) == expected
        aresponse = await engine.aquery(QUESTION)
        assert isinstance(aresponse, AsyncStreamingResponse)
        assert "".join([text async for text in aresponse.response_gen]) == expected
        for one in (response, aresponse):
            assert one.metadata is not None
            assert one.metadata["speculation"].events[-1].what in {"first token", "confirmed"}
            assert confirmed in {one.metadata["speculation"].confirmed, None}


class TestFaults:
    async def test_a_search_that_raises(self, llm: RAGCacheLLM) -> None:
        for streaming in (False, True):
            engine = made(llm, "ab", "ab", "!", "ab", streaming=streaming)
            with pytest.raises(ConnectionError, match="the search broke"):
                engine.query(QUESTION)
            with pytest.raises(ConnectionError, match="the search broke"):
                await engine.aquery(QUESTION)

    async def test_a_consumer_that_stops_reading(self, engine: RAGCacheEngine) -> None:
        llm = RAGCacheLLM(engine=engine, max_tokens=2000)
        for stop in range(3):
            response: Any = made(llm, "ab", "cd", "cd", streaming=True).query(QUESTION)
            for _ in range(stop):
                next(response.response_gen)
            response.response_gen.close()
            aresponse: Any = await made(llm, "ab", "cd", "cd", streaming=True).aquery(QUESTION)
            for _ in range(stop):
                await anext(aresponse.response_gen)
            await aresponse.response_gen.aclose()
        made(llm, "ab", "ab", streaming=True).query(QUESTION)  # nobody takes it at all
        await made(llm, "ab", "ab", streaming=True).aquery(QUESTION)

    async def test_cancelling_at_any_time(self, llm: RAGCacheLLM) -> None:
        expected = usual(llm, "cd")
        engine = made(llm, "ab", "cd", "cd")
        for number in range(12):
            task = asyncio.create_task(engine.aquery(QUESTION))
            await asyncio.sleep(0.015 * number)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                assert str(task.result()) == expected
        assert asyncio.all_tasks() == {asyncio.current_task()}


class TestParts:
    async def test_an_ordinary_retriever_has_one_stage(self, llm: RAGCacheLLM) -> None:
        engine = SpeculativeQueryEngine.from_args(PlainNodes("ab"), llm=llm)
        for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
            assert str(response) == usual(llm, "ab")
            assert response.metadata is not None
            report = response.metadata["speculation"]
            assert (report.stages, report.guesses) == (1, 0)

    @pytest.mark.parametrize("missing", ["stages", "astages"])
    async def test_a_retriever_may_have_stages_for_one_kind_of_callers(
        self, llm: RAGCacheLLM, missing: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(ScriptedNodes, missing)
        engine = made(llm, "ab", "ab")
        stages = [
            (response.metadata or {})["speculation"].stages
            for response in (engine.query(QUESTION), await engine.aquery(QUESTION))
        ]
        assert stages == ([1, 2] if missing == "stages" else [2, 1])

    @pytest.mark.parametrize(("fast", "confirmed"), [("ab", True), ("cd", False)])
    def test_a_fast_one_is_guessed_from(self, llm: RAGCacheLLM, fast: str, confirmed: bool) -> None:
        engine = SpeculativeQueryEngine.from_args(
            PlainNodes("ab", wait=0.4), llm=llm, first=PlainNodes(fast)
        )
        response = engine.query(QUESTION)
        assert str(response) == usual(llm, "ab")
        assert response.metadata is not None
        assert response.metadata["speculation"].confirmed == confirmed

    async def test_any_other_llm_answers_afterwards_which_is_said_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        llm = MockLLM()
        expected = usual(llm, "cd")
        with caplog.at_level(logging.WARNING, "ragcache_integrations"):
            engine = made(llm, "ab", "cd")
            responses = [engine.query(QUESTION), await engine.aquery(QUESTION)]
        for response in responses:
            assert str(response) == expected
            assert response.metadata is not None
            assert response.metadata["speculation"] is None
        assert [record.message for record in caplog.records] == [
            (
                "MockLLM does not run on an engine of this process: answers begin when the "
                "search has ended"
            )
        ]
        stream: Any = made(llm, "cd", streaming=True).query(QUESTION)
        assert "".join(stream.response_gen) == expected
        astream: Any = await made(llm, "cd", streaming=True).aquery(QUESTION)
        assert "".join([text async for text in astream.response_gen]) == expected

    async def test_postprocessors_see_every_stage(self, llm: RAGCacheLLM) -> None:
        class Last(BaseNodePostprocessor):
            def _postprocess_nodes(
                self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
            ) -> list[NodeWithScore]:
                return nodes[-1:]

        engine = made(llm, "ab", "cb", node_postprocessors=[Last()])
        for response in (engine.query(QUESTION), await engine.aquery(QUESTION)):
            assert found(response) == ["b"]
            assert response.metadata is not None
            assert response.metadata["speculation"].confirmed
            assert str(response) == usual(llm, "b")
        assert [one.node_id for one in engine.retrieve(QueryBundle(QUESTION))] == ["b"]
        assert [one.node_id for one in await engine.aretrieve(QueryBundle(QUESTION))] == ["b"]

    async def test_a_template_and_a_system_prompt(self, engine: RAGCacheEngine) -> None:
        llm = RAGCacheLLM(engine=engine, max_tokens=6, system_prompt="Answer briefly.")
        template = PromptTemplate("{context_str}\n\n{query_str}")
        query_engine = made(llm, "ab", "ab", text_qa_template=template)
        expected = usual(llm, "ab", text_qa_template=template)
        for response in (query_engine.query(QUESTION), await query_engine.aquery(QUESTION)):
            assert str(response) == expected
        other = PromptTemplate("{query_str}\n\n{context_str}")
        query_engine.update_prompts({"text_qa_template": other})
        assert query_engine.get_prompts()["text_qa_template"].get_template() == other.template
        assert str(query_engine.query(QUESTION)) == usual(llm, "ab", text_qa_template=other)

    @pytest.mark.parametrize("is_chat_model", [True, False])
    async def test_chat_and_completion(self, engine: RAGCacheEngine, is_chat_model: bool) -> None:
        llm = RAGCacheLLM(engine=engine, max_tokens=6, is_chat_model=is_chat_model)
        query_engine = made(llm, "ab", "cd", "cd")
        for response in (query_engine.query(QUESTION), await query_engine.aquery(QUESTION)):
            assert str(response) == usual(llm, "cd")

    async def test_where_nothing_is_found_nothing_is_asked(
        self, llm: RAGCacheLLM, engine: RAGCacheEngine
    ) -> None:
        before = engine.stats().requests
        for streaming in (False, True):
            query_engine = made(llm, "", streaming=streaming)
            assert str(query_engine.query(QUESTION)) == usual(llm, "") == "Empty Response"
            response = await query_engine.aquery(QUESTION)
            text = response.response_txt if streaming else str(response)  # type: ignore[union-attr]
            if text is None:
                text = "".join([one async for one in response.response_gen])  # type: ignore[union-attr]
            assert text == "Empty Response"
        assert engine.stats().requests == before

    async def test_callbacks_see_what_the_usual_engine_tells(self, llm: RAGCacheLLM) -> None:
        debug = LlamaDebugHandler(print_trace_on_end=False)
        manager = CallbackManager([debug])
        told = RAGCacheLLM(engine=llm.engine, max_tokens=6, callback_manager=manager)
        retriever = PlainNodes("ab")
        retriever.callback_manager = manager
        engine = SpeculativeQueryEngine(retriever, llm=told, callback_manager=manager)
        for asynchronous in (False, True):
            debug.flush_event_logs()
            response = await engine.aquery(QUESTION) if asynchronous else engine.query(QUESTION)
            for kind in (
                CBEventType.QUERY,
                CBEventType.RETRIEVE,
                CBEventType.SYNTHESIZE,
                CBEventType.LLM,
            ):
                assert len(debug.get_event_pairs(kind)) == 1, kind
            ((_, end),) = debug.get_event_pairs(CBEventType.QUERY)
            assert end.payload is not None
            assert end.payload[EventPayload.RESPONSE] == response

    def test_it_is_a_tool_as_any_query_engine(self, llm: RAGCacheLLM) -> None:
        tool = QueryEngineTool.from_defaults(made(llm, "ab"), name="answers", description="them")
        assert str(tool.call(QUESTION)) == usual(llm, "ab")

    async def test_nothing_blocks_the_event_loop(self, llm: RAGCacheLLM) -> None:
        engine = made(llm, "ab", "cd", "cd")
        with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
            assert str(await engine.aquery(QUESTION))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"speculation": True}, "unknown argument 'speculation': allowed are .*speculate"),
        ({"speculate": 1}, "speculate"),
        ({"first": "fast"}, "first must be a BaseRetriever, got 'fast'"),
        ({"retriever": None}, "retriever must be a BaseRetriever, got None"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SpeculativeQueryEngine(**{"retriever": PlainNodes("ab"), "llm": MockLLM(), **arguments})
