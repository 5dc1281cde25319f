"""The query cache in front of a staged retriever, in both frameworks."""

from __future__ import annotations

import threading
from contextlib import aclosing
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from langchain_core.documents import Document
from llama_index.core.schema import TextNode

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever
from ragcache_integrations.retrievers.staged.llama_index import (
    StagedFaissRetriever as LlamaIndexStagedRetriever,
)
from ragcache_integrations.vector_search import StagePlan
from tests.retrievers.cached.langchain.stores import Words, queries_of
from tests.retrievers.cached.langchain.test_callbacks import Events
from tests.retrievers.cached.llama_index.indexes import faiss_index as plain_llama_index
from tests.retrievers.cached.llama_index.indexes import ids

from .stores import documents, faiss_store, llama_index, staged_index
from .test_langchain import aread, check_order, read


def over(store: Any, k: int = 5, **knobs: Any) -> ApproximateCacheRetriever:
    staged = StagedFaissRetriever.from_vectorstore(store, k=k)
    return ApproximateCacheRetriever.from_retriever(staged, **knobs, guard=False)


def check_sums(retriever: Any) -> None:
    stats = retriever.stats()
    assert stats.requests == stats.hits + stats.misses + stats.shared + stats.failures


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
class TestLangChain:
    async def test_a_miss_has_the_search_s_stages_and_a_hit_one(self, kind: str) -> None:
        store = faiss_store(kind)
        retriever = over(store)
        expected = store.similarity_search("question", k=5)
        stages = read(retriever.stages("question"))
        check_order(stages, 5)
        assert (len(stages) > 1) == (kind != "flat")
        assert list(stages[-1].documents) == expected
        assert [stage.trace is not None for stage in stages] == [stage.final for stage in stages]
        for found in (
            read(retriever.stages("question")),
            await aread(retriever.astages("question")),
        ):
            (only,) = found
            assert list(only.documents) == expected
            assert (only.number, only.final) == (1, True)
            assert only.trace is not None
            assert only.trace.hit
        assert retriever.invoke("question") == expected
        stages = await aread(retriever.astages("other"))
        check_order(stages, 5)
        assert list(stages[-1].documents) == store.similarity_search("other", k=5)
        assert (retriever.stats().hits, retriever.stats().misses) == (3, 2)
        assert retriever.stats().store_calls == 2
        check_sums(retriever)
        assert queries_of(store).count("question") == 2  # once by the cache, once by the test

    def test_a_search_that_the_collector_ends_is_counted(self, kind: str) -> None:
        if kind == "flat":
            return  # its only stage is final
        retriever = over(faiss_store(kind))
        given_up = [retriever.stages("question")]
        assert not next(given_up[0]).final

        class Collecting(dict[str, float]):
            """Sums in whose midst the collector runs, once."""

            def __setitem__(self, name: str, value: float) -> None:
                super().__setitem__(name, value)
                if given_up:
                    given_up.pop().close()

        tally = retriever._core._tally
        tally._sums = Collecting(tally._sums)
        asking = threading.Thread(target=retriever.invoke, args=("other",), daemon=True)
        asking.start()
        asking.join(30)
        assert not asking.is_alive()
        assert (retriever.stats().misses, retriever.stats().failures) == (1, 1)
        check_sums(retriever)

    async def test_a_search_that_is_given_up_caches_nothing(self, kind: str) -> None:
        if kind == "flat":
            return  # its only stage is final
        retriever = over(faiss_store(kind))
        stages = retriever.stages("question")
        assert not next(stages).final
        stages.close()
        async with aclosing(retriever.astages("question")) as astages:
            assert not (await anext(astages)).final
        stats = retriever.stats()
        assert (stats.misses, stats.failures, stats.store_calls) == (0, 2, 2)
        assert stats.cache is not None
        assert stats.cache.entries == 0
        assert len(read(retriever.stages("question"))) > 1

    def test_whoever_reads_no_further_than_the_final_stage_has_missed_and_not_failed(
        self, kind: str
    ) -> None:
        retriever = over(faiss_store(kind))
        for stage in retriever.stages("question"):
            if stage.final:
                break
        assert (retriever.stats().misses, retriever.stats().failures) == (1, 0)
        assert len(read(retriever.stages("question"))) == 1

    def test_only_final_documents_are_in_the_cache(self, kind: str) -> None:
        """A provisional document that got in would be served to a question near by."""
        store = faiss_store(kind)
        retriever = over(store, tolerance=0.4, rerank_factor=2)
        for number in range(8):
            final = {one.id for one in store.similarity_search(f"question {number}", k=10)}
            read(retriever.stages(f"question {number}"))
            near = retriever.invoke(f"question {number}~x")
            assert {one.id for one in near} <= final
        assert retriever.stats().hits == 8

    def test_hits_are_re_ranked(self, kind: str) -> None:
        store = faiss_store(kind)
        retriever = over(store, tolerance=0.4, rerank_factor=60)
        read(retriever.stages("question"))
        if kind == "flat":  # the others do not find all there is
            for number in range(5):
                expected = store.similarity_search(f"question~{number}", k=5)
                assert retriever.invoke(f"question~{number}") == expected
        (only,) = read(retriever.stages("question~x"))
        assert only.trace is not None
        assert only.trace.reranked

    def test_proofs_go_where_the_search_is_exact(self, kind: str) -> None:
        store = faiss_store(kind)
        if kind != "flat":
            with pytest.raises(ConfigurationError, match="leaves vectors out"):
                over(store, guarantee="exact")
            return
        retriever = over(store, guarantee="exact", tolerance=2, rerank_factor=40)
        plain = StagedFaissRetriever.from_vectorstore(store, k=5)
        for number in range(20):
            read(retriever.stages(f"question {number}"))
            assert retriever.invoke(f"question {number}~x") == plain.invoke(f"question {number}~x")
        assert retriever.stats().hits > 0

    def test_changes_of_the_store_are_followed(self, kind: str) -> None:
        store = faiss_store(kind)
        retriever = over(store, tolerance=0.4)
        read(retriever.stages("question"))
        read(retriever.stages("elsewhere"))
        store.add_texts(["question"], ids=["new"])
        assert retriever.invoke("question")[0].id == "new"
        assert retriever.invoke("question") == store.similarity_search("question", k=5)

    def test_changes_of_an_index_of_ours_are_followed(self, kind: str) -> None:
        index, known = staged_index(kind), documents()
        staged = StagedFaissRetriever.from_index(index, known, Words(), k=5)
        retriever = ApproximateCacheRetriever.from_retriever(staged)
        before = retriever.invoke("question")
        read(retriever.stages("elsewhere"))
        known["new"] = Document("question", id="new")
        index.add(["new"], [Words().embed_query("question")])
        assert [one.id for one in retriever.invoke("question")] == [
            "new",
            *(one.id for one in before[:4]),
        ]
        index.delete(["new"])
        assert retriever.invoke("question") == before
        assert retriever.invoke("question") == staged.invoke("question")

    async def test_filters_are_kept_apart_and_exact(self, kind: str) -> None:
        retriever = over(faiss_store(kind))
        for half in (0, 1, 0):
            found = retriever.invoke("question", filter={"half": half})
            assert {one.metadata["half"] for one in found} == {half}
            (*_, last) = await aread(retriever.astages("question", filter={"half": half}))
            assert list(last.documents) == found
        assert retriever.stats().misses == 2

    async def test_nothing_blocks_the_event_loop(self, kind: str) -> None:
        retriever = over(faiss_store(kind))
        with blockbuster_ctx(scanned_modules=["ragcache_integrations"]):
            for _ in range(2):
                assert (await aread(retriever.astages("question")))[-1].final


