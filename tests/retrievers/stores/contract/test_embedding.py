"""Re-ranking in front of stores of unknown kinds: by embedding texts, or by a user's function."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import BaseNode, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    VectorStoreQuery,
    VectorStoreQueryResult,
)
from numpy.typing import ArrayLike
from pydantic import PrivateAttr

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from ragcache_integrations.retrievers.stores import (
    MappedVectors,
    StoreFacts,
    StoreKind,
    kinds,
    register_store,
)
from tests.retrievers.cached.langchain.stores import Words
from tests.retrievers.cached.llama_index.indexes import Words as LlamaIndexWords
from tests.support.waiting import wait_until

from .langchain_suite import COUNT, K, document, texts, uuid_of
from .llama_index_suite import index_over

QUESTIONS = [f"question~{number}" for number in range(10)]


class CountingWords(Words):
    """Counts how many times each text is embedded as a document."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: list[str] = []
        self.fails = False

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if self.fails:
            msg = "the model is out of order"
            raise RuntimeError(msg)
        self.documents += texts
        return super().embed_documents(texts)


class HiddenStore(VectorStore):
    """A store of which nothing is known: neither its kind nor its vectors."""

    def __init__(self, embeddings: Embeddings) -> None:
        self._inner = InMemoryVectorStore(embeddings)

    @property
    def embeddings(self) -> Embeddings:
        return self._inner.embeddings

    def add_documents(
        self, documents: list[Document], ids: list[str] | None = None, **_: Any
    ) -> list[str]:
        return self._inner.add_documents(documents, ids)

    def delete(self, ids: list[str] | None = None, **_: Any) -> bool:
        self._inner.delete(ids)
        return True

    def similarity_search(self, query: str, k: int = K, **arguments: Any) -> list[Document]:
        return self._inner.similarity_search(query, k, **arguments)

    @classmethod
    def from_texts(cls, *_: Any, **__: Any) -> HiddenStore:
        raise NotImplementedError

    def read(self, ids: Sequence[str]) -> list[list[float]]:
        """Return vectors from where the user keeps them."""
        return [self._inner.store[name]["vector"] for name in ids]


def hidden_store(words: Words | None = None) -> HiddenStore:
    store = HiddenStore(words or CountingWords())
    documents = [document(number) for number in range(COUNT)]
    store.add_documents(documents, ids=[uuid_of(number) for number in range(COUNT)])
    return store


def own(store: VectorStore, question: str) -> list[Document]:
    return store.as_retriever(search_kwargs={"k": K}).invoke(question)


def wait_for_vectors(
    retriever: ApproximateCacheRetriever | LlamaIndexRetriever, question: str
) -> None:
    wait_until(lambda: retriever.explain(question).tolerance == 0.3)


@pytest.fixture
def _registered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_registered", [*kinds._registered])


