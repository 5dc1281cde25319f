"""By default a retriever shares no documents between questions that differ in what matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import QueryBundle, TextNode

from ragcache_integrations.langchain import ApproximateCacheRetriever
from ragcache_integrations.llama_index import ApproximateCacheRetriever as LlamaIndexRetriever
from tests.support.embeddings import LangChainEmbeddings, LlamaIndexEmbeddings

WORDS = [
    ("rome in 1950", "rome in 1951", 2),
    ("rome is nice", "rome is pretty", 1),
    ("does rome attack oslo", "does oslo attack rome", 2),
    ("where was anna born", "where was greta born", 2),
    ("wo ist der Hund", "wo ist der Hund nicht", 2),
]


def blind(_: str) -> list[float]:
    """Take all texts for the same."""
    return [1.0, 0.0]


@pytest.mark.parametrize(("first", "second", "searches"), WORDS)
@pytest.mark.parametrize("guard", [True, False])
def test_langchain(first: str, second: str, searches: int, guard: bool) -> None:
    store = InMemoryVectorStore.from_texts(["rome"], LangChainEmbeddings(blind))
    knobs: dict[str, Any] = {} if guard else {"guard": False}
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1, tolerance=0.5, **knobs)
    for question in (first, second, second):
        assert len(retriever.invoke(question)) == 1
    assert retriever.stats().misses == (searches if guard else 1)


@pytest.mark.parametrize(("first", "second", "searches"), WORDS)
def test_llama_index(first: str, second: str, searches: int) -> None:
    index = VectorStoreIndex([TextNode(text="rome")], embed_model=LlamaIndexEmbeddings(blind))
    retriever = LlamaIndexRetriever.from_index(index, k=1, tolerance=0.5)
    for question in (first, second, second):
        assert len(retriever.retrieve(question)) == 1
    assert retriever.stats().misses == searches


def index() -> VectorStoreIndex:
    return VectorStoreIndex([TextNode(text="rome")], embed_model=LlamaIndexEmbeddings(blind))


def store() -> InMemoryVectorStore:
    return InMemoryVectorStore.from_texts(["rome"], LangChainEmbeddings(blind))


def test_what_is_proven_needs_no_guard() -> None:
    retriever = ApproximateCacheRetriever.from_vectorstore(
        store(), k=1, tolerance=0.5, guarantee="exact", sole_writer=True
    )
    for question in ("rome in 1950", "rome in 1951"):
        assert len(retriever.invoke(question)) == 1
    assert retriever.stats().hits == 1
    assert retriever.explain("rome in 1952").hit


def test_embeddings_without_text_share_with_each_other_alone() -> None:
    retriever = LlamaIndexRetriever.from_index(index(), k=1, tolerance=0.5)
    retriever.retrieve("rome in 1950")
    for _ in range(2):
        assert len(retriever.retrieve(QueryBundle("", embedding=[1.0, 0.0]))) == 1
    assert (retriever.stats().misses, retriever.stats().hits) == (2, 1)


@pytest.mark.parametrize("embedded", ["rome", "rome in 1950"])
def test_a_question_in_whose_place_another_text_is_embedded(embedded: str) -> None:
    """What is wrapped may read the question, as a search for words does."""
    retriever = LlamaIndexRetriever.from_index(index(), k=1, tolerance=0.5)
    for question in ("how large in 1950", "how large in 1951", "how large in 1951"):
        retriever.retrieve(QueryBundle(question, custom_embedding_strs=[embedded]))
    assert (retriever.stats().misses, retriever.stats().hits) == (2, 1)


def test_pictures() -> None:
    retriever = LlamaIndexRetriever.from_index(index(), k=1, tolerance=0.5)
    for path in ("one.png", "two.png", "one.png"):
        retriever.retrieve(QueryBundle("", image_path=path, embedding=[1.0, 0.0]))
    assert (retriever.stats().misses, retriever.stats().hits) == (2, 1)


def test_a_saved_file_and_what_is_forgotten(tmp_path: Path) -> None:
    first, second = (
        ApproximateCacheRetriever.from_vectorstore(store(), k=1, tolerance=0.5, namespace="ann")
        for _ in range(2)
    )
    for question in ("rome in 1950", "rome in 1951"):
        first.invoke(question)
    first.save(tmp_path / "cache")
    second.load(tmp_path / "cache")
    assert second.forget("in rome, 1952") == 0
    assert second.forget("in rome, 1951") == 1
    assert second.explain("in rome, 1950").hit
    second.clear(namespace="bob")
    assert second.explain("in rome, 1950").hit
    second.clear(namespace="ann")
    assert not second.explain("rome in 1950").hit