def test_k_is_the_staged_retriever_s_unless_the_cache_says() -> None:
    store = faiss_store("ivf")
    assert len(over(store, k=7).invoke("question")) == 7
    staged = StagedFaissRetriever.from_vectorstore(store, k=7)
    retriever = ApproximateCacheRetriever.from_retriever(staged, k=2)
    assert len(retriever.invoke("question")) == 2
    (*_, last) = read(retriever.stages("other", k=3))
    assert len(last.documents) == 3


def test_the_wrapped_retriever_s_plan_decides() -> None:
    plan = StagePlan(number=3)
    staged = StagedFaissRetriever.from_vectorstore(faiss_store("ivf"), plan=plan)
    retriever = ApproximateCacheRetriever.from_retriever(staged)
    assert len(read(retriever.stages("question", interval=1e-9))) == 3


async def test_any_other_retriever_has_one_stage() -> None:
    store = faiss_store("flat")
    for retriever in (
        ApproximateCacheRetriever.from_vectorstore(store),
        ApproximateCacheRetriever.from_retriever(store.as_retriever(search_type="mmr")),
    ):
        for hit in (False, True):
            (only,) = read(retriever.stages("question"))
            assert only.trace is not None
            assert (only.final, only.trace.hit) == (True, hit)
            (again,) = await aread(retriever.astages("question"))
            assert again.documents == only.documents


