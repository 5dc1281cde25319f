"""ModularPrompt for LlamaIndex: a schema registered once, queries behind its modules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from llama_index.core.base.response.schema import (
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.llms import MockLLM
from llama_index.core.tools import QueryEngineTool

from ragcache_integrations.chains.modular.core import ReuseReport
from ragcache_integrations.chains.modular.langchain import ModularPrompt as LangChainPrompt
from ragcache_integrations.chains.modular.llama_index import REUSE_METADATA, ModularPrompt
from ragcache_integrations.errors import ConfigurationError, MarkupError
from ragcache_integrations.llms.langchain.models import ChatRAGCache
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from ragcache_modular import ModularEngine
from tests.chains.schemas import IMPORTS, PML, QUESTION, TRIP, engine_anywhere, made


@pytest.fixture(scope="module")
def shared() -> Iterator[ModularEngine]:
    with made() as engine:
        yield engine


def trip_on(engine: Any, schema: Any = TRIP, **arguments: Any) -> ModularPrompt:
    strategy = arguments.pop("strategy", "prompt_cache")
    llm = RAGCacheLLM(engine=engine, strategy=strategy, max_tokens=5)
    return ModularPrompt(schema, llm=llm, **arguments)


def report_of(response: Any) -> ReuseReport:
    report = (response.metadata or {})[REUSE_METADATA]
    assert isinstance(report, ReuseReport)
    return report


def test_the_answers_are_those_of_langchain(shared: ModularEngine) -> None:
    llm = ChatRAGCache(engine=shared, strategy="prompt_cache", max_tokens=5)
    expected = LangChainPrompt(schema=TRIP, llm=llm).invoke(PML)
    trip = trip_on(shared)
    for response in (
        trip.with_prompt(PML).query(""),
        trip.with_prompt(IMPORTS).query(QUESTION),
        trip_on(shared, prompt=IMPORTS).query(QUESTION),
    ):
        assert isinstance(response, Response)
        assert response.response == expected["answer"]
        assert report_of(response).recomputed_share == 0
        assert report_of(response).cached_tokens == expected["reuse"].cached_tokens > 0


def test_without_a_prompt_the_schema_s_own_text_is_there(shared: ModularEngine) -> None:
    report = report_of(trip_on(shared).query(QUESTION))
    assert 0 < report.cached_tokens < report.prompt_tokens


def test_it_switches_by_one_argument(shared: ModularEngine) -> None:
    shares = [
        report_of(trip_on(shared, strategy=name, prompt=IMPORTS).query(QUESTION)).recomputed_share
        or 0
        for name in ("prompt_cache", "cacheblend", "exact")
    ]
    assert shares[0] == 0 < shares[1] < shares[2] == 1


@pytest.mark.engine
async def test_on_vllm_the_answers_are_those_of_langchain() -> None:
    with engine_anywhere() as engine:
        llm = RAGCacheLLM(engine=engine, max_tokens=5)
        trip = ModularPrompt(TRIP, llm=llm, prompt=IMPORTS)
        await trip.aregister()
        other = LangChainPrompt(schema=TRIP, llm=ChatRAGCache(engine=engine, max_tokens=5))
        expected = await asyncio.to_thread(other.invoke, {**IMPORTS, "input": QUESTION})
        response = await asyncio.to_thread(trip.query, QUESTION)
        assert str(response) == str(await trip.aquery(QUESTION)) == expected["answer"]
        report = report_of(response)
        assert report.strategy == "anywhere"
        assert 0 < report.cached_tokens < report.prompt_tokens
        with pytest.raises(ConfigurationError, match="ragcache-modular"):
            await trip.with_prompt(IMPORTS, masked=["miami"]).aquery(QUESTION)


@pytest.mark.parametrize("way", ["masked", "dropped"])
def test_modules_left_out(shared: ModularEngine, way: str) -> None:
    trip = trip_on(shared)
    left: dict[str, Any] = {way: ["miami"]}
    response = trip.with_prompt(IMPORTS, **left).query(QUESTION)
    assert getattr(report_of(response), way) == ("miami",)
    assert str(response) != str(trip.with_prompt(IMPORTS).query(QUESTION))
    assert str(response) == str(trip_on(shared, prompt=IMPORTS, **left).query(QUESTION))
    with pytest.raises(ConfigurationError, match=f"{way} names 'tokyo'"):
        trip.with_prompt(IMPORTS, **{way: ["tokyo"]}).query(QUESTION)


async def test_every_way_gives_the_same(shared: ModularEngine) -> None:
    trip = trip_on(shared, prompt=IMPORTS)
    first = await asyncio.to_thread(trip.query, QUESTION)
    streaming = trip_on(shared, prompt=IMPORTS, streaming=True)
    with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
        await trip.aregister()
        whole = await trip.aquery(QUESTION)
        pieces = await streaming.aquery(QUESTION)
        assert isinstance(pieces, AsyncStreamingResponse)
        assert REUSE_METADATA not in (pieces.metadata or {})
        told = [text async for text in pieces.async_response_gen()]
    assert str(whole) == "".join(told) == str(first)
    assert report_of(pieces).cached_tokens == report_of(whole).cached_tokens
    sync = await asyncio.to_thread(streaming.query, QUESTION)
    assert isinstance(sync, StreamingResponse)
    texts = await asyncio.to_thread(lambda: list(sync.response_gen))
    assert len(texts) > 2
    assert "".join(texts) == str(first)
    assert report_of(sync).strategy == "prompt_cache"


def test_callbacks_hear_of_the_model(shared: ModularEngine) -> None:
    counter = TokenCountingHandler(tokenizer=str.split)
    manager = CallbackManager([counter])
    llm = RAGCacheLLM(engine=shared, max_tokens=3, callback_manager=manager)
    trip = ModularPrompt(TRIP, llm=llm, prompt=IMPORTS, callback_manager=manager)
    report = report_of(trip.query(QUESTION))
    assert counter.prompt_llm_token_count == report.prompt_tokens


def test_as_a_tool(shared: ModularEngine) -> None:
    tool = QueryEngineTool.from_defaults(trip_on(shared, prompt=IMPORTS), name="trip")
    assert tool.call(QUESTION).content == str(trip_on(shared, prompt=IMPORTS).query(QUESTION))


def test_what_is_refused(shared: ModularEngine) -> None:
    with pytest.raises(ConfigurationError, match="one of this package with an engine of th"):
        ModularPrompt(TRIP, llm=MockLLM())
    with pytest.raises(MarkupError, match="line 1"):
        ModularPrompt("nothing", llm=RAGCacheLLM(engine="modular"))
    with pytest.raises(MarkupError, match="no module 'paris'"):
        trip_on(shared).with_prompt({"paris": True}).query(QUESTION)
    with pytest.raises(ConfigurationError, match="a prompt must be"):
        trip_on(shared).with_prompt(3).query(QUESTION)  # type: ignore[arg-type]  # what is tested
