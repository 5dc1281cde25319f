"""The LangChain retriever over real FAISS stores, LangChain's in-memory store and retrievers."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import faiss
import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from ragcache_integrations.errors import ConfigurationError, EmbeddingError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever

from .stores import DIM, STORES, TEXTS, Words, faiss_store, queries_of


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
class TestRanking:
    def test_misses_and_repetitions_are_the_store_s_own_answers(
        self, make: Callable[[], VectorStore]
    ) -> None:
        store = make()
        retriever = ApproximateCacheRetriever.from_vectorstore(store, k=5)
        plain = store.as_retriever(search_kwargs={"k": 5})
        for number in range(10):
            expected = plain.invoke(f"question {number}")
            assert retriever.invoke(f"question {number}") == expected
            assert retriever.invoke(f"question {number}") == expected
        assert (retriever.stats().misses, retriever.stats().hits) == (10, 10)

    def test_hits_are_ranked_as_the_store_would(self, make: Callable[[], VectorStore]) -> None:
        """With all documents as candidates, a hit must be exactly the store's answer."""
        store = make()
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, k=5, tolerance=0.4, rerank_factor=60, guard=False
        )
        plain = store.as_retriever(search_kwargs={"k": 5})
        retriever.invoke("question")
        for number in range(20):
            assert retriever.invoke(f"question~{number}") == plain.invoke(f"question~{number}")
        assert (retriever.stats().hits, retriever.stats().store_calls) == (20, 1)

    def test_few_candidates_are_enough_for_most_of_it(
        self, make: Callable[[], VectorStore]
    ) -> None:
        store = make()
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, k=5, tolerance=0.4, guard=False
        )
        plain = store.as_retriever(search_kwargs={"k": 5})
        found = 0
        for number in range(20):
            retriever.invoke(f"question {number}")
            near = {one.id for one in retriever.invoke(f"question {number}~x")}
            found += len(near & {one.id for one in plain.invoke(f"question {number}~x")})
        assert retriever.stats().hits == 20
        assert found >= 95


class TestStores:
    def test_a_question_is_embedded_once_and_searched_by_vector(self) -> None:
        store = faiss_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        for _ in range(3):
            retriever.invoke("question")
        assert queries_of(store) == ["question"]

    def test_without_k_it_is_what_the_store_s_own_retriever_gives(self) -> None:
        store = faiss_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        assert retriever.invoke("question") == store.as_retriever().invoke("question")

    async def test_k_at_construction_and_at_the_call(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store(), k=3)
        assert len(retriever.invoke("question")) == 3
        assert len(retriever.invoke("question", k=1)) == 1
        assert len(await retriever.ainvoke("question", k=2)) == 2
        assert len(await retriever.ainvoke("other", k=7)) == 7
        assert len(retriever.invoke("question", k=400)) == 300
        for bad in (0, -1, "2"):
            with pytest.raises(ConfigurationError, match="k must be"):
                retriever.invoke("question", k=bad)
            with pytest.raises(ConfigurationError, match="k must be"):
                await retriever.ainvoke("question", k=bad)

    def test_an_index_without_a_direct_map_is_not_ranked(self) -> None:
        quantiser = faiss.IndexFlatL2(DIM)
        vectors = np.array(Words().embed_documents(TEXTS), dtype=np.float32)
        index = faiss.IndexIVFFlat(quantiser, DIM, 4)
        index.train(vectors)
        store = FAISS(Words(), index, InMemoryDocstore(), {})
        store.add_texts(TEXTS)
        retriever = ApproximateCacheRetriever.from_vectorstore(store, tolerance=1, guard=False)
        assert retriever.invoke("question") == retriever.invoke("question~1")
        index.make_direct_map()
        ranked = ApproximateCacheRetriever.from_vectorstore(store, tolerance=1, guard=False)
        ranked.invoke("question")
        stats = ranked.stats().cache
        assert stats is not None
        assert stats.vectors == 16

    def test_other_arguments_of_the_search_are_passed_on_and_not_ranked(self) -> None:
        store = faiss_store()
        arguments = {"score_threshold": 150.0}
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, search_kwargs=arguments, k=300
        )
        found = retriever.invoke("question")
        assert found == store.similarity_search("question", k=300, **arguments)
        assert 0 < len(found) < 300
        stats = retriever.stats().cache
        assert stats is not None
        assert stats.vectors == 0

    def test_documents_without_ids(self) -> None:
        class Anonymous(InMemoryVectorStore):
            def similarity_search_by_vector(
                self, embedding: list[float], k: int = 4, **kwargs: Any
            ) -> list[Document]:
                found = super().similarity_search_by_vector(embedding, k, **kwargs)
                return [Document(one.page_content, metadata=one.metadata) for one in found]

        store = Anonymous.from_texts(TEXTS, Words())
        retriever = ApproximateCacheRetriever.from_vectorstore(store, tolerance=1, guard=False)
        first = retriever.invoke("question")
        assert retriever.invoke("question~1") == first
        assert [one.id for one in first] == [None] * 4

    def test_a_store_that_only_takes_text_is_asked_so(self) -> None:
        class TextOnly(InMemoryVectorStore):
            similarity_search_by_vector = VectorStore.similarity_search_by_vector
            asimilarity_search_by_vector = VectorStore.asimilarity_search_by_vector

        store = TextOnly.from_texts(TEXTS, Words())
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        expected = store.similarity_search("question")
        assert retriever.invoke("question") == expected
        assert asyncio.run(retriever.ainvoke("other")) == store.similarity_search("other")

    def test_an_empty_store(self) -> None:
        store = FAISS(Words(), faiss.IndexFlatL2(DIM), InMemoryDocstore(), {})
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        assert retriever.invoke("question") == []
        store.add_texts(["text"])
        assert len(retriever.invoke("question")) == 1

    def test_a_returned_document_may_be_changed(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store(), k=2)
        expected = [one.model_copy(deep=True) for one in retriever.invoke("question")]
        for _ in range(2):
            for document in retriever.invoke("question"):
                document.metadata["tags"].append("changed")
                document.metadata["new"] = 1
                document.page_content = "changed"
        assert retriever.invoke("question") == expected


