"""Kinds of stores: which there are, how they are looked up, and what the docs say of them."""

from __future__ import annotations

import re
from importlib import import_module, metadata
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.langchain import (
    ApproximateCacheRetriever,
    MappedVectors,
    StoreFacts,
    StoreKind,
    register_store,
)
from ragcache_integrations.llama_index import ApproximateCacheRetriever as LlamaIndexRetriever
from ragcache_integrations.retrievers.cached.langchain.stores import facts_of, methods_of
from ragcache_integrations.retrievers.stores import LANGCHAIN_KINDS, LLAMA_INDEX_KINDS, kinds
from tests.retrievers.cached.langchain.stores import Words as LangChainWords
from tests.retrievers.cached.llama_index.indexes import Words as LlamaIndexWords

SIMPLE = "llama_index.core.vector_stores.simple.SimpleVectorStore"
EVERY = [*LANGCHAIN_KINDS, *LLAMA_INDEX_KINDS]


@pytest.fixture(autouse=True)
def _nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "_registered", [])


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: f"{kind.name} {kind.distribution}")
class TestEveryKind:
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_its_classes_exist_in_the_distribution(self, kind: StoreKind) -> None:
        files = metadata.files(kind.distribution)
        for name in kind.classes:
            module, _, class_name = name.rpartition(".")
            assert isinstance(getattr(import_module(module), class_name), type)
            assert any(
                str(file).removesuffix(".py").replace("/", ".") == module for file in files or ()
            )

    def test_no_other_kind_includes_its_classes(self, kind: StoreKind) -> None:
        for other in EVERY:
            if other is not kind:
                assert not set(other.classes) & set(kind.classes)


class Database(InMemoryVectorStore):
    """A store of a kind of its own: its documents' vectors are twice as long."""

    read: tuple[str, ...] = ()

    def similarity_search_by_vector(self, *args: Any, **kwargs: Any) -> list[Document]:
        return super().similarity_search_by_vector(*args, **kwargs)


def facts(store: Any) -> StoreFacts:
    def read(ids: Any) -> dict[str, Any]:
        store.read += tuple(ids)
        vectors = {name: document["vector"] for name, document in store.store.items()}
        return {name: np.multiply(vectors[name], 2) for name in ids if name in vectors}

    return StoreFacts(metric="cosine", vectors=MappedVectors(read), doubt="")


KIND = StoreKind("Database", (f"{__name__}.Database",), "nobody", facts)


def database() -> Database:
    store = Database(LangChainWords())
    store.add_documents([Document(f"text {number}", id=str(number)) for number in range(20)])
    return store


