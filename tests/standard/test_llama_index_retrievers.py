"""A contract suite for LlamaIndex retrievers, which LlamaIndex itself does not have.

LlamaIndex's own retriever is put through it, too: what it cannot meet would be no contract.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import faiss
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.vector_stores.faiss import FaissVectorStore

from ragcache_integrations.embeddings.llama_index import MiniLMEmbeddings
from ragcache_integrations.retrievers.cached.llama_index.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.staged.llama_index import StagedFaissRetriever

QUESTION = "Which passage tells of trees?"
TEXTS = [f"Passage {n} tells of {what}." for n, what in enumerate(["trees", "bees", "seas"] * 3)]
MODEL = MiniLMEmbeddings()


@pytest.fixture(scope="module")
def index() -> VectorStoreIndex:
    return VectorStoreIndex(
        [TextNode(id_=text, text=text) for text in TEXTS],
        storage_context=StorageContext.from_defaults(
            vector_store=FaissVectorStore(faiss.IndexFlatL2(384))
        ),
        embed_model=MODEL,
    )


def plain(index: VectorStoreIndex, k: int) -> BaseRetriever:
    return index.as_retriever(similarity_top_k=k)


def over_index(index: VectorStoreIndex, k: int) -> BaseRetriever:
    return ApproximateCacheRetriever.from_index(index, k=k)


def over_retriever(index: VectorStoreIndex, k: int) -> BaseRetriever:
    return ApproximateCacheRetriever.from_retriever(index.as_retriever(similarity_top_k=k))


def staged(index: VectorStoreIndex, k: int) -> BaseRetriever:
    return StagedFaissRetriever.from_index(index, k=k)


def over_staged(index: VectorStoreIndex, k: int) -> BaseRetriever:
    return ApproximateCacheRetriever.from_retriever(staged(index, k))


@pytest.mark.parametrize("make", [plain, over_index, over_retriever, staged, over_staged])
class TestContract:
    @pytest.fixture
    def retriever(self, make: Any, index: VectorStoreIndex) -> BaseRetriever:
        made = make(index, 3)
        assert isinstance(made, BaseRetriever)
        return made

    def test_it_returns_scored_nodes(self, retriever: BaseRetriever) -> None:
        for _ in range(2):
            found = retriever.retrieve(QUESTION)
            assert len(found) == 3
            assert all(isinstance(one, NodeWithScore) for one in found)
            assert all(isinstance(one.score, float) for one in found)
            assert all("trees" in one.text for one in found)
            assert len({one.node_id for one in found}) == 3

    @pytest.mark.parametrize("k", [1, 5])
    def test_it_returns_as_many_as_asked_for(
        self, make: Any, index: VectorStoreIndex, k: int
    ) -> None:
        assert len(make(index, k).retrieve(QUESTION)) == k

    def test_a_bundle_is_a_question(self, retriever: BaseRetriever) -> None:
        assert retriever.retrieve(QueryBundle(QUESTION)) == retriever.retrieve(QUESTION)

    def test_a_bundle_s_embedding_is_used(self, retriever: BaseRetriever) -> None:
        embedding = MODEL.get_query_embedding("Who tells of bees?")
        found = retriever.retrieve(QueryBundle(QUESTION, embedding=embedding))
        assert all("bees" in one.text for one in found)

    async def test_async_gives_the_same(self, retriever: BaseRetriever) -> None:
        expected = retriever.retrieve(QUESTION)
        assert await retriever.aretrieve(QUESTION) == expected
        assert await retriever.aretrieve(QueryBundle(QUESTION)) == expected

    async def test_many_at_once(self, retriever: BaseRetriever) -> None:
        questions = [f"{QUESTION} {number % 4}" for number in range(12)]
        answers = await asyncio.gather(*[retriever.aretrieve(question) for question in questions])
        for question, nodes in zip(questions, answers, strict=True):
            expected = retriever.retrieve(question)
            assert [node.node_id for node in nodes] == [node.node_id for node in expected]
            # A question that came while its own search was on its way may have been answered from
            # a neighbour's entry: its scores are computed from vectors then, which rounds elsewhere
            # than the store does.
            scores = [node.score for node in nodes]
            assert scores == pytest.approx([node.score for node in expected], rel=1e-5)

    def test_callbacks_see_the_retrieval(self, retriever: BaseRetriever) -> None:
        debug = LlamaDebugHandler(print_trace_on_end=False)
        retriever.callback_manager = CallbackManager([debug])
        found = retriever.retrieve(QUESTION)
        ((start, end),) = debug.get_event_pairs(CBEventType.RETRIEVE)
        assert start.payload is not None
        assert start.payload[EventPayload.QUERY_STR] == QUESTION
        assert end.payload is not None
        assert end.payload[EventPayload.NODES] == found

    def test_prompts_can_be_listed(self, retriever: BaseRetriever) -> None:
        assert retriever.get_prompts() == {}

    def test_it_works_in_a_query_engine(self, retriever: BaseRetriever) -> None:
        engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
        response = engine.query(QUESTION)
        assert response.source_nodes == retriever.retrieve(QUESTION)
        assert "trees" in str(response)
        assert asyncio.run(engine.aquery(QUESTION)).source_nodes == response.source_nodes

    def test_it_works_under_other_retrievers(self, retriever: BaseRetriever) -> None:
        fused = QueryFusionRetriever([retriever], llm=MockLLM(), num_queries=1, similarity_top_k=3)
        assert len(fused.retrieve(QUESTION)) == 3


@pytest.mark.parametrize("make", [over_index, over_retriever])
async def test_ours_lets_the_event_loop_go_on(make: Any) -> None:
    """LlamaIndex's own does not where the store has no coroutine: it is left out."""

    class Slow(FaissVectorStore):
        def query(self, query: Any, **kwargs: Any) -> Any:
            time.sleep(0.3)
            return super().query(query, **kwargs)

    store = Slow(faiss_index=faiss.IndexFlatL2(384))
    slow = VectorStoreIndex(
        [TextNode(text=text) for text in TEXTS],
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=MODEL,
    )
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticker = asyncio.create_task(tick())
    await make(slow, 3).aretrieve(QUESTION)
    ticker.cancel()
    assert ticks > 20
