"""What documents and explanations tell of an answer, in both frameworks."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from tests.retrievers.cached.langchain.stores import faiss_store, in_memory_store, queries_of
from tests.retrievers.cached.llama_index.indexes import faiss_index, words_of


def notes(found: list[Document] | list[NodeWithScore]) -> list[dict[str, Any]]:
    return [one.metadata["query_cache"] for one in found]


class TestMetadata:
    async def test_documents(self) -> None:
        store = faiss_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(
            store, k=2, tolerance=1, rerank_factor=50, annotate=True, guard=False
        )
        miss = notes(retriever.invoke("question"))
        assert miss == [{"hit": False, "distance": None, "recall_bound": None, "age": None}] * 2
        near = notes(await retriever.ainvoke("question~1"))
        assert near[0] == near[1]
        assert near[0]["hit"]
        assert 0 < near[0]["distance"] < 1
        assert 0 <= near[0]["recall_bound"] <= 1
        assert near[0]["age"] >= 0
        again = notes(retriever.invoke("question"))
        assert (again[0]["distance"], again[0]["recall_bound"]) == (0.0, 1.0)
        near[0]["hit"] = "changed"
        assert notes(retriever.invoke("question"))[0]["hit"] is True

    def test_nodes_and_what_a_model_reads_of_them(self) -> None:
        index = faiss_index()
        retriever = LlamaIndexRetriever.from_index(
            index, k=2, tolerance=1, annotate=True, guard=False
        )
        plain = index.as_retriever(similarity_top_k=2).retrieve("question")
        for question, hit in (("question", False), ("question", True), ("question~1", True)):
            found = retriever.retrieve(question)
            assert [note["hit"] for note in notes(found)] == [hit, hit]
            for mode in (MetadataMode.LLM, MetadataMode.EMBED):
                texts = {one.node_id: one.node.get_content(mode) for one in plain}
                for one in found:
                    content = one.node.get_content(mode)
                    assert "query_cache" not in content
                    assert texts.get(one.node_id, content) == content

    def test_nothing_is_added_where_nobody_asked(self) -> None:
        found = ApproximateCacheRetriever.from_vectorstore(faiss_store()).invoke("question")
        assert all("query_cache" not in one.metadata for one in found)


class TestScores:
    """Of scores within metadata, docs/stores.md says that a hit has those of the other question."""

    def test_of_documents(self) -> None:
        wrapped: Any = RunnableLambda(
            lambda text: [Document("page", id="1", metadata={"score": len(text), "stars": 5})]
        )
        retriever = ApproximateCacheRetriever.from_retriever(
            wrapped, in_memory_store().embeddings, tolerance=0.3, guard=False, annotate=True
        )
        first = retriever.invoke("question")[0].metadata
        again = retriever.invoke("question~1")[0].metadata
        assert again["query_cache"]["hit"]
        assert again["query_cache"]["distance"] > 0
        assert (again["score"], again["stars"]) == (first["score"], 5)
        exact = retriever.model_copy(update={"tolerance": 0})
        scores = [exact.invoke(text)[0].metadata["score"] for text in ("question", "question~1")]
        assert scores == [len("question"), len("question~1")]

    def test_of_nodes_that_are_ranked_again(self) -> None:
        index = faiss_index()
        retriever = LlamaIndexRetriever.from_index(index, k=2, tolerance=1, guard=False)
        retriever.retrieve("question")
        found = retriever.retrieve("question~1")
        plain = {each.node_id: each.score for each in index.as_retriever().retrieve("question~1")}
        assert retriever.stats().hits == 1
        known = [each for each in found if each.node_id in plain]
        assert known
        for each in known:
            assert each.score == pytest.approx(plain[each.node_id], rel=1e-4)


class TestExplain:
    async def test_a_question_that_hits_or_misses(self) -> None:
        store = in_memory_store()
        retriever = ApproximateCacheRetriever.from_vectorstore(store, tolerance=0.3, guard=False)
        first = retriever.explain("question")
        assert (first.hit, first.distance, first.entries) == (False, None, 0)
        retriever.invoke("question")
        near = await retriever.aexplain("question~1")
        assert near.hit
        assert near.distance is not None
        assert 0 < near.distance < 0.3
        far = retriever.explain("something else")
        assert not far.hit
        assert "beyond the tolerance of 0.3" in far.reason
        assert not retriever.explain("question", k=50).hit
        assert not (await retriever.aexplain("question", namespace="other")).hit
        assert not retriever.explain("question", filter=bool).hit
        stats = retriever.stats()
        assert (stats.requests, stats.store_calls) == (1, 1)
        assert stats.cache is not None
        assert stats.cache.lookups == 1
        # Each was embedded once in its namespace.
        assert sorted(queries_of(store)) == [*["question"] * 2, "question~1", "something else"]

    async def test_in_llama_index(self) -> None:
        index = faiss_index()
        retriever = LlamaIndexRetriever.from_index(index, tolerance=1, guard=False)
        retriever.retrieve("question")
        assert retriever.explain("question~1").hit
        assert (await retriever.aexplain(QueryBundle("question~1"))).hit
        assert not retriever.explain("something else").hit
        assert retriever.stats().requests == 1
        assert len(words_of(index).queries) == 3

    @pytest.mark.parametrize(
        ("asked", "then", "difference"),
        [
            ("the fee in 2023", "the fee in 2024", "numbers: 2024 / 2023"),
            ("is the fee due", "is the fee not due", "negations: not / none"),
            ("red car rental", "blue car rental", "words: blue / red"),
        ],
    )
    @pytest.mark.parametrize("llama", [False, True])
    async def test_what_the_guard_tells_apart(
        self, asked: str, then: str, difference: str, llama: bool
    ) -> None:
        retriever: Any = (
            LlamaIndexRetriever.from_index(faiss_index(), tolerance=30)
            if llama
            else ApproximateCacheRetriever.from_vectorstore(faiss_store(), tolerance=30)
        )
        ask = retriever.retrieve if llama else retriever.invoke
        ask(asked)
        for told in (retriever.explain(then), await retriever.aexplain(then)):
            assert not told.hit
            assert told.distance is not None
            assert f"but the guard finds that the questions differ in {difference}" in told.reason
        if not llama:
            assert "differ in" not in retriever.explain(then, namespace="other").reason

    async def test_an_entry_that_is_too_far_and_asks_for_something_else(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store(), tolerance=0.01)
        retriever.invoke("the fee in 2023")
        told = retriever.explain("the fee in 2024").reason
        assert "beyond the tolerance of 0.01, and the guard finds" in told

    async def test_texts_that_embeddings_do_not_tell_apart(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store(), tolerance=0)
        retriever.invoke("please show the fee")
        told = retriever.explain("show the fee")
        assert not told.hit
        assert "beyond the tolerance of 0" in told.reason
        assert "no entry" not in told.reason

    @pytest.mark.parametrize("part", ["configurable", "metadata"])
    async def test_whose_configuration_it_is(self, part: str) -> None:
        ann: Any = {part: {"user_id": "ann"}}
        bob: Any = {part: {"user_id": "bob"}}
        wrapped: Any = RunnableLambda(lambda text: [Document(text)])
        model = in_memory_store().embeddings
        retriever = ApproximateCacheRetriever.from_retriever(wrapped, model, tolerance=0.3)
        retriever.warm(["a question"], show_progress=False)
        assert retriever.explain("a question").hit
        retriever.invoke("a question")
        assert retriever.stats().store_calls == 1
        assert "serves" not in retriever.explain("question", ann).reason
        retriever.invoke("question", ann)
        assert retriever.explain("question", ann).hit
        assert (await retriever.aexplain("question", config=ann)).hit
        assert not retriever.explain("question").hit
        assert not (await retriever.aexplain("question", bob)).hit

    async def test_what_is_no_question(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store())
        with pytest.raises(ConfigurationError, match="must be a string, got None"):
            retriever.explain(None)  # type: ignore[arg-type]  # on purpose
        with pytest.raises(ConfigurationError, match="must be a string, got 3"):
            await retriever.aexplain(3)  # type: ignore[arg-type]  # on purpose