class TestRegistering:
    def test_a_registered_kind_is_re_ranked(self) -> None:
        register_store(KIND)
        store = database()
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, k=3, tolerance=2.0, rerank_factor=7, guard=False
        )
        assert retriever.invoke("text 1") == store.similarity_search("text 1", 3)
        assert len(store.read) == 20
        assert retriever.invoke("text 5") == store.similarity_search("text 5", 3)
        stats = retriever.stats()
        assert (stats.hits, stats.store_calls, stats.unranked) == (1, 1, "")

    def test_the_last_one_counts(self) -> None:
        register_store(StoreKind("Before", KIND.classes, "nobody", lambda _: StoreFacts()))
        register_store(KIND)
        assert facts_of(database(), ()).vectors is not None

    def test_facts_that_cannot_be_read_are_unknown(self, caplog: pytest.LogCaptureFixture) -> None:
        def fail(_: Any) -> StoreFacts:
            msg = "no such attribute"
            raise AttributeError(msg)

        register_store(StoreKind("Broken", KIND.classes, "nobody", fail))
        found = facts_of(database(), ())
        assert found == StoreFacts(doubt="it is not known how Database searches")
        assert "Nothing is known of this Broken: no such attribute" in caplog.text

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"name": 3}, "name must be a string, got 3"),
            ({"classes": "a.B"}, r"must be a tuple of names, such as \('a.B',\), got one name"),
            ({"classes": ("a.B", 3)}, r"tuple of names as module.Class, got \('a.B', 3\)"),
            ({"classes": None}, "tuple of names as module.Class, got None"),
            ({"distribution": None}, "distribution must be a string, got None"),
            ({"facts": StoreFacts()}, "facts must be a function of one argument, got StoreFacts"),
            ({"spellings": None}, "spellings must be a function of one argument, got None"),
            ({"recognises": True}, "recognises must be a function of one argument or None, got"),
            ({"vectors_come_along": "no"}, "vectors_come_along must be True or False, got 'no'"),
            ({"proofs": "exhaustiv"}, "proofs must be one of.*did you mean 'exhaustive'"),
        ],
    )
    def test_what_is_no_kind(self, arguments: dict[str, Any], words: str) -> None:
        usual: dict[str, Any] = {
            "name": "My store", "classes": KIND.classes, "distribution": "nobody", "facts": facts,
        }  # fmt: skip
        with pytest.raises(ConfigurationError, match=words):
            StoreKind(**usual | arguments)

    @pytest.mark.parametrize("wrong", [3, None, StoreFacts(), StoreKind])
    def test_only_kinds_are_registered(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="kind must be a StoreKind, got"):
            register_store(wrong)
        assert not kinds._registered

    @pytest.mark.parametrize("wrong", [None, {"metric": "cosine"}, StoreFacts])
    def test_facts_of_another_type(self, wrong: Any) -> None:
        register_store(StoreKind("Wrong", KIND.classes, "nobody", lambda _: wrong))
        with pytest.raises(
            ConfigurationError, match="facts of the kind 'Wrong' must return a StoreFacts, got"
        ):
            ApproximateCacheRetriever.from_vectorstore(database())
        register_store(StoreKind("Wrong", (SIMPLE,), "nobody", lambda _: wrong))
        index = VectorStoreIndex([TextNode(text="text")], embed_model=LlamaIndexWords())
        with pytest.raises(ConfigurationError, match="must return a StoreFacts"):
            LlamaIndexRetriever.from_index(index)

    def test_spellings_of_ids(self) -> None:
        register_store(
            StoreKind("Numbers", KIND.classes, "nobody", facts, spellings=lambda one: (str(one),))
        )
        deleted = methods_of(database()).removes["delete"]
        assert deleted({"ids": [1, "2"]}, None) == ["1", "2"]
        assert deleted({"ids": [1], "where": {"a": 1}}, None) is None
        kinds._registered.clear()
        assert methods_of(database()).removes["delete"]({"ids": [1]}, None) is None


class TestWithoutVectors:
    @pytest.fixture
    def store(self, monkeypatch: pytest.MonkeyPatch) -> Database:
        register_store(StoreKind("Mute", KIND.classes, "nobody", lambda _: StoreFacts()))
        return database()

    def test_a_rerank_factor_that_cannot_be_honoured_is_refused(self, store: Database) -> None:
        with pytest.raises(ConfigurationError, match="rerank_factor=4 cannot be honoured"):
            ApproximateCacheRetriever.from_vectorstore(store, rerank_factor=4)
        assert ApproximateCacheRetriever.from_vectorstore(store, rerank_factor=1).invoke("text 1")

    def test_the_default_is_strict_and_says_why(
        self, store: Database, caplog: pytest.LogCaptureFixture
    ) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(store, k=3, guard=False)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "Up to a distance of 0.05 they answer" in caplog.text
        retriever.invoke("text 1")
        retriever.invoke("text 1")
        assert retriever.stats().hits == 1
        explanation = retriever.explain("text 1 2")
        assert not explanation.hit
        assert explanation.tolerance == 0.05
        assert "not known how it searches" in retriever.stats().unranked

    @pytest.mark.parametrize(
        ("knobs", "words"),
        [
            ({"vectors": "embedd"}, "vectors must be one of embed.*did you mean 'embed'"),
            ({"vectors": 3}, "vectors must be one of embed"),
            ({"vectors": "embed", "guarantee": "exact"}, "the store's own vectors"),
        ],
    )
    def test_vectors_that_cannot_be(
        self, store: Database, knobs: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=re.compile(words, re.IGNORECASE)):
            ApproximateCacheRetriever.from_vectorstore(store, **knobs)

    def test_vectors_of_a_wrapped_retriever(self, store: Database) -> None:
        plain = store.as_retriever(search_type="mmr")
        with pytest.raises(ConfigurationError, match="vectors= is for a vectorstore"):
            ApproximateCacheRetriever.from_retriever(plain, vectors="embed")
