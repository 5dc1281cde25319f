"""What is found out about real stores, and which of them carry a guarantee."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import numpy as np
import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.vector_stores.faiss import FaissMapVectorStore, FaissVectorStore

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.langchain.stores import facts_of as langchain_facts
from ragcache_integrations.retrievers.cached.llama_index.requests import (
    facts_of as llama_index_facts,
)
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from ragcache_integrations.retrievers.stores.facts import MappedVectors, StoreFacts, tag_of
from ragcache_integrations.retrievers.stores.faiss_vectors import FaissVectors, faiss_facts
from tests.retrievers.cached.langchain.stores import (
    DIM,
    IDS,
    STORES,
    TEXTS,
    Words,
    faiss_store,
    in_memory_store,
)
from tests.retrievers.cached.llama_index.indexes import Words as LlamaIndexWords
from tests.retrievers.cached.llama_index.indexes import faiss_index, index_over

VECTORS = np.random.default_rng(0).normal(size=(400, DIM)).astype(np.float32)


def trained(index: Any) -> Any:
    index.train(VECTORS)
    index.add(VECTORS)
    return index


def with_ids(index: Any) -> Any:
    index.add_with_ids(VECTORS, np.arange(len(VECTORS)))
    return index


def quantised(index: Any) -> Any:
    index.train(VECTORS)
    return with_ids(faiss.IndexIDMap2(index))


def ivf(nprobe: int) -> Any:
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(DIM), DIM, 8)
    index.nprobe = nprobe
    return trained(index)


def polysemous() -> Any:
    index = trained(faiss.IndexPQ(DIM, 4, 8))
    index.search_type = 4  # faiss.IndexPQ.ST_polysemous, which its type stubs do not know
    return index


EXACT: dict[str, Callable[[], Any]] = {
    "flat L2": lambda: trained(faiss.IndexFlatL2(DIM)),
    "flat IP": lambda: trained(faiss.IndexFlatIP(DIM)),
    "flat": lambda: trained(faiss.IndexFlat(DIM)),
    "by id": lambda: with_ids(faiss.IndexIDMap(faiss.IndexFlatL2(DIM))),
    "by id, readable": lambda: with_ids(faiss.IndexIDMap2(faiss.IndexFlatIP(DIM))),
    "8 bits": lambda: trained(faiss.IndexScalarQuantizer(DIM, faiss.ScalarQuantizer.QT_8bit)),
    "product": lambda: trained(faiss.IndexPQ(DIM, 4, 8)),
    "product by id": lambda: quantised(faiss.IndexPQ(DIM, 4, 8)),
}
SURELY_NOT: dict[str, tuple[Callable[[], Any], str]] = {
    "IVF": (lambda: ivf(2), "IndexIVFFlat, searches 2 of its 8 clusters"),
    "HNSW": (lambda: trained(faiss.IndexHNSWFlat(DIM, 8)), "IndexHNSWFlat, walks a graph"),
    "L1": (lambda: trained(faiss.IndexFlat(DIM, faiss.METRIC_L1)), "other than L2 and inner"),
}
UNKNOWN: dict[str, tuple[Callable[[], Any], str]] = {
    "IVF of all clusters": (lambda: ivf(8), "searches 8 of its 8 clusters"),
    "LSH": (lambda: trained(faiss.IndexLSH(DIM, 16)), "IndexLSH, searches everything"),
    "polysemous": (polysemous, "IndexPQ, searches everything"),
}


def facts(index: Any) -> StoreFacts:
    mapping = {number: str(number) for number in range(index.ntotal)}
    return faiss_facts(index, FaissVectors(index, lambda: mapping))


class TestFaiss:
    @pytest.mark.parametrize("make", EXACT.values(), ids=EXACT)
    def test_exhaustive_indexes(self, make: Callable[[], Any]) -> None:
        index = make()
        found = facts(index)
        assert (found.exact, found.doubt, found.inexact) == (True, "", False)
        if found.vectors is None:
            assert type(faiss.downcast_index(index)) is faiss.IndexIDMap  # cannot be read
            return
        # Exact with respect to the vectors as they are read: brute force over them agrees.
        queries = VECTORS[:20] + np.float32(0.1)
        decoded = np.asarray(found.vectors([str(number) for number in range(400)]))
        products = queries @ decoded.T
        if found.metric == "l2":
            products = 2 * products - (decoded**2).sum(axis=1)
        wanted = np.sort(products, axis=1)[:, :-6:-1]
        _, rows = index.search(queries, 5)
        chosen = np.take_along_axis(products, rows, axis=1)
        assert chosen == pytest.approx(wanted, abs=1e-4)

    @pytest.mark.parametrize(("make", "why"), SURELY_NOT.values(), ids=SURELY_NOT)
    def test_indexes_that_miss_documents(self, make: Callable[[], Any], why: str) -> None:
        found = facts(make())
        assert (found.exact, found.inexact) == (False, True)
        assert why in found.doubt

    @pytest.mark.parametrize(("make", "why"), UNKNOWN.values(), ids=UNKNOWN)
    def test_indexes_of_which_it_is_not_known(self, make: Callable[[], Any], why: str) -> None:
        found = facts(make())
        assert (found.exact, found.inexact) == (False, False)
        assert why in found.doubt

    def test_an_index_of_a_class_derived_in_python(self) -> None:
        class Own(faiss.IndexFlatL2):
            pass

        assert facts(trained(Own(DIM))).exact

    def test_lengths(self) -> None:
        for make in (EXACT["flat L2"], EXACT["by id, readable"], EXACT["8 bits"]):
            index = make()
            found = facts(index)
            assert found.lengths is not None
            assert found.vectors is not None
            all_of_them = np.asarray(found.vectors([str(number) for number in range(400)]))
            lengths = np.linalg.norm(all_of_them.astype(np.float64), axis=1)
            assert found.lengths() == pytest.approx((lengths.min(), lengths.max()))
        empty = facts(faiss.IndexFlatL2(DIM))
        assert empty.lengths is not None
        assert empty.lengths() is None


class TestMappedVectors:
    def test_they_are_read_by_id(self) -> None:
        read = MappedVectors(lambda _: {"a": [1.0, 2.0], "b": [3.0, 4.0]})
        assert read(["b", "a"]).tolist() == [[3.0, 4.0], [1.0, 2.0]]
        assert len(read([])) == 0

    def test_those_that_are_not_there_or_have_no_direction(self) -> None:
        read = MappedVectors(lambda _: {"a": [1.0, 2.0], "zero": [0.0, 0.0]})
        with pytest.raises(LookupError, match="'b' has no vector"):
            read(["a", "b"])
        with pytest.raises(LookupError, match="'zero' has a zero vector"):
            read(["a", "zero"])


class TestLangChain:
    @pytest.mark.parametrize("name", STORES)
    def test_stores(self, name: str) -> None:
        found = langchain_facts(STORES[name](), {})
        metrics = {"ip": "ip", "normalised": "cosine", "in memory": "cosine"}
        assert found.metric == metrics.get(name, "l2")
        assert (found.exact, found.dim) == (True, DIM)
        assert found.vectors is not None
        own = np.array(Words().embed_documents(TEXTS[3:5]))
        if name == "normalised":
            own /= np.linalg.norm(own, axis=1, keepdims=True)
        assert np.asarray(found.vectors(IDS[3:5])) == pytest.approx(own, rel=1e-6)

    def test_arguments_of_the_search(self) -> None:
        store, memory = faiss_store(), in_memory_store()
        assert langchain_facts(store, {"fetch_k": 9}).exact
        assert langchain_facts(memory, {"filter": bool}).exact
        filtered = langchain_facts(store, {"filter": {"half": 1}})
        assert (filtered.exact, filtered.inexact) == (False, True)
        assert filtered.vectors is not None
        for one in (store, memory):
            found = langchain_facts(one, {"score_threshold": 0.5})
            assert (found.exact, found.inexact, found.vectors) == (False, True, None)

    def test_classes_that_search_in_their_own_way(self) -> None:
        class Halved(InMemoryVectorStore):
            def similarity_search_by_vector(
                self, embedding: list[float], k: int = 4, **kwargs: Any
            ) -> list[Document]:
                return super().similarity_search_by_vector(embedding, k, **kwargs)[::2]

        class Same(InMemoryVectorStore):
            pass

        assert langchain_facts(Same.from_texts(TEXTS, Words()), {}).exact
        found = langchain_facts(Halved.from_texts(TEXTS, Words()), {})
        assert (found.exact, found.inexact) == (False, False)
        assert "Halved" in found.doubt

    def test_a_store_that_nobody_knows(self) -> None:
        class Other(VectorStore):
            def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
                return []

            @classmethod
            def from_texts(cls, *args: Any, **kwargs: Any) -> Any:
                return cls()

        assert langchain_facts(Other(), {}) == StoreFacts(
            doubt="it is not known how Other searches"
        )


class TestLlamaIndex:
    @pytest.mark.parametrize(
        ("kind", "metric"), [("l2", "l2"), ("ip", "ip"), ("map", "l2"), ("simple", "cosine")]
    )
    def test_stores(self, kind: str, metric: str) -> None:
        index = faiss_index(kind)
        found = llama_index_facts(index, "default")
        assert (found.metric, found.exact, found.dim) == (metric, True, DIM)
        assert found.vectors is not None
        assert np.asarray(found.vectors(["node 7", "node 3"])).shape == (2, DIM)

    def test_modes_that_do_not_rank_by_distance(self) -> None:
        for mode in ("mmr", "hybrid", "svm"):
            found = llama_index_facts(index_over(), mode)
            assert (found.exact, found.inexact, found.vectors) == (False, True, None)
            assert repr(mode) in found.doubt

    def test_classes_that_search_in_their_own_way(self) -> None:
        class OwnStore(SimpleVectorStore):
            def query(self, query: Any, **kwargs: Any) -> Any:
                return super().query(query, **kwargs)

        class OwnIndex(VectorStoreIndex):
            def as_retriever(self, **kwargs: Any) -> Any:
                return super().as_retriever(**kwargs)

        assert not llama_index_facts(index_over(OwnStore()), "default").exact
        assert not llama_index_facts(OwnIndex([], embed_model=LlamaIndexWords()), "default").exact


GUARANTEE: Any = {"guarantee": "exact"}


def faiss_over(index: Any) -> FAISS:
    store = FAISS(Words(), index, InMemoryDocstore(), {})
    store.add_texts(TEXTS)
    return store


class TestGuarantee:
    @pytest.mark.parametrize("name", STORES)
    def test_exact_stores_carry_it(self, name: str) -> None:
        store = STORES[name]()
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, k=2, tolerance=1.0, rerank_factor=60, guarantee="exact", guard=False
        )
        for question in ("question", "question~1", "question", "other"):
            plain = store.as_retriever(search_kwargs={"k": 2})
            assert retriever.invoke(question) == plain.invoke(question)
        stats = retriever.stats().cache
        assert stats is not None
        assert stats.proven == stats.hits > 0

    @pytest.mark.parametrize("kind", ["l2", "ip", "map", "simple"])
    def test_exact_indexes_carry_it(self, kind: str) -> None:
        index = faiss_index(kind)
        retriever = LlamaIndexRetriever.from_index(
            index, k=2, tolerance=1.0, rerank_factor=60, guarantee=1, guard=False
        )
        for question in ("question", "question~1", "question", "other"):
            plain = index.as_retriever(similarity_top_k=2).retrieve(question)
            assert [one.node_id for one in retriever.retrieve(question)] == [
                one.node_id for one in plain
            ]
        stats = retriever.stats().cache
        assert stats is not None
        assert stats.proven == stats.hits > 0

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda: faiss_over(ivf_of_texts(2)), "searches 2 of its 4 clusters"),
            (lambda: faiss_over(faiss.IndexHNSWFlat(DIM, 8)), "walks a graph"),
            (lambda: Unknown.from_texts(TEXTS, Words()), "exact_search=True"),
        ],
        ids=["IVF", "HNSW", "own search"],
    )
    def test_stores_that_cannot(self, make: Callable[[], Any], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said) as caught:
            ApproximateCacheRetriever.from_vectorstore(make(), guarantee="exact")
        assert "guarantee='exact' needs" in str(caught.value)
        assert ApproximateCacheRetriever.from_vectorstore(make()).invoke("question")

    def test_what_is_known_to_be_wrong_is_not_believed(self) -> None:
        with pytest.raises(ConfigurationError, match=r"exact_search=True was given, but .*graph"):
            ApproximateCacheRetriever.from_vectorstore(
                faiss_over(faiss.IndexHNSWFlat(DIM, 8)), exact_search=True
            )
        with pytest.raises(ConfigurationError, match="exact_search=False was given"):
            ApproximateCacheRetriever.from_vectorstore(
                faiss_store(), exact_search=False, **GUARANTEE
            )

    def test_what_the_user_knows_is_believed(self) -> None:
        for store in (Unknown.from_texts(TEXTS, Words()), faiss_over(ivf_of_texts(4))):
            retriever = ApproximateCacheRetriever.from_vectorstore(
                store, exact_search=True, **GUARANTEE
            )
            assert len(retriever.invoke("question")) == 4

    def test_filters_after_the_search(self) -> None:
        with pytest.raises(ConfigurationError, match="filters only what it found"):
            ApproximateCacheRetriever.from_vectorstore(
                faiss_store(), search_kwargs={"filter": {"half": 1}}, **GUARANTEE
            )
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store(), **GUARANTEE)
        with pytest.raises(ConfigurationError, match="filter cannot go with guarantee='exact'"):
            retriever.invoke("question", filter={"half": 1})
        memory = ApproximateCacheRetriever.from_vectorstore(in_memory_store(), **GUARANTEE)
        found = memory.invoke("question", filter=lambda one: one.metadata["half"] == 1)
        assert {one.metadata["half"] for one in found} == {1}

    def test_what_a_filter_left_out_is_not_held_to_be_all(self) -> None:
        store = faiss_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, tolerance=1, annotate=True, guard=False
        )
        few = {"number": {"$lt": 40}}
        for _ in range(2):
            found = retriever.invoke("question", filter=few)
            assert len(found) < 4  # of the 20 that the store looks at, too few pass the filter
        hit = retriever.invoke("question~1", k=1, filter=few)
        assert [one.metadata["query_cache"]["recall_bound"] for one in hit] in ([0.0], [1.0])
        assert retriever.stats().misses == 2

    def test_wrapped_retrievers(self) -> None:
        plains: list[Any] = [faiss_store().as_retriever(search_type="mmr"), RunnableLambda(str)]
        for plain in plains:
            with pytest.raises(ConfigurationError, match=r"wrapped retriever.*wrap its store"):
                ApproximateCacheRetriever.from_retriever(plain, Words(), **GUARANTEE)
        with pytest.raises(ConfigurationError, match=r"wrapped retriever.*wrap its index"):
            LlamaIndexRetriever.from_retriever(faiss_index().as_retriever(), **GUARANTEE)

    def test_modes_of_the_search(self) -> None:
        with pytest.raises(ConfigurationError, match="vector_store_query_mode='mmr'"):
            LlamaIndexRetriever.from_index(
                index_over(), search_kwargs={"vector_store_query_mode": "mmr"}, **GUARANTEE
            )
        with pytest.raises(ConfigurationError, match="score_threshold may leave"):
            ApproximateCacheRetriever.from_vectorstore(
                faiss_store(), search_kwargs={"score_threshold": 1.0}, **GUARANTEE
            )

    @pytest.mark.parametrize(
        "store",
        [
            lambda: FaissVectorStore(faiss.IndexHNSWFlat(DIM, 8)),
            lambda: FaissMapVectorStore(faiss.IndexIDMap(faiss.IndexFlatL2(DIM))),
        ],
        ids=["HNSW", "not readable"],
    )
    def test_indexes_that_cannot(self, store: Callable[[], Any]) -> None:
        with pytest.raises(ConfigurationError, match=r"guarantee=0.5 needs"):
            LlamaIndexRetriever.from_index(index_over(store()), guarantee=0.5)


class Unknown(InMemoryVectorStore):
    """Searches in its own way."""

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, **kwargs: Any
    ) -> list[Document]:
        return super().similarity_search_by_vector(embedding, k, **kwargs)


def ivf_of_texts(nprobe: int) -> Any:
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(DIM), DIM, 4)
    index.train(np.array(Words().embed_documents(TEXTS), dtype=np.float32))
    index.make_direct_map()
    index.nprobe = nprobe
    return index


def test_tags_tell_models_and_stores_apart() -> None:
    class Model:
        model_name = "mini"

    class Other:
        model_name = 5
        model = "maxi"

    class Store:
        pass

    tags = [tag_of(Model(), Store()), tag_of(Other(), Store()), tag_of(Store(), Model())]
    assert tags == ["Model(mini) Store", "Other(maxi) Store", "Store() Model"]
