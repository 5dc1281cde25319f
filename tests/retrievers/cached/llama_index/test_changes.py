"""Answers follow what changes in LlamaIndex indexes and their stores."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.vector_store import VectorIndexRetriever
from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores import SimpleVectorStore, VectorStoreQuery
from llama_index.core.vector_stores.types import VectorStoreQueryResult

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.llama_index.retriever import ApproximateCacheRetriever

from .indexes import Words, faiss_index, ids, index_over, nodes, scores


def node(name: str, text: str = "text new") -> TextNode:
    return TextNode(id_=name, text=text)


@pytest.mark.parametrize("kind", ["l2", "map", "simple"])
class TestIndexes:
    def test_new_nodes_appear_in_answers_that_they_belong_to(self, kind: str) -> None:
        index = faiss_index(kind)
        retriever = ApproximateCacheRetriever.from_index(index, k=2, tolerance=1, guard=False)
        for question in ("text new", "text new~1", "something else"):
            assert "new" not in ids(retriever.retrieve(question))
        index.insert_nodes([node("new")])
        for question in ("text new", "text new~1", "text new~2"):
            assert ids(retriever.retrieve(question))[0] == "new"
        retriever.retrieve("something else")
        assert retriever.stats().misses == 3

    async def test_coroutines_are_followed(self, kind: str) -> None:
        index = faiss_index(kind)
        retriever = ApproximateCacheRetriever.from_index(index, k=2, tolerance=1)
        await retriever.aretrieve("text new")
        await index.ainsert_nodes([node("new")])
        assert ids(await retriever.aretrieve("text new"))[0] == "new"

    def test_deleted_nodes_vanish(self, kind: str) -> None:
        index = faiss_index(kind)
        retriever = ApproximateCacheRetriever.from_index(index, k=2, tolerance=1, guard=False)
        first = ids(retriever.retrieve("question"))
        if kind == "l2":  # FAISS takes nothing out of such an index, and who knows what is left
            with pytest.raises(NotImplementedError):
                index.delete_nodes(first[:1])
            assert ids(retriever.retrieve("question")) == first
            assert retriever.stats().misses == 2
            return
        index.delete_nodes(first[:1], delete_from_docstore=True)
        for question in ("question", "question~1"):
            assert ids(retriever.retrieve(question))[0] == first[1]
        assert retriever.stats().misses == 1


def added(name: str) -> Callable[[VectorStoreIndex], None]:
    return lambda index: index.insert_nodes([node(name, f"text {name}, once more")])


def deleted(name: str) -> Callable[[VectorStoreIndex], None]:
    return lambda index: index.delete_nodes([name])


@pytest.mark.parametrize(
    "steps",
    [
        # It numbers vectors by how many there are: the new one gets the number of the last node's,
        # and both go with either of them.
        (deleted("node 0"), added("new"), deleted("node 199")),
        # It forgets the number of the first vector of an id, which then stays after the second.
        (added("node 0"), deleted("node 0")),
        (added("node 0"), deleted("node 0"), added("node 0"), deleted("node 0")),
        (deleted("node 7"), added("node 0"), deleted("node 0")),
    ],
)
def test_a_store_that_confuses_its_numbers_is_followed(
    steps: tuple[Callable[[VectorStoreIndex], None], ...],
) -> None:
    """``FaissMapVectorStore`` mixes up its two mappings; a search tells what it holds."""
    index = faiss_index("map")
    retriever = ApproximateCacheRetriever.from_index(index, k=300, tolerance=0)
    for step in steps:
        retriever.retrieve("question")
        step(index)
        plain = index.as_retriever(similarity_top_k=300).retrieve("question")
        for _ in range(2):
            found = retriever.retrieve("question")
            assert ids(found) == ids(plain)
            assert scores(found) == pytest.approx(scores(plain))


class TestDocuments:
    def test_documents_are_inserted_updated_and_deleted(self) -> None:
        index = index_over()
        retriever = ApproximateCacheRetriever.from_index(index, k=1, tolerance=1)

        def texts() -> list[str]:
            return [retriever.retrieve(one)[0].text for one in ("text one", "text two")]

        before = texts()
        index.insert(Document(id_="document", text="text one"))
        assert texts() == ["text one", before[1]]
        index.update_ref_doc(Document(id_="document", text="text two"))
        assert texts() == [before[0], "text two"]
        index.delete_ref_doc("document", delete_from_docstore=True)
        assert texts() == before

    async def test_with_coroutines(self) -> None:
        index = index_over()
        retriever = ApproximateCacheRetriever.from_index(index, k=1, tolerance=1)
        before = (await retriever.aretrieve("text one"))[0].text
        await index.ainsert(Document(id_="document", text="text one"))
        assert (await retriever.aretrieve("text one"))[0].text == "text one"
        await index.adelete_ref_doc("document", delete_from_docstore=True)
        assert (await retriever.aretrieve("text one"))[0].text == before

    def test_the_vector_store_may_be_changed_by_itself(self) -> None:
        index = index_over()
        retriever = ApproximateCacheRetriever.from_index(index, k=1, tolerance=1)
        (first,) = ids(retriever.retrieve("question"))
        index.vector_store.delete_nodes([first])
        assert ids(retriever.retrieve("question")) != [first]


class TestOtherWays:
    def test_without_following_clear_brings_the_new_answer(self) -> None:
        index = faiss_index()
        retriever = ApproximateCacheRetriever.from_index(
            index, tolerance=1, follow_changes=False, guard=False
        )
        assert type(index) is VectorStoreIndex
        retriever.retrieve("text new")
        index.insert_nodes([node("new")])
        assert "new" not in ids(retriever.retrieve("text new"))
        retriever.clear()
        assert ids(retriever.retrieve("text new"))[0] == "new"
        assert ids(retriever.retrieve("text new~1"))[0] == "new"

    def test_an_index_behind_its_own_retriever_is_followed(self) -> None:
        index = faiss_index()
        retriever = ApproximateCacheRetriever.from_retriever(index.as_retriever(), tolerance=1)
        retriever.retrieve("text new")
        index.insert_nodes([node("new")])
        assert ids(retriever.retrieve("text new"))[0] == "new"

    def test_attaching_and_detaching(self) -> None:
        index = index_over()
        retriever = ApproximateCacheRetriever.from_index(
            index, k=1, tolerance=1, follow_changes=False
        )
        retriever.attach(index)
        retriever.attach(index.vector_store)
        retriever.retrieve("text new")
        index.insert_nodes([node("new")])
        assert ids(retriever.retrieve("text new")) == ["new"]
        retriever.detach(index)
        assert (type(index), type(index.vector_store)) == (VectorStoreIndex, SimpleVectorStore)
        index.delete_nodes(["new"], delete_from_docstore=True)
        assert ids(retriever.retrieve("text new")) == ["new"]
        with pytest.raises(ConfigurationError, match="VectorStoreIndex or a vector store, got 5"):
            retriever.attach(5)  # type: ignore[arg-type]  # the point

    def test_several_retrievers_and_one_that_is_gone(self) -> None:
        index = index_over()
        both = [ApproximateCacheRetriever.from_index(index, k=1) for _ in range(2)]
        gone = ApproximateCacheRetriever.from_index(index, k=1)
        gone.retrieve("text new")
        del gone
        gc.collect()
        for one in both:
            one.retrieve("text new")
        index.insert_nodes([node("new")])
        assert [ids(one.retrieve("text new")) for one in both] == [["new"], ["new"]]


def test_a_search_that_began_before_a_change_leaves_nothing_stale() -> None:
    class Slow(SimpleVectorStore):
        def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
            found = super().query(query, **kwargs)
            begun.set()
            assert go_on.wait(20)
            return found

    begun, go_on = threading.Event(), threading.Event()
    index = index_over(Slow())
    retriever = ApproximateCacheRetriever.from_index(index, k=1, rerank_factor=1)
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(retriever.retrieve, "text new")
        assert begun.wait(20)
        index.insert_nodes([node("new")])
        go_on.set()
        assert ids(before.result(20)) != ["new"]  # it began before, and may say so
    assert ids(retriever.retrieve("text new")) == ["new"]


class Locked(VectorIndexRetriever):
    """Searches when nobody changes the index, which is made of plain dicts."""

    lock = threading.RLock()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        with self.lock:
            return super()._retrieve(query_bundle)


class LockedIndex(VectorStoreIndex):
    def as_retriever(self, **kwargs: Any) -> BaseRetriever:
        with Locked.lock:
            return Locked(self, node_ids=list(self.index_struct.nodes_dict.values()), **kwargs)

    def insert_nodes(self, nodes: Sequence[BaseNode], **kwargs: Any) -> None:
        with Locked.lock:
            super().insert_nodes(nodes, **kwargs)

    def delete_nodes(self, node_ids: list[str], *args: Any, **kwargs: Any) -> None:
        with Locked.lock:
            super().delete_nodes(node_ids, *args, **kwargs)


def test_threads_that_change_and_ask() -> None:
    """A node is in the answers once its insertion returned, and gone once its deletion did."""
    index = LockedIndex(nodes(30), embed_model=Words())
    retriever = ApproximateCacheRetriever.from_index(index, k=1, tolerance=0)

    def write(owner: int) -> None:
        question = f"question of {owner}"
        (usual,) = ids(retriever.retrieve(question))
        for number in range(8):
            name = f"{owner} {number}"
            index.insert_nodes([node(name, question)])
            assert ids(retriever.retrieve(question)) == [name]
            index.delete_nodes([name], delete_from_docstore=True)
            assert ids(retriever.retrieve(question)) == [usual]

    def read(stop: threading.Event) -> int:
        asked = 0
        while not stop.is_set():
            for owner in range(3):
                retriever.retrieve(f"question of {owner}")
                asked += 1
        return asked

    stop = threading.Event()
    with ThreadPoolExecutor(5) as pool:
        readers = [pool.submit(read, stop) for _ in range(2)]
        writers = [pool.submit(write, owner) for owner in range(3)]
        try:
            for writer in writers:
                writer.result(60)
        finally:
            stop.set()
        assert all(reader.result(20) for reader in readers)