class TestKeys:
    def test_filters_are_kept_apart(self) -> None:
        store = faiss_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, tolerance=math.inf, search_kwargs={"fetch_k": 300}
        )
        for half in (0, 1, 0):
            found = retriever.invoke("question", filter={"half": half})
            assert {one.metadata["half"] for one in found} == {half}
            assert found == store.similarity_search("question", filter={"half": half}, fetch_k=300)
        assert {one.metadata["half"] for one in retriever.invoke("question", k=20)} == {0, 1}
        assert (retriever.stats().misses, retriever.stats().hits) == (3, 1)

    async def test_a_filter_of_the_constructor_is_part_of_it_and_a_call_s_comes_before_it(
        self,
    ) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(
            faiss_store(), search_kwargs={"filter": {"half": 1}, "fetch_k": 300}
        )
        assert {one.metadata["half"] for one in retriever.invoke("question")} == {1}
        found = await retriever.ainvoke("question", filter={"half": 0})
        assert {one.metadata["half"] for one in found} == {0}

    def test_a_function_as_filter_is_asked_every_time(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(
            faiss_store(),
            search_kwargs={"filter": lambda metadata: metadata["number"] < 20, "fetch_k": 300},
        )
        for _ in range(2):
            assert all(one.metadata["number"] < 20 for one in retriever.invoke("question"))
        assert retriever.stats().hits == 0

    async def test_namespaces_are_kept_apart(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store(), namespace="own")
        retriever.invoke("question")
        retriever.invoke("question", namespace="other")
        assert retriever.stats().hits == 0
        await retriever.ainvoke("question", namespace="other")
        await retriever.ainvoke("question", namespace="own")
        assert retriever.stats().hits == 2


class TestWrappedRetrievers:
    def test_a_store_s_own_retriever_is_taken_apart(self) -> None:
        store = faiss_store()
        plain = store.as_retriever(search_kwargs={"k": 6, "filter": {"half": 1}, "fetch_k": 99})
        retriever = ApproximateCacheRetriever.from_retriever(plain, tolerance=1)
        assert (retriever.vectorstore, retriever.k) == (store, 6)
        assert retriever.search_kwargs == {"filter": {"half": 1}, "fetch_k": 99}
        assert plain.search_kwargs["k"] == 6
        assert retriever.invoke("question") == plain.invoke("question")
        assert ApproximateCacheRetriever.from_retriever(plain, k=2).k == 2

    async def test_any_other_is_asked_as_it_is_and_that_is_said(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        plain = faiss_store().as_retriever(search_type="mmr", search_kwargs={"k": 3})
        with caplog.at_level(logging.WARNING, "ragcache_integrations"):
            retriever = ApproximateCacheRetriever.from_retriever(plain, tolerance=1, guard=False)
        assert ["not re-ranked" in record.message for record in caplog.records] == [True]
        assert retriever.vectorstore is None
        expected = plain.invoke("question")
        assert retriever.invoke("question") == expected
        assert retriever.invoke("question~1") == expected
        assert await retriever.ainvoke("question~2") == expected
        assert retriever.invoke("question", k=2) == expected[:2]
        assert retriever.invoke("question", k=9) == plain.invoke("question", k=9)
        assert await retriever.ainvoke("other") == plain.invoke("other")

    async def test_arguments_of_a_call_reach_one_that_has_no_coroutine(self) -> None:
        """LangChain's own coroutine around a search takes no arguments."""

        class Blocking(BaseRetriever):
            def _get_relevant_documents(
                self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int = 1
            ) -> list[Document]:
                del run_manager
                return [Document(f"{query} {number}") for number in range(k)]

        retriever = ApproximateCacheRetriever.from_retriever(Blocking(), Words())
        found = await retriever.ainvoke("question", k=3)
        assert [one.page_content for one in found] == [f"question {number}" for number in range(3)]
        assert found == retriever.invoke("question", k=3)
        assert retriever.stats().hits == 1

    async def test_a_runnable_will_do(self) -> None:
        store = faiss_store()
        chain = store.as_retriever() | RunnableLambda[Any, Any](lambda found: found[::-1])
        retriever = ApproximateCacheRetriever.from_retriever(chain, Words())
        assert retriever.invoke("question") == chain.invoke("question")
        assert await retriever.ainvoke("question") == chain.invoke("question")
        assert retriever.stats().hits == 1


class TestConcurrency:
    def test_batches_and_threads(self) -> None:
        store = faiss_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        questions = [f"question {number % 5}" for number in range(40)]
        plain = store.as_retriever()
        expected = [plain.invoke(question) for question in questions]
        assert retriever.batch(questions, {"max_concurrency": 16}) == expected
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(retriever.invoke, questions)) == expected
        assert retriever.stats().store_calls == 5

    async def test_abatch_and_many_tasks(self) -> None:
        store = faiss_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        questions = [f"question {number % 5}" for number in range(40)]
        plain = store.as_retriever()
        expected = [plain.invoke(question) for question in questions]
        assert await retriever.abatch(questions) == expected
        found = await asyncio.gather(*[retriever.ainvoke(one) for one in questions])
        assert found == expected
        assert retriever.stats().store_calls == 5

    async def test_coroutines_block_nothing(self) -> None:
        class Slow(Words):
            def embed_query(self, text: str) -> list[float]:
                time.sleep(0.02)
                return super().embed_query(text)

        class SlowStore(FAISS):  # type: ignore[misc]  # langchain-community is untyped
            def similarity_search_by_vector(self, *args: Any, **kwargs: Any) -> Any:
                time.sleep(0.02)
                return super().similarity_search_by_vector(*args, **kwargs)

        retriever = ApproximateCacheRetriever.from_vectorstore(
            SlowStore.from_texts(TEXTS, Slow()), tolerance=1, guard=False
        )
        with blockbuster_ctx("ragcache_integrations"):
            for question in ("question", "question", "question~1", "other"):
                assert len(await retriever.ainvoke(question)) == 4
        assert retriever.stats().hits == 2

    async def test_a_native_coroutine_of_the_store_is_used(self) -> None:
        class Native(InMemoryVectorStore):
            threads: ClassVar[set[int]] = set()

            async def asimilarity_search_by_vector(
                self, embedding: list[float], k: int = 4, **kwargs: Any
            ) -> list[Document]:
                self.threads.add(threading.get_ident())
                await asyncio.sleep(0)
                return self.similarity_search_by_vector(embedding, k, **kwargs)

        store = Native.from_texts(TEXTS, Words())
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        found = await asyncio.gather(*[retriever.ainvoke("question") for _ in range(20)])
        assert found == [store.similarity_search("question")] * 20
        assert Native.threads == {threading.get_ident()}
        assert retriever.stats().store_calls == 1


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"tolerence": 0.3}, "unknown argument 'tolerence'.*tolerance"),
            ({"tolerance": -1}, "got -1"),
            ({"tolerance": math.nan}, "got nan"),
            ({"tolerance": "0.3"}, "got '0.3'"),
            ({"capacity": 0}, "capacity"),
            ({"k": 0}, "k must be"),
            ({"eviction": "lfu"}, "'lru' or 'fifo'"),
            ({"metric": "ip"}, "metric='ip'.*'l2'"),
            ({"k": 4, "search_kwargs": {"k": 3}}, "k=4 and, in search_kwargs, k=3 .*once"),
            ({"search_kwargs": {"k": 0}}, "k must be"),
            ({"search_type": "nearest"}, "search_type.*'mmr'.*got 'nearest'"),
        ],
    )
    def test_arguments(self, arguments: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            ApproximateCacheRetriever.from_vectorstore(faiss_store(), **arguments)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({}, "either vectorstore or retriever"),
            ({"vectorstore": None, "retriever": None}, "either vectorstore or retriever"),
            ({"vectorstore": "store"}, "vectorstore"),
            ({"retriever": RunnableLambda(str)}, "embeddings are needed"),
            (
                {
                    "retriever": RunnableLambda(str),
                    "embeddings": Words(),
                    "search_kwargs": {"filter": 1},
                },
                "search_kwargs and search_type are for a vectorstore",
            ),
        ],
    )
    def test_what_is_wrapped(self, arguments: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            ApproximateCacheRetriever(**arguments)

    def test_both_at_once(self) -> None:
        store = faiss_store()
        with pytest.raises(ConfigurationError, match="not both"):
            ApproximateCacheRetriever(vectorstore=store, retriever=store.as_retriever())

    async def test_arguments_that_what_is_wrapped_does_not_know(self) -> None:
        nothing: Any = RunnableLambda(lambda _: [])
        own = ApproximateCacheRetriever.from_retriever(nothing, Words())
        with pytest.raises(ConfigurationError, match="filter is for a vectorstore or a retriever"):
            own.invoke("question", filter={"a": 1})
        with pytest.raises(ConfigurationError, match="search_type is for a vectorstore"):
            own.invoke("question", search_type="mmr")
        staged = ApproximateCacheRetriever.from_retriever(
            StagedFaissRetriever.from_vectorstore(faiss_store())
        )
        with pytest.raises(ConfigurationError, match="no argument 'fetch_k'"):
            staged.invoke("question", fetch_k=3)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"kk": 1}, "FAISS has no argument 'kk': allowed are .*fetch_k"),
            ({"filters": {}}, "did you mean filter?"),
            ({"namepsace": "ann"}, "did you mean namespace?"),
            ({"filterkey": "ann"}, "did you mean filter_key?"),
            ({"search_kwargs": {"k": 1}}, "singly, such as k=4"),
            ({"search_type": "mrr"}, "search_type must be one of similarity, mmr"),
            ({"search_type": "similarity_score_threshold"}, "needs score_threshold"),
            ({"k": 0}, "k must be"),
            ({"namespace": 3}, "namespace must be a string, got 3"),
        ],
    )
    async def test_unknown_arguments_of_a_call(self, arguments: dict[str, Any], said: str) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store())
        with pytest.raises(ConfigurationError, match=said):
            retriever.invoke("question", **arguments)
        with pytest.raises(ConfigurationError, match=said):
            await retriever.ainvoke("question", **arguments)
        assert retriever.stats().store_calls == 0

    @pytest.mark.parametrize("query", [b"", None, 3])
    async def test_what_is_no_question(self, query: Any) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store())
        with pytest.raises(ConfigurationError, match="must be a string"):
            retriever.invoke(query)
        with pytest.raises(ConfigurationError, match="must be a string"):
            await retriever.ainvoke(query)

    @pytest.mark.parametrize("embedding", [[0.0] * DIM, [math.nan] * DIM, [1.0], [[1.0] * DIM] * 2])
    async def test_unusable_embeddings(self, embedding: Any) -> None:
        class Broken(Words):
            def embed_query(self, text: str) -> list[float]:
                return embedding  # type: ignore[no-any-return]  # the point

        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store(), Broken())
        with pytest.raises(EmbeddingError, match="'question'"):
            retriever.invoke("question")
        with pytest.raises(EmbeddingError, match="'question'"):
            await retriever.ainvoke("question")

    def test_a_retriever_does_not_change(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store())
        with pytest.raises(ConfigurationError, match=r"model_copy\(update=\{'tolerance'"):
            retriever.tolerance = 3.0  # type: ignore[misc]  # the point


def test_two_stores_with_one_id_for_different_texts() -> None:
    class Doubles(InMemoryVectorStore):
        def similarity_search_by_vector(
            self, embedding: list[float], k: int = 4, **kwargs: Any
        ) -> list[Document]:
            found: Sequence[Document] = super().similarity_search_by_vector(embedding, k)
            return [Document(one.page_content, id="same") for one in found]

    store = Doubles.from_texts(TEXTS, Words())
    retriever = ApproximateCacheRetriever.from_vectorstore(store, tolerance=1, guard=False)
    for question in ("question", "other"):
        first = retriever.invoke(question)
        assert retriever.invoke(f"{question}~1") == first
        assert len({one.page_content for one in first}) == 4
