"""AdaptiveQueryEngine: a query engine like any other, over any retriever and any LLM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.response.schema import Response
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ragcache_integrations.adaptive import (
    AdaptiveCost,
    Explanation,
    SynthesisConfig,
    Synthesised,
)
from ragcache_integrations.chains.adaptive.llama_index import AdaptiveQueryEngine
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.llms.llama_index import RAGCacheLLM
from tests.chains.loads import Busy, Memory

QUESTION = "Why do cats and dogs differ?"
NODES = [
    NodeWithScore(
        node=TextNode(id_=f"d{number}", text=f"Fact {number} about cats. " * 5),
        score=1 - number / 20,
    )
    for number in range(20)
]


class Found(BaseRetriever):
    """Finds the first ones."""

    def __init__(self, count: int = 20) -> None:
        self._count = count
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return NODES[: self._count]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return NODES[: self._count]


def make(**arguments: Any) -> AdaptiveQueryEngine:
    given = {"retriever": Found(), "llm": MockLLM(max_tokens=4), "profiler": "heuristic"}
    return AdaptiveQueryEngine.from_args(**{**given, **arguments})


def queried(engine: AdaptiveQueryEngine) -> tuple[str, Any]:
    response = engine.query(QUESTION)
    return str(response), response


def aqueried(engine: AdaptiveQueryEngine) -> tuple[str, Any]:
    response = asyncio.run(engine.aquery(QUESTION))
    return str(response), response


def streamed(engine: AdaptiveQueryEngine) -> tuple[str, Any]:
    engine._streaming = True
    response: Any = engine.query(QUESTION)
    return "".join(response.response_gen), response


def astreamed(engine: AdaptiveQueryEngine) -> tuple[str, Any]:
    async def collect() -> tuple[str, Any]:
        engine._streaming = True
        response: Any = await engine.aquery(QUESTION)
        return "".join([text async for text in response.async_response_gen()]), response

    return asyncio.run(collect())


every_way = pytest.mark.parametrize("way", [queried, aqueried, streamed, astreamed])
Way = Callable[[AdaptiveQueryEngine], tuple[str, Any]]


@every_way
def test_with_any_retriever_and_any_llm(way: Way) -> None:
    text, response = way(make(load=Memory(100_000)))
    assert text
    explanation = response.metadata["explain"]
    assert isinstance(explanation, Explanation)
    assert explanation.why == "fits"
    read = NODES[: explanation.config.num_chunks]
    assert [node.node.node_id for node in response.source_nodes] == [
        one.node.node_id for one in read
    ]
    assert set(response.metadata) == {
        *(one.node.node_id for one in read),
        "explain",
        "cost",
        "synthesis",
    }
    assert isinstance(response.metadata["cost"], AdaptiveCost)
    assert isinstance(response.metadata["synthesis"], Synthesised)


@every_way
def test_modes_for_comparison(way: Way) -> None:
    config = SynthesisConfig("map_rerank", 4)
    _, response = way(make(mode="fixed", config=config, profiler="llm"))
    assert response.metadata["explain"].config == config
    _, response = way(make(mode="median"))
    assert response.metadata["explain"].why == "median"
    _, response = way(make(mode="largest", load=Memory(0)))
    assert response.metadata["explain"].why == "largest"
    _, response = way(make(mode="gradual", load=Memory(100_000)))
    assert response.metadata["explain"].why == "enough"
    assert len(response.source_nodes) == response.metadata["explain"].config.num_chunks


@every_way
def test_a_knob_is_held_for_all_questions(way: Way) -> None:
    _, response = way(make(load=Memory(100_000)))
    free = response.metadata["explain"].config
    assert free.method == "map_reduce"
    assert free.num_chunks != 3
    _, response = way(make(load=Memory(100_000), method="stuff"))
    assert response.metadata["explain"].config == SynthesisConfig("stuff", free.num_chunks)
    _, response = way(make(load=Memory(100_000), num_chunks=3, intermediate_length=40))
    assert response.metadata["explain"].config == SynthesisConfig("map_reduce", 3, 40)
    assert len(response.source_nodes) == 3


@every_way
def test_nothing_found(way: Way) -> None:
    text, response = way(make(retriever=Found(0)))
    assert text
    assert response.source_nodes == []
    assert response.metadata["explain"].why == "nothing found"


def test_postprocessors_come_before_the_choice() -> None:
    engine = make(
        node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=0.8)], load=Memory(100_000)
    )
    for response in (engine.query(QUESTION), asyncio.run(engine.aquery(QUESTION))):
        assert isinstance(response, Response)
        assert response.metadata is not None
        assert response.metadata["explain"].found == 5


def test_callbacks_hear_of_query_and_synthesis() -> None:
    handler = LlamaDebugHandler(print_trace_on_end=False)
    make(callback_manager=CallbackManager([handler])).query(QUESTION)
    for event in (CBEventType.QUERY, CBEventType.SYNTHESIZE):
        assert len(handler.get_event_pairs(event)) == 1


def test_close_questions_share_a_profile() -> None:
    llm = MockLLM(max_tokens=4)
    engine = make(llm=llm, profiler="llm", embeddings=MockEmbedding(4))
    response = engine.query(QUESTION)
    assert isinstance(response, Response)
    assert response.metadata is not None
    # The mock says its prompt again, which is no profile; that is no reason not to answer.
    assert response.metadata["explain"].estimate.source == "llm"


@pytest.mark.parametrize(
    "close", [AdaptiveQueryEngine.close, lambda one: asyncio.run(one.aclose())]
)
def test_closing_ends_what_is_learnt_in_the_background(close: Callable[[Any], None]) -> None:
    one = make(profiler="llm", load=Busy(10**6), golden_every=1)
    golden = one._pipeline.golden
    assert golden is not None
    one.query(QUESTION)
    assert not golden.join(0.1)  # it waits for an idle moment
    close(one)
    assert golden.join(60)
    assert str(one.query(QUESTION))
    assert golden.join(0)
    close(one)


def test_a_corpus_is_drafted() -> None:
    engine = make()
    nodes = [one.node for one in NODES]
    assert engine.draft_corpus(nodes) == asyncio.run(engine.adraft_corpus(["x", *nodes]))
    assert engine.retriever is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"modus": "fixed"}, "unknown argument 'modus'"),
        ({"mode": "fixed"}, "SynthesisConfig"),
        ({"profiler": "psychic"}, "profiler must be"),
        ({"retriever": 3}, "retriever must be"),
        ({"load": "nowhere"}, "address"),
        ({"methods": "stuff"}, "did you mean 'method'"),
        ({"method": "stuff", "num_chunks": 2}, "leave nothing to choose"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        make(**arguments)


@every_way
def test_with_our_engine(way: Way, engine: RAGCacheEngine) -> None:
    llm = RAGCacheLLM(engine=engine, max_tokens=8)
    _, response = way(make(llm=llm, profiler="llm", corpus="Facts about cats."))
    explanation = response.metadata["explain"]
    assert explanation.load is not None
    assert explanation.why == "fits"
    assert explanation.estimate.profile is not None
    assert response.metadata["cost"].usage.prompt_tokens > 0