class TestLangChain:
    def test_strict_at_first_then_re_ranked(self) -> None:
        words = CountingWords()
        store = hidden_store(words)
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, k=K, vectors="embed", rerank_factor=20, metric="cosine", guard=False
        )
        words.documents.clear()
        words.fails = True
        retriever.invoke("question")
        assert retriever.explain("question~1").tolerance == 0.05  # no vectors came
        words.fails = False
        retriever.clear()
        retriever.invoke("question")
        wait_for_vectors(retriever, "question")
        for question in QUESTIONS:
            assert retriever.invoke(question) == own(store, question)
        assert retriever.stats().hits == len(QUESTIONS)
        retriever.invoke("another question")
        wait_for_vectors(retriever, "another question")
        assert sorted(words.documents) == sorted(f"text {number}" for number in range(COUNT))

    def test_a_document_that_changed_is_embedded_again(self) -> None:
        words = CountingWords()
        store = hidden_store(words)
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, k=K, vectors="embed", rerank_factor=20, metric="cosine", guard=False
        )
        retriever.invoke("question")
        wait_for_vectors(retriever, "question")
        store.add_documents([document(3, "question")], ids=[uuid_of(3)])
        words.documents.clear()
        assert texts(retriever.invoke("question"))[0] == "question"
        wait_for_vectors(retriever, "question")
        assert words.documents == ["question"]
        for question in QUESTIONS:
            assert retriever.invoke(question) == own(store, question)
        store.delete([uuid_of(3)])
        assert retriever.invoke("question~1") == own(store, "question~1")

    def test_a_model_that_fails_is_only_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        words = CountingWords()
        store = hidden_store(words)
        words.fails = True
        retriever = ApproximateCacheRetriever.from_vectorstore(store, k=K, vectors="embed")
        with caplog.at_level(logging.DEBUG, "ragcache_integrations"):
            for number in range(3):
                expected = own(store, f"question {number}")
                assert retriever.invoke(f"question {number}") == expected
                assert retriever.invoke(f"question {number}") == expected
            logged = "Documents could not be embedded"
            wait_until(lambda: sum(logged in text for text in caplog.messages) == 3)
        levels = [record.levelno for record in caplog.records if logged in record.message]
        assert sorted(levels) == [logging.DEBUG, logging.DEBUG, logging.WARNING]
        assert (retriever.stats().hits, retriever.stats().failures) == (3, 0)

    def test_a_function_of_the_user_s(self) -> None:
        store = hidden_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, k=K, vectors=store.read, rerank_factor=20, metric="cosine", guard=False
        )
        retriever.invoke("question")
        for question in QUESTIONS:
            assert retriever.invoke(question) == own(store, question)
        assert (retriever.stats().hits, retriever.stats().unranked) == (len(QUESTIONS), "")

    def test_without_vectors_the_default_is_strict(self, caplog: pytest.LogCaptureFixture) -> None:
        store = hidden_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store, k=K, metric="cosine")
        warnings = [record.getMessage() for record in caplog.records]
        assert len(warnings) == 1
        for part in ("not re-ranked", "HiddenStore", "0.05", "vectors="):
            assert part in warnings[0]
        assert "how HiddenStore searches" in retriever.stats().unranked
        retriever.invoke("question")
        assert retriever.explain("question").tolerance == 0.05
        with pytest.raises(ConfigurationError, match="rerank_factor=2 cannot be honoured"):
            ApproximateCacheRetriever.from_vectorstore(store, rerank_factor=2)
        ApproximateCacheRetriever.from_vectorstore(store, rerank_factor=1)

    @pytest.mark.usefixtures("_registered_again")
    def test_a_kind_that_is_registered(self) -> None:
        def facts(store: HiddenStore) -> StoreFacts:
            return StoreFacts(
                metric="cosine",
                vectors=MappedVectors(lambda ids: dict(zip(ids, store.read(ids), strict=True))),
            )

        name = f"{HiddenStore.__module__}.HiddenStore"
        register_store(StoreKind("Hidden", (name,), "hidden-store", facts))
        store = hidden_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, k=K, rerank_factor=20, guard=False
        )
        retriever.invoke("question")
        for question in QUESTIONS:
            assert retriever.invoke(question) == own(store, question)
        store.add_documents([document(100, "question")], ids=[uuid_of(100)])
        assert retriever.invoke("question~1") == own(store, "question~1")
        store.delete([uuid_of(100)])
        assert retriever.invoke("question~1") == own(store, "question~1")
        assert retriever.stats().unranked == ""


class CountingLlamaIndexWords(LlamaIndexWords):
    """Counts how many times each text is embedded as a node."""

    _documents: list[str] = PrivateAttr(default_factory=list)

    def _get_text_embedding(self, text: str) -> list[float]:
        self._documents.append(text)
        return super()._get_text_embedding(text)


