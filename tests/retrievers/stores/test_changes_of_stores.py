"""Watching objects: the frameworks' own stores."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import faiss
import pytest
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import Document as LlamaDocument
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.vector_stores.faiss import FaissMapVectorStore

from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.langchain.stores import methods_of
from ragcache_integrations.retrievers.cached.llama_index.requests import INDEX_METHODS
from ragcache_integrations.retrievers.cached.llama_index.requests import (
    methods_of as index_methods_of,
)
from ragcache_integrations.retrievers.stores.changes import (
    watch,
)
from tests.retrievers.cached.langchain.stores import Words as LangChainWords
from tests.retrievers.cached.langchain.stores import faiss_store, in_memory_store
from tests.retrievers.cached.llama_index.indexes import faiss_index, index_over

from .listening import Ear, removed, updated


def pickled(one: Any) -> Any:
    return pickle.loads(pickle.dumps(one))


class TestLangChain:
    @pytest.mark.parametrize("make", [faiss_store, in_memory_store])
    async def test_additions_and_deletions(self, make: Callable[[], Any]) -> None:
        store, ear = make(), Ear()
        watch(store, methods_of(store), ear)
        assert store.add_texts(["new"], ids=["new"]) == ["new"]
        assert ear.take() == updated("new")
        (made,) = await store.aadd_texts(["newer"])
        assert ear.take() == updated(made)
        store.delete(["id 1", "new"])
        assert ear.take() == removed("id 1", "new")
        await store.adelete([made])
        assert ear.take() == removed(made)

    def test_embeddings_and_whole_stores_added_to_faiss(self) -> None:
        store, other, ear = faiss_store(), faiss_store(), Ear()
        watch(store, methods_of(store), ear)
        store.add_embeddings([("new", [1.0] * 16)], ids=["new"])
        assert ear.take() == updated("new")
        other.index_to_docstore_id = {
            number: f"other {number}" for number in other.index_to_docstore_id
        }
        other.docstore.add(
            {f"other {number}": other.docstore.search(f"id {number}") for number in range(300)}
        )
        store.merge_from(other)
        assert ear.take().unknown

    def test_a_deletion_that_fails(self) -> None:
        store, ear = faiss_store(), Ear()
        watch(store, methods_of(store), ear)
        with pytest.raises(ValueError, match="do not exist"):
            store.delete(["nobody"])
        assert ear.take().unknown

    def test_a_deletion_by_other_words(self) -> None:
        class Database(InMemoryVectorStore):
            def delete(self, ids: Any = None, where: Any = None, **kwargs: Any) -> None:
                super().delete(ids)

        store, ear = Database(LangChainWords()), Ear()
        watch(store, methods_of(store), ear)
        store.delete()
        assert ear.take().unknown
        store.delete(["id"], where={"a": 1})
        assert ear.take().unknown
        store.delete(ids=["id"], where=None)
        assert ear.take() == removed("id")

    def test_pickles_and_copies(self) -> None:
        store, ear = in_memory_store(), Ear()
        watch(store, methods_of(store), ear)
        for twin in (pickled(store), copy.copy(store), copy.deepcopy(store)):
            assert type(twin) is InMemoryVectorStore
            assert twin.similarity_search("text 1", 1)[0].id == "id 1"
        loaded = faiss_store()
        watch(loaded, methods_of(loaded), ear)
        assert loaded.serialize_to_bytes()

    @pytest.mark.parametrize("make", [faiss_store, in_memory_store])
    def test_look_ups_by_the_exact_class(self, make: Callable[[], Any]) -> None:
        store, kind = make(), type(make())
        ear = Ear()
        watch(store, methods_of(store), ear)
        assert store.__class__ is type(store) is kind
        assert {FAISS: "faiss", InMemoryVectorStore: "memory"}[store.__class__]
        assert type(store.as_retriever().vectorstore) is kind

    def test_langchain_s_indexing_of_a_wrapped_store(self) -> None:
        store = in_memory_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        retriever.invoke("question")
        records = InMemoryRecordManager("records")
        records.create_schema()
        done = index([Document("question", id="1")], records, store, key_encoder="sha256")
        assert done["num_added"] == 1
        assert retriever.invoke("question")[0].page_content == "question"
        assert {InMemoryVectorStore: "memory"}[type(store)] == "memory"


class TestLlamaIndex:
    @pytest.mark.parametrize("kind", ["simple", "map"])
    async def test_nodes_through_the_index(self, kind: str) -> None:
        index, ear = faiss_index(kind), Ear()
        watch(index, INDEX_METHODS, ear)
        watch(index.vector_store, index_methods_of(index.vector_store), ear)
        index.insert_nodes([TextNode(id_="new", text="new")])
        assert ear.take() == updated("new")
        await index.ainsert_nodes([TextNode(id_="newer", text="newer")])
        assert ear.take() == updated("newer")
        index.delete_nodes(["new"], delete_from_docstore=True)
        assert ear.heard
        assert all(one == removed("new") for one in ear.heard)
        ear.heard.clear()
        await index.adelete_nodes(["newer", "node 1"])
        assert ear.take() == removed("newer", "node 1")

    def test_documents_through_the_index(self) -> None:
        index, ear = index_over(), Ear()
        watch(index, INDEX_METHODS, ear)
        watch(index.vector_store, index_methods_of(index.vector_store), ear)
        document = LlamaDocument(text="a document", id_="document")
        index.insert(document)
        (made,) = ear.take().updated
        assert index.refresh_ref_docs([document]) == [False]
        assert ear.heard == []
        other = LlamaDocument(text="another text", id_="document")
        assert index.refresh_ref_docs([other]) == [True]
        changes = [one for one in ear.heard if one.updated]
        assert [change.removed for change in changes] == [{made}]
        assert not any(one.unknown for one in ear.heard)
        ear.heard.clear()
        index.delete_ref_doc("document", delete_from_docstore=True)
        assert all(one.removed == changes[0].updated for one in ear.heard)

    def test_nodes_through_the_store(self) -> None:
        store, ear = SimpleVectorStore(), Ear()
        watch(store, index_methods_of(store), ear)
        nodes = [TextNode(id_=name, text=name, embedding=[1.0, 2.0]) for name in "abc"]
        store.add(nodes)
        assert ear.take() == updated("a", "b", "c")
        store.add(iter([nodes[0]]))  # type: ignore[arg-type]  # the point: it is used up
        assert ear.take().unknown
        store.delete_nodes(["a"])
        assert ear.take() == removed("a")
        store.delete("None")  # what the store notes for nodes without a document
        assert ear.take() == removed("b", "c")
        store.add(nodes)
        ear.heard.clear()
        store.clear()
        assert ear.take() == removed("a", "b", "c")

    def test_a_deletion_of_which_the_store_does_not_tell_the_nodes(self) -> None:
        index, ear = faiss_index(), Ear()
        watch(index.vector_store, index_methods_of(index.vector_store), ear)
        with pytest.raises(NotImplementedError):
            index.delete_ref_doc("document")
        assert ear.take().unknown

    def test_pickles_and_copies(self) -> None:
        store, ear = SimpleVectorStore(), Ear()
        watch(store, index_methods_of(store), ear)
        store.add([TextNode(id_="a", text="a", embedding=[1.0, 2.0])])
        ear.heard.clear()
        assert type(pickled(store)) is SimpleVectorStore
        assert pickled(store).data == store.data
        for twin in (store.model_copy(deep=True), copy.deepcopy(store)):
            twin.add([TextNode(id_="b", text="b", embedding=[1.0, 2.0])])
        assert ear.heard == []
        assert store.to_dict() == SimpleVectorStore(store.data).to_dict()
        assert store.model_dump() == SimpleVectorStore(store.data).model_dump()

    def test_it_stays_what_it_is(self) -> None:
        index, ear = faiss_index("map"), Ear()
        watch(index, INDEX_METHODS, ear)
        watch(index.vector_store, index_methods_of(index.vector_store), ear)
        assert type(index) is VectorStoreIndex
        assert type(index.vector_store) is FaissMapVectorStore
        assert isinstance(index.vector_store.client, faiss.IndexIDMap2)
        assert len(index.as_retriever().retrieve("text 1")) == 2
