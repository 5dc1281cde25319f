"""The LlamaIndex retriever over real FAISS stores, LlamaIndex's own store and retrievers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import llama_index.core.instrumentation as instrument
import pytest
from blockbuster import blockbuster_ctx
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import (
    ExactMatchFilter,
    MetadataFilters,
    SimpleVectorStore,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from llama_index.vector_stores.faiss import FaissMapVectorStore, FaissVectorStore
from pydantic import Field, PrivateAttr

from ragcache_integrations.errors import ConfigurationError, EmbeddingError
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever,
    QueryCacheEvent,
)

from .indexes import DIM, Words, faiss_index, ids, index_over, nodes, scores, words_of


class Events(BaseEventHandler):
    seen: list[Any] = Field(default_factory=list)

    def handle(self, event: Any, **kwargs: Any) -> None:
        self.seen.append(event)


@pytest.fixture
def events() -> Iterator[list[Any]]:
    handler = Events()
    root = instrument.get_dispatcher()  # type: ignore[attr-defined]  # re-exported untyped
    root.add_event_handler(handler)
    yield handler.seen
    root.event_handlers.remove(handler)


@pytest.mark.parametrize("kind", ["l2", "ip", "map", "simple"])
class TestRanking:
    def test_misses_and_repetitions_are_the_store_s_own_answers(self, kind: str) -> None:
        index = faiss_index(kind)
        retriever = ApproximateCacheRetriever.from_index(index, k=5)
        plain = index.as_retriever(similarity_top_k=5)
        for number in range(10):
            expected = plain.retrieve(f"question {number}")
            assert retriever.retrieve(f"question {number}") == expected
            assert retriever.retrieve(f"question {number}") == expected
        assert (retriever.stats().misses, retriever.stats().hits) == (10, 10)

    def test_hits_are_ranked_and_scored_as_the_store_would(self, kind: str) -> None:
        index = faiss_index(kind)
        retriever = ApproximateCacheRetriever.from_index(
            index, k=5, tolerance=0.4, rerank_factor=40, guard=False
        )
        plain = index.as_retriever(similarity_top_k=5)
        retriever.retrieve("question")
        for number in range(20):
            hit = retriever.retrieve(f"question~{number}")
            expected = plain.retrieve(f"question~{number}")
            assert ids(hit) == ids(expected)
            assert scores(hit) == pytest.approx(scores(expected), rel=1e-5)
        assert (retriever.stats().hits, retriever.stats().store_calls) == (20, 1)


class TestIndexes:
    def test_a_question_is_embedded_once(self) -> None:
        index = faiss_index()
        retriever = ApproximateCacheRetriever.from_index(index)
        for _ in range(3):
            retriever.retrieve("question")
        assert words_of(index).queries == ["question"]

    def test_without_k_it_is_what_the_index_s_own_retriever_gives(self) -> None:
        index = faiss_index()
        found = ApproximateCacheRetriever.from_index(index).retrieve("question")
        assert found == index.as_retriever().retrieve("question")

    def test_an_index_that_cannot_reconstruct_is_not_ranked(self) -> None:
        index = index_over(FaissMapVectorStore(faiss.IndexIDMap(faiss.IndexFlatL2(DIM))))
        retriever = ApproximateCacheRetriever.from_index(index, tolerance=1, guard=False)
        assert retriever.retrieve("question") == retriever.retrieve("question~1")

    def test_filters_are_passed_on(self) -> None:
        index = index_over()
        filters = MetadataFilters(filters=[ExactMatchFilter(key="half", value=1)])
        retriever = ApproximateCacheRetriever.from_index(
            index, k=5, search_kwargs={"filters": filters}
        )
        expected = index.as_retriever(similarity_top_k=5, filters=filters).retrieve("question")
        assert retriever.retrieve("question") == expected
        assert {one.metadata["half"] for one in retriever.retrieve("question")} == {1}

    def test_a_mode_that_does_not_order_by_distance_is_not_ranked(self) -> None:
        index = index_over()
        retriever = ApproximateCacheRetriever.from_index(
            index, search_kwargs={"vector_store_query_mode": "mmr"}
        )
        expected = index.as_retriever(vector_store_query_mode="mmr").retrieve("question")
        assert ids(retriever.retrieve("question")) == ids(expected)

    def test_an_empty_index(self) -> None:
        store = FaissVectorStore(faiss.IndexFlatL2(DIM))
        index = index_over(store, count=0)
        retriever = ApproximateCacheRetriever.from_index(index)
        assert retriever.retrieve("question") == []
        index.insert_nodes(nodes(1))
        assert len(retriever.retrieve("question")) == 1

    def test_more_than_it_holds(self) -> None:
        retriever = ApproximateCacheRetriever.from_index(faiss_index(), k=1000)
        assert len(retriever.retrieve("question")) == 200
        assert len(retriever.retrieve("question")) == 200
        assert retriever.stats().hits == 1

    def test_returned_nodes_may_be_changed(self) -> None:
        retriever = ApproximateCacheRetriever.from_index(faiss_index())
        expected = [one.model_copy(deep=True) for one in retriever.retrieve("question")]
        for _ in range(2):
            for one in retriever.retrieve("question"):
                one.score = -1
                assert isinstance(one.node, TextNode)
                one.node.set_content("changed")
                one.node.metadata["tags"].append("changed")
                one.node.relationships.clear()
        assert retriever.retrieve("question") == expected

    def test_one_id_twice_is_not_mixed_up(self) -> None:
        index = faiss_index()
        index.insert_nodes([TextNode(id_="node 1", text="another text")])
        retriever = ApproximateCacheRetriever.from_index(index, tolerance=1, k=3)
        plain = index.as_retriever(similarity_top_k=3)
        for question in ("text 1", "another text", "text 2"):
            assert retriever.retrieve(question) == plain.retrieve(question)
            assert retriever.retrieve(question) == plain.retrieve(question)

    def test_a_store_that_keeps_text_can_be_wrapped_itself(self) -> None:
        class Keeping(SimpleVectorStore):
            """Keeps the nodes, too, as stores of databases do."""

            stores_text: bool = True
            _nodes: dict[str, Any] = PrivateAttr(default_factory=dict)

            def add(self, nodes: Any, **kwargs: Any) -> list[str]:
                self._nodes.update((node.node_id, node) for node in nodes)
                return super().add(nodes, **kwargs)

            def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
                query.node_ids = None
                result = super().query(query, **kwargs)
                result.nodes = [self._nodes[one] for one in result.ids or []]
                return result

        store, model = Keeping(), Words()
        index = VectorStoreIndex(
            nodes(),
            storage_context=StorageContext.from_defaults(vector_store=store),
            embed_model=model,
        )
        retriever = ApproximateCacheRetriever.from_vectorstore(store, model, k=3)
        expected = index.as_retriever(similarity_top_k=3).retrieve("question")
        assert ids(retriever.retrieve("question")) == ids(expected)
        assert scores(retriever.retrieve("question")) == scores(expected)


class TestQueries:
    def test_a_given_embedding_is_used(self) -> None:
        index = faiss_index()
        retriever = ApproximateCacheRetriever.from_index(index, k=1)
        bundle = QueryBundle("", embedding=words_of(index).get_text_embedding("any text"))
        expected = index.as_retriever(similarity_top_k=1).retrieve(bundle)
        assert retriever.retrieve(bundle) == expected
        assert words_of(index).queries == []

    async def test_texts_that_stand_for_the_question_are_averaged(self) -> None:
        index = faiss_index()
        retriever = ApproximateCacheRetriever.from_index(index)
        bundle = QueryBundle("question", custom_embedding_strs=["one", "other"])
        expected = index.as_retriever().retrieve(
            QueryBundle("question", custom_embedding_strs=["one", "other"])
        )
        assert retriever.retrieve(bundle) == expected
        assert await retriever.aretrieve(bundle) == expected
        assert bundle.embedding is None

    def test_nodes_that_stand_for_objects_are_followed_for_each_question(self) -> None:
        class Echo(BaseRetriever):
            def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
                node = TextNode(id_="echo", text=query_bundle.query_str)
                return [NodeWithScore(node=node, score=1.0)]

        link = IndexNode(text="link", index_id="link", obj=Echo())
        store = FaissVectorStore(faiss.IndexFlatL2(DIM))
        index = VectorStoreIndex(
            objects=[link],
            storage_context=StorageContext.from_defaults(vector_store=store),
            embed_model=Words(),
        )
        retriever = ApproximateCacheRetriever.from_index(index, tolerance=1, guard=False)
        assert [one.text for one in retriever.retrieve("question")] == ["question"]
        assert [one.text for one in retriever.retrieve("question~1")] == ["question~1"]
        assert retriever.stats().hits == 1

    def test_in_a_query_engine(self) -> None:
        retriever = ApproximateCacheRetriever.from_index(faiss_index())
        engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
        assert len(engine.query("question").source_nodes) == 2
        assert len(asyncio.run(engine.aquery("question")).source_nodes) == 2
        assert retriever.stats().hits == 1


class TestWrappedRetrievers:
    async def test_it_is_asked_as_it_is_and_with_the_embedding(self) -> None:
        index = faiss_index()
        plain = index.as_retriever(similarity_top_k=3)
        retriever = ApproximateCacheRetriever.from_retriever(plain, tolerance=1, guard=False)
        expected = plain.retrieve("question")
        words_of(index).queries.clear()
        assert retriever.retrieve("question") == expected
        assert words_of(index).queries == ["question"]
        assert await retriever.aretrieve("question~1") == expected
        assert retriever.stats().store_calls == 1
        short = ApproximateCacheRetriever.from_retriever(plain, k=2, guard=False)
        assert short.retrieve("question") == expected[:2]

    async def test_one_without_a_coroutine_of_its_own_blocks_nothing(self) -> None:
        class Slow(BaseRetriever):
            def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
                time.sleep(0.02)
                return [NodeWithScore(node=TextNode(id_="slow", text="slow"), score=1.0)]

        retriever = ApproximateCacheRetriever.from_retriever(Slow(), Words())
        with blockbuster_ctx("ragcache_integrations"):
            assert ids(await retriever.aretrieve("question")) == ["slow"]

    async def test_errors_pass_unchanged_and_nothing_is_cached(self) -> None:
        error = ConnectionError("gone")

        class Broken(BaseRetriever):
            def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
                raise error

        retriever = ApproximateCacheRetriever.from_retriever(Broken(), Words())
        with pytest.raises(ConnectionError) as caught:
            retriever.retrieve("question")
        assert caught.value is error
        with pytest.raises(ConnectionError):
            await retriever.aretrieve("question")
        stats = retriever.stats()
        assert (stats.failures, stats.hits) == (2, 0)


class TestEvents:
    def test_hits_are_dispatched(self, events: list[Any]) -> None:
        retriever = ApproximateCacheRetriever.from_index(faiss_index(), tolerance=1, guard=False)
        for question in ("question", "question~1", "question"):
            retriever.retrieve(question)
        asyncio.run(retriever.aretrieve("question"))
        seen = [event for event in events if isinstance(event, QueryCacheEvent)]
        assert [one.query for one in seen] == ["question", "question~1", "question", "question"]
        assert [one.trace.hit for one in seen] == [False, True, True, True]
        assert [one.trace.reranked for one in seen] == [False, True, False, False]
        assert all(one.span_id is not None for one in seen)
        assert seen[1].model_dump()["trace"]["distance"] > 0

    def test_the_callbacks_of_the_index_see_every_retrieval(self) -> None:
        debug = LlamaDebugHandler(print_trace_on_end=False)
        index = VectorStoreIndex(
            nodes(), embed_model=Words(), callback_manager=CallbackManager([debug])
        )
        retriever = ApproximateCacheRetriever.from_index(index)
        debug.flush_event_logs()
        retriever.retrieve("question")
        retriever.retrieve("question")
        assert len(debug.get_event_pairs(CBEventType.RETRIEVE)) == 2


class TestConcurrency:
    def test_threads(self) -> None:
        index = faiss_index()
        retriever = ApproximateCacheRetriever.from_index(index)
        questions = [f"question {number % 5}" for number in range(40)]
        expected = [ids(index.as_retriever().retrieve(question)) for question in questions]
        with ThreadPoolExecutor(8) as pool:
            assert [ids(one) for one in pool.map(retriever.retrieve, questions)] == expected
        assert retriever.stats().store_calls == 5

    @pytest.mark.parametrize("kind", ["faiss", "simple"])
    async def test_tasks(self, kind: str) -> None:
        index = faiss_index() if kind == "faiss" else index_over()
        retriever = ApproximateCacheRetriever.from_index(index)
        questions = [f"question {number % 5}" for number in range(40)]
        expected = [ids(index.as_retriever().retrieve(question)) for question in questions]
        found = await asyncio.gather(*[retriever.aretrieve(one) for one in questions])
        assert [ids(one) for one in found] == expected
        assert retriever.stats().store_calls == 5

    async def test_a_store_without_a_coroutine_of_its_own_blocks_nothing(self) -> None:
        class Slow(SimpleVectorStore):
            def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
                time.sleep(0.02)
                return super().query(query, **kwargs)

        index = index_over(Slow())
        for retriever in (
            ApproximateCacheRetriever.from_index(index),
            ApproximateCacheRetriever.from_retriever(index.as_retriever()),
        ):
            with blockbuster_ctx("ragcache_integrations"):
                for question in ("question", "question", "other"):
                    await retriever.aretrieve(question)
            assert retriever.stats().hits == 1


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"tolerence": 0.3}, "unknown argument 'tolerence'.*tolerance"),
            ({"similarity_top_k": 3}, "unknown argument 'similarity_top_k'.*k,"),
            ({"tolerance": -1}, "got -1"),
            ({"tolerance": math.nan}, "got nan"),
            ({"tolerance": "0.3"}, "got '0.3'"),
            ({"capacity": 0}, "capacity"),
            ({"k": 0}, "k must be"),
            ({"eviction": "lfu"}, "'lru' or 'fifo'"),
            ({"metric": "ip"}, "metric='ip'.*'l2'"),
            ({"search_kwargs": {"similarity_top_k": 3}}, "unknown search_kwargs similarity_top_k"),
            ({"embed_model": "default"}, "embed_model must be a BaseEmbedding"),
        ],
    )
    def test_arguments(self, arguments: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            ApproximateCacheRetriever.from_index(faiss_index(), **arguments)

    def test_what_is_wrapped(self) -> None:
        index = faiss_index()
        with pytest.raises(ConfigurationError, match="either index or retriever"):
            ApproximateCacheRetriever()
        with pytest.raises(ConfigurationError, match="not both"):
            ApproximateCacheRetriever(index, retriever=index.as_retriever())
        with pytest.raises(ConfigurationError, match="search_kwargs are for an index"):
            ApproximateCacheRetriever(retriever=index.as_retriever(), search_kwargs={"alpha": 1})
        with pytest.raises(ConfigurationError, match="does not keep the nodes' text"):
            ApproximateCacheRetriever.from_vectorstore(FaissVectorStore(None), Words())

    def test_a_retriever_without_a_model_needs_one(self) -> None:
        class Bare(BaseRetriever):
            def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
                return []

        with pytest.raises(ConfigurationError, match="embed_model must be"):
            ApproximateCacheRetriever.from_retriever(Bare())

    @pytest.mark.parametrize("embedding", [[0.0] * DIM, [math.nan] * DIM, [1.0]])
    async def test_unusable_embeddings(self, embedding: list[float]) -> None:
        class Broken(Words):
            def _get_query_embedding(self, query: str) -> list[float]:
                return embedding

        retriever = ApproximateCacheRetriever.from_index(faiss_index(), Broken())
        with pytest.raises(EmbeddingError, match="'question'"):
            retriever.retrieve("question")
        with pytest.raises(EmbeddingError, match="'question'"):
            await retriever.aretrieve("question")
