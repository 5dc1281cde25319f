"""Retrievers that are saved and loaded, in both frameworks."""

from __future__ import annotations

from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import faiss
import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.schema import ImageNode, IndexNode, NodeWithScore, TextNode

from ragcache_integrations.errors import CacheFileError, ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.retriever import (
    ApproximateCacheRetriever,
    decode_document,
    encode_document,
)
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from ragcache_integrations.retrievers.cached.llama_index.retriever import decode_node, encode_node
from tests.retrievers.cached.langchain.stores import (
    DIM,
    STORES,
    Words,
    faiss_store,
    in_memory_store,
)
from tests.retrievers.cached.llama_index.indexes import Words as LlamaIndexWords
from tests.retrievers.cached.llama_index.indexes import faiss_index, ids


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.npz"


class TestLangChain:
    @pytest.mark.parametrize("name", STORES)
    def test_answers_are_as_before(self, name: str, path: Path) -> None:
        first = ApproximateCacheRetriever.from_vectorstore(
            STORES[name](), k=3, tolerance=1, guard=False
        )
        questions = [f"question {number}" for number in range(5)]
        for question in questions:
            first.invoke(question)
        first.invoke("question", namespace="other")
        first.save(path)
        again = ApproximateCacheRetriever.from_vectorstore(
            STORES[name](), k=3, tolerance=1, guard=False
        )
        assert again.load(path) == 6
        for question in questions:
            assert again.invoke(question) == first.invoke(question)
            assert again.invoke(f"{question}~1") == first.invoke(f"{question}~1")
        assert again.invoke("question", namespace="other")
        assert again.stats().store_calls == 0

    async def test_with_coroutines(self, path: Path) -> None:
        first = ApproximateCacheRetriever.from_vectorstore(in_memory_store())
        expected = await first.ainvoke("question")
        await first.asave(path, store_tag="v1")
        again = ApproximateCacheRetriever.from_vectorstore(in_memory_store())
        assert await again.aload(path, store_tag="v1") == 1
        assert await again.ainvoke("question") == expected
        assert again.stats().store_calls == 0

    def test_a_source_that_does_not_tell_its_dimension(self, path: Path) -> None:
        plain = faiss_store().as_retriever(search_type="mmr")
        first = ApproximateCacheRetriever.from_retriever(plain)
        expected = first.invoke("question")
        first.save(path)
        again = ApproximateCacheRetriever.from_retriever(plain)
        assert again.load(path) == 1
        assert again.invoke("question") == expected
        assert again.stats().store_calls == 0

    def test_what_was_saved_for_others_is_refused(self, path: Path) -> None:
        first = ApproximateCacheRetriever.from_vectorstore(faiss_store())
        first.invoke("question")
        first.save(path, store_tag="v1")
        others = [
            ApproximateCacheRetriever.from_vectorstore(faiss_store(), tag="another model"),
            ApproximateCacheRetriever.from_vectorstore(in_memory_store()),
            ApproximateCacheRetriever.from_vectorstore(faiss_store()),  # of another version
        ]
        for other in others:
            with pytest.raises(CacheFileError):
                other.load(path)
            assert other.invoke("question")
            assert other.stats().misses == 1

    def test_damaged_and_missing_files(self, path: Path) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store())
        with pytest.raises(FileNotFoundError):
            retriever.load(path)
        path.write_bytes(b"nonsense")
        with pytest.raises(CacheFileError):
            retriever.load(path)

    def test_before_the_first_question_there_is_nothing(self, path: Path) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store())
        with pytest.raises(ConfigurationError, match="nothing to save"):
            retriever.save(path)

    def test_changes_are_followed_after_a_load(self, path: Path) -> None:
        first = ApproximateCacheRetriever.from_vectorstore(faiss_store(), k=1)
        first.invoke("text 7")
        first.save(path)
        store = faiss_store()
        again = ApproximateCacheRetriever.from_vectorstore(store, k=1)
        again.load(path)
        store.delete(["id 7"])
        assert again.invoke("text 7")[0].id != "id 7"

    def test_loaded_documents_without_ids_end_with_the_next_change(self, path: Path) -> None:
        def search(_: str) -> list[Document]:
            return [Document("one")]

        def retriever() -> ApproximateCacheRetriever:
            return ApproximateCacheRetriever.from_retriever(RunnableLambda(search), Words())

        first, again, store = retriever(), retriever(), in_memory_store()
        first.invoke("question")
        first.save(path)
        again.attach(store)
        again.load(path)
        again.invoke("question")
        assert again.stats().hits == 1
        store.delete(["id 7"])
        again.invoke("question")
        assert again.stats().misses == 1

    def test_documents_that_json_cannot_hold(self, path: Path) -> None:
        class Special(Document):
            pass

        plain = Document("text", id="id", metadata={"a": [1, 2.5, None, "ä"], "b": {"c": True}})
        assert decode_document(encode_document(plain)) == plain
        bad: list[Document] = [
            Document("text", metadata={"what": [object()]}),
            Special(page_content="text"),
        ]
        for document in bad:
            with pytest.raises(ConfigurationError, match=r"cannot be saved|can be saved"):
                encode_document(document)
        store = FAISS(Words(), faiss.IndexFlatL2(DIM), InMemoryDocstore(), {})
        store.add_documents(bad[:1], ids=["bad"])
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        retriever.invoke("question")
        with pytest.raises(ConfigurationError, match=r"metadata\['what'\]\[0\] cannot be saved"):
            retriever.save(path)
        assert not path.exists()

    def test_a_filter_that_cannot_be_written(self, path: Path) -> None:
        Local = make_dataclass("Local", ["low"])  # noqa: N806 - a class that no module has

        class Lenient(InMemoryVectorStore):
            def similarity_search_by_vector(
                self, embedding: list[float], k: int = 4, **_: Any
            ) -> list[Document]:
                return super().similarity_search_by_vector(embedding, k)

        store = Lenient.from_texts(["text"], Words())
        retriever = ApproximateCacheRetriever.from_vectorstore(store)
        retriever.invoke("question", filter=Local(1))
        with pytest.raises(ConfigurationError):
            retriever.save(path)