class HiddenNodes(BasePydanticVectorStore):
    """A store of which nothing is known: neither its kind nor its vectors."""

    stores_text: bool = True
    _inner: SimpleVectorStore = PrivateAttr(default_factory=SimpleVectorStore)
    _nodes: dict[str, BaseNode] = PrivateAttr(default_factory=dict)

    @property
    def client(self) -> None:
        return None

    def add(self, nodes: list[BaseNode], **_: Any) -> list[str]:  # type: ignore[override]
        self._nodes |= {node.node_id: node for node in nodes}
        return self._inner.add(nodes)

    def delete(self, ref_doc_id: str, **_: Any) -> None:
        self._inner.delete(ref_doc_id)

    def query(self, query: VectorStoreQuery, **_: Any) -> VectorStoreQueryResult:
        result = self._inner.query(replace(query, node_ids=None))
        nodes = [self._nodes[node_id] for node_id in result.ids or []]
        return VectorStoreQueryResult(nodes=nodes, ids=result.ids, similarities=result.similarities)

    def read(self, ids: Sequence[str]) -> ArrayLike:
        return [self._inner.get(node_id) for node_id in ids]


@pytest.fixture
def index() -> Iterator[VectorStoreIndex]:
    return index_over(HiddenNodes(), CountingLlamaIndexWords())  # type: ignore[return-value]


class TestLlamaIndex:
    def test_strict_at_first_then_re_ranked(self, index: VectorStoreIndex) -> None:
        words = index._embed_model
        assert isinstance(words, CountingLlamaIndexWords)
        retriever = LlamaIndexRetriever.from_index(
            index, k=K, vectors="embed", rerank_factor=20, metric="cosine", guard=False
        )
        words._documents.clear()
        for number in range(2):
            retriever.retrieve(f"question {number}")
            wait_for_vectors(retriever, f"question {number}")
        assert sorted(words._documents) == sorted(f"text {number}" for number in range(COUNT))
        self.check_hits(index, retriever)

    def test_other_metadata_of_the_same_text_are_embedded(self, index: VectorStoreIndex) -> None:
        """They are a part of what LlamaIndex embeds."""
        retriever = LlamaIndexRetriever.from_index(
            index, k=K, vectors="embed", rerank_factor=20, metric="cosine", guard=False
        )
        for topic in ("one", "two", "three"):
            node = TextNode(id_=uuid_of(0), text="text 0", metadata={"topic": topic})
            index.insert_nodes([node])
            retriever.retrieve("question 0")
            wait_for_vectors(retriever, "question 0")
            self.check_hits(index, retriever)

    def test_a_function_of_the_user_s(self, index: VectorStoreIndex) -> None:
        store = index.vector_store
        assert isinstance(store, HiddenNodes)
        retriever = LlamaIndexRetriever.from_index(
            index, k=K, vectors=store.read, rerank_factor=20, metric="cosine", guard=False
        )
        retriever.retrieve("question 0")
        self.check_hits(index, retriever)

    @staticmethod
    def check_hits(index: VectorStoreIndex, retriever: LlamaIndexRetriever) -> None:
        plain = index.as_retriever(similarity_top_k=K)
        hits = retriever.stats().hits
        for number in range(10):
            question = f"question 0~{number}"
            found = [node.node_id for node in retriever.retrieve(question)]
            assert found == [node.node_id for node in plain.retrieve(question)]
        assert retriever.stats().hits == hits + 10

    def test_without_vectors_the_default_is_strict(
        self, index: VectorStoreIndex, caplog: pytest.LogCaptureFixture
    ) -> None:
        retriever = LlamaIndexRetriever.from_index(index, k=K, metric="cosine")
        assert ["HiddenNodes" in record.getMessage() for record in caplog.records] == [True]
        assert "how HiddenNodes searches" in retriever.stats().unranked
        retriever.retrieve("question")
        assert retriever.explain("question").tolerance == 0.05
        with pytest.raises(ConfigurationError, match="rerank_factor=2 cannot be honoured"):
            LlamaIndexRetriever.from_index(index, rerank_factor=2)
