"""Our own index is followed, as stores are."""

from __future__ import annotations

import asyncio
from typing import Any

import faiss
import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from llama_index.core.base.base_retriever import BaseRetriever as LlamaBaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from ragcache_integrations.langchain import ApproximateCacheRetriever as LangChainRetriever
from ragcache_integrations.llama_index import ApproximateCacheRetriever as LlamaIndexRetriever
from ragcache_integrations.retrievers.staged.core import STAGED_INDEX_METHODS
from ragcache_integrations.retrievers.stores.changes import Change, unwatch, watch
from ragcache_integrations.vector_search import StagedIndex
from tests.retrievers.cached.langchain.stores import DIM, Words
from tests.retrievers.cached.llama_index.indexes import Words as LlamaIndexWords

TEXTS = [f"text {number}" for number in range(50)]


def index_of_texts() -> StagedIndex:
    index = faiss.IndexFlatL2(DIM)
    index.add(np.array(Words().embed_documents(TEXTS), np.float32))
    return StagedIndex(index, TEXTS)


def vector(text: str) -> Any:
    return np.array(Words().embed_documents([text]), np.float32)


class Ear:
    def __init__(self) -> None:
        self.heard: list[Change] = []

    def documents_changed(self, change: Change) -> None:
        self.heard.append(change)


def test_every_change_is_told_once_and_by_name() -> None:
    index, ear = index_of_texts(), Ear()
    watch(index, STAGED_INDEX_METHODS, ear)
    assert isinstance(index, StagedIndex)
    index.add(["a", "b"], np.concatenate([vector("a"), vector("b")]))
    index.update(("a",), vector("c"))
    index.delete(["a"])
    asyncio.run(index.aadd(["d"], vector("d")))
    asyncio.run(index.aupdate(["d"], vector("e")))
    asyncio.run(index.adelete(["d"]))
    index.compact()
    index.search(vector("a")[0], 1)
    assert ear.heard == [
        Change(updated={"a", "b"}),
        Change(updated={"a"}),
        Change(removed={"a"}),
        Change(updated={"d"}),
        Change(updated={"d"}),
        Change(removed={"d"}),
    ]
    ear.heard.clear()
    index.delete(iter(["b"]))  # type: ignore[arg-type]  # works, but can be read only once
    with pytest.raises(ValueError, match="there already"):
        index.add(["text 1"], vector("x"))
    assert ear.heard == [Change(unknown=True), Change(unknown=True)]
    unwatch(index, ear)
    assert type(index) is StagedIndex


class Searching(BaseRetriever):
    """Searches the index, in LangChain's words."""

    index: Any

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        found = self.index.search(Words().embed_query(query), 2)
        return [Document(id=one, page_content=one) for one in found.ids]


def test_a_langchain_retriever_follows_it() -> None:
    index = index_of_texts()
    retriever = LangChainRetriever.from_retriever(
        Searching(index=index), Words(), tolerance=1, guard=False
    )
    retriever.attach(index)
    assert retriever.invoke("text new")[0].id != "new"
    index.add(["new"], vector("text new"))
    assert retriever.invoke("text new")[0].id == "new"
    assert retriever.invoke("text new~1")[0].id == "new"
    assert retriever.stats().hits == 1
    index.delete(["new"])
    assert retriever.invoke("text new~1")[0].id != "new"
    retriever.detach(index)
    assert type(index) is StagedIndex


class LlamaSearching(LlamaBaseRetriever):
    """Searches the index, in LlamaIndex's words."""

    def __init__(self, index: StagedIndex) -> None:
        super().__init__()
        self._index = index

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self._index.search(Words().embed_query(query_bundle.query_str), 2)
        return [NodeWithScore(node=TextNode(id_=one, text=one), score=0.0) for one in found.ids]


def test_a_llama_index_retriever_follows_it() -> None:
    index = index_of_texts()
    retriever = LlamaIndexRetriever.from_retriever(
        LlamaSearching(index), LlamaIndexWords(), tolerance=1, guard=False
    )
    retriever.attach(index)
    assert retriever.retrieve("text new")[0].node.node_id != "new"
    index.add(["new"], vector("text new"))
    assert retriever.retrieve("text new")[0].node.node_id == "new"
    index.delete(["new"])
    assert retriever.retrieve("text new")[0].node.node_id != "new"
    retriever.detach(index)
    assert type(index) is StagedIndex