class TestLlamaIndex:
    @pytest.mark.parametrize("kind", ["l2", "ip", "map", "simple"])
    def test_answers_are_as_before(self, kind: str, path: Path) -> None:
        index = faiss_index(kind)
        first = LlamaIndexRetriever.from_index(index, k=3, tolerance=1, guard=False)
        questions = [f"question {number}" for number in range(5)]
        for question in questions:
            first.retrieve(question)
        first.save(path)
        again = LlamaIndexRetriever.from_index(index, k=3, tolerance=1, guard=False)
        assert again.load(path) == 5
        for question in questions:
            assert again.retrieve(question) == first.retrieve(question)
            assert ids(again.retrieve(f"{question}~1")) == ids(first.retrieve(f"{question}~1"))
        assert again.stats().store_calls == 0

    async def test_with_coroutines(self, path: Path) -> None:
        index = faiss_index()
        first = LlamaIndexRetriever.from_index(index)
        expected = await first.aretrieve("question")
        await first.asave(path)
        again = LlamaIndexRetriever.from_index(index)
        assert await again.aload(path) == 1
        assert await again.aretrieve("question") == expected
        assert again.stats().store_calls == 0

    def test_nodes_of_every_kind(self) -> None:
        for node in (
            TextNode(id_="a", text="text", metadata={"a": [1, None]}, embedding=[1.0, 2.0]),
            IndexNode(id_="b", text="text", index_id="index"),
            ImageNode(id_="c", text="text", image_url="https://example.org/a.png"),
        ):
            for score in (None, 0.5):
                found = NodeWithScore(node=node, score=score)
                back = decode_node(encode_node(found))
                assert back == found
                assert type(back.node) is type(node)

    def test_nodes_that_json_cannot_hold(self) -> None:
        class Own(TextNode):
            pass

        bad: list[Any] = [
            TextNode(text="text", metadata={"what": object}),
            IndexNode(text="text", index_id="index", obj=VectorStoreIndex([], embed_model=WORDS)),
            Own(text="text"),
        ]
        for node in bad:
            with pytest.raises(ConfigurationError, match="cannot be saved"):
                encode_node(NodeWithScore(node=node))


WORDS = LlamaIndexWords()
