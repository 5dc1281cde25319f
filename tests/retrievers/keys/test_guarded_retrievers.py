"""``guard=True``: a retriever shares no documents between questions that differ in what matters."""

from __future__ import annotations

import pytest
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode

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
    retriever = ApproximateCacheRetriever.from_vectorstore(store, k=1, tolerance=0.5, guard=guard)
    for question in (first, second, second):
        assert len(retriever.invoke(question)) == 1
    assert retriever.stats().misses == (searches if guard else 1)


@pytest.mark.parametrize(("first", "second", "searches"), WORDS)
def test_llama_index(first: str, second: str, searches: int) -> None:
    index = VectorStoreIndex([TextNode(text="rome")], embed_model=LlamaIndexEmbeddings(blind))
    retriever = LlamaIndexRetriever.from_index(index, k=1, tolerance=0.5, guard=True)
    for question in (first, second, second):
        assert len(retriever.retrieve(question)) == 1
    assert retriever.stats().misses == searches