async def test_events_and_traces_see_stages_as_any_call() -> None:
    retriever = over(faiss_store("ivf"))
    events = Events()
    config: Any = {"callbacks": [events]}
    read(retriever.stages("question", config))
    await aread(retriever.astages("question", config))
    assert [data["hit"] for _, data, _ in events.custom] == [False, True]
    assert [run for *_, run in events.custom] == [start[1] for start in events.starts]


class TestLlamaIndex:
    @pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw", "map"])
    async def test_a_miss_has_the_search_s_stages_and_a_hit_one(self, kind: str) -> None:
        index = llama_index(kind)
        staged = LlamaIndexStagedRetriever.from_index(index, k=4)
        retriever = LlamaIndexRetriever.from_retriever(staged, tolerance=0.4, guard=False)
        expected = ids(index.as_retriever(similarity_top_k=4).retrieve("question"))
        stages = read(retriever.stages("question"))
        assert (len(stages) > 1) == (kind != "flat")
        assert ids(list(stages[-1].documents)) == expected
        (only,) = await aread(retriever.astages("question"))
        assert ids(list(only.documents)) == expected == ids(retriever.retrieve("question"))
        stages = await aread(retriever.astages("other"))
        assert ids(list(stages[-1].documents)) == ids(staged.retrieve("other"))
        (near,) = read(retriever.stages("question~x"))
        assert near.trace is not None
        assert near.trace.reranked
        assert (retriever.stats().misses, retriever.stats().hits) == (2, 3)
        check_sums(retriever)

    @pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw", "flat map"])
    def test_changes_are_followed(self, kind: str) -> None:
        index = llama_index(kind)
        staged = LlamaIndexStagedRetriever.from_index(index, k=4)
        retriever = LlamaIndexRetriever.from_retriever(staged)
        read(retriever.stages("question"))
        index.insert_nodes([TextNode(id_="new", text="question")])
        assert ids(retriever.retrieve("question"))[0] == "new"
        if kind == "flat map":
            index.delete_nodes(["new"])
            assert "new" not in ids(retriever.retrieve("question"))

    def test_proofs_go_where_the_search_is_exact(self) -> None:
        staged = LlamaIndexStagedRetriever.from_index(llama_index("flat"), k=4)
        LlamaIndexRetriever.from_retriever(staged, guarantee="exact")
        staged = LlamaIndexStagedRetriever.from_index(llama_index("hnsw"), k=4)
        with pytest.raises(ConfigurationError, match="leaves vectors out"):
            LlamaIndexRetriever.from_retriever(staged, guarantee="exact")

    async def test_any_other_retriever_has_one_stage(self) -> None:
        retriever = LlamaIndexRetriever.from_index(plain_llama_index("simple"))
        for hit in (False, True):
            (only,) = read(retriever.stages("question"))
            assert only.trace is not None
            assert (only.final, only.trace.hit) == (True, hit)
        (again,) = await aread(retriever.astages("question"))
        assert again.documents == only.documents
