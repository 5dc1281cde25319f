"""Retrievers of both frameworks that share a cache in a real redis-server."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import pytest
import redis
from blockbuster import blockbuster_ctx
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.schema import TextNode

from ragcache_integrations.errors import ConfigurationError, MissingExtraError
from ragcache_integrations.query_cache.redis.cache import RedisServer, SharedCacheStats
from ragcache_integrations.retrievers.cached import lazy_cache
from ragcache_integrations.retrievers.cached.knobs import read_knobs
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from ragcache_integrations.retrievers.staged.langchain import StagedFaissRetriever
from ragcache_integrations.retrievers.staged.llama_index import (
    StagedFaissRetriever as StagedLlamaIndexRetriever,
)
from tests.query_cache.redis.servers import RealRedis, free_port, patient, redis_server
from tests.retrievers.cached.langchain.stores import (
    DIM,
    STORES,
    TEXTS,
    Words,
    faiss_store,
    in_memory_store,
)
from tests.retrievers.cached.llama_index.indexes import faiss_index, ids, scores


@pytest.fixture(scope="module")
def real() -> Iterator[RealRedis]:
    with redis_server() as server:
        yield server


@pytest.fixture
def knobs(real: RealRedis) -> Any:
    """What makes two retrievers share, apart from all other tests."""
    return {
        "cache": patient(real.url), "tag": uuid.uuid4().hex, "tolerance": 0.6,
        "num_hyperplanes": 2, "multi_probe": 2,
    }  # fmt: skip


def cache_stats(retriever: Any) -> SharedCacheStats:
    found = retriever.stats().cache
    assert isinstance(found, SharedCacheStats)
    return found


def test_what_the_guard_reads_is_part_of_what_is_shared(knobs: Any) -> None:
    one, other = (
        ApproximateCacheRetriever.from_vectorstore(faiss_store(), guard=True, **knobs)
        for _ in range(2)
    )
    one.invoke("text~1")
    other.invoke("text~2")
    one.invoke("text~one")
    other.invoke("text~one?")
    assert (one.stats().hits, other.stats().hits) == (0, 1)


class TestForgettingAPart:
    """What one process forgets, another does not answer any more."""

    @pytest.fixture
    def two(self, knobs: Any) -> Any:
        knobs |= {"tolerance": 0.0, "rerank_factor": 1, "k": 3}
        return [
            ApproximateCacheRetriever.from_vectorstore(faiss_store(), **knobs, guard=False)
            for _ in range(2)
        ]

    @staticmethod
    def hits(retriever: Any, question: str = "question", **arguments: Any) -> bool:
        """Whether a question hits; it does so from then on."""
        before = retriever.stats().hits
        retriever.invoke(question, **arguments)
        return bool(retriever.stats().hits > before)

    def test_a_namespace(self, two: Any) -> None:
        for name in ("ann", "bob"):
            assert not self.hits(two[0], namespace=name)
            assert self.hits(two[1], namespace=name)
        two[0].clear(namespace="ann")
        assert not self.hits(two[1], namespace="ann")
        assert self.hits(two[1], namespace="bob")
        assert self.hits(two[0], namespace="ann")

    def test_a_filter(self, two: Any) -> None:
        for half in (0, 1):
            assert not self.hits(two[0], filter={"half": half})
        two[0].clear(filter={"half": 0}, namespace="another")
        two[0].clear(filter={"half": 0})
        assert not self.hits(two[1], filter={"half": 0})
        assert self.hits(two[1], filter={"half": 1})
        assert self.hits(two[0], filter={"half": 0})

    async def test_documents(self, two: Any) -> None:
        for question in ("text 1", "text 22"):
            assert not self.hits(two[0], question)
        await two[0].aclear(ids=["id 1"])
        assert not self.hits(two[1], "text 1")
        assert self.hits(two[1], "text 22")

    def test_what_is_old(self, two: Any) -> None:
        assert not self.hits(two[0])
        two[0].clear(older_than=3600)
        assert self.hits(two[1])
        time.sleep(0.01)
        two[0].clear(older_than=0.001)
        assert not self.hits(two[1])
        assert self.hits(two[0])

    def test_another_version(self, two: Any) -> None:
        assert not self.hits(two[0])
        two[0].clear(version=1)
        assert not self.hits(two[1])
        two[0].clear(version=1)
        assert self.hits(two[0])

    def test_by_a_process_that_has_asked_nothing(self, two: Any) -> None:
        assert not self.hits(two[0], namespace="ann")
        two[1].clear(namespace="ann")
        assert not self.hits(two[0], namespace="ann")

    def test_a_search_under_way(self, two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        core = two[0]._core
        remember = core._remember

        def forget_meanwhile(*arguments: Any) -> Any:
            two[1].clear(namespace="ann")
            return remember(*arguments)

        assert not self.hits(two[0], "before", namespace="ann")
        with monkeypatch.context() as patch:
            patch.setattr(core, "_remember", forget_meanwhile)
            assert not self.hits(two[0], namespace="ann")
        assert not self.hits(two[1], namespace="ann")

    def test_no_name_is_in_redis(self, two: Any, real: RealRedis) -> None:
        two[0].invoke("question", namespace="secretname")
        two[0].clear(namespace="secretname")
        client = redis.Redis.from_url(real.url)
        kept = [client.lrange(name, 0, -1) for name in client.keys("*:changes")]
        client.close()
        assert any(kept)
        assert "secretname" not in str(kept)


class TestForgettingAQuestion:
    """A question that one process forgets, in either framework, is searched for by all."""

    @pytest.fixture(params=["langchain", "llama_index"])
    def two(self, request: Any, knobs: Any) -> Any:
        if request.param == "langchain":
            make = ApproximateCacheRetriever.from_vectorstore
            retrievers = [make(faiss_store(), guard=False, **knobs) for _ in range(2)]
            return [(retriever, retriever.invoke) for retriever in retrievers]
        indexes = [
            LlamaIndexRetriever.from_index(faiss_index(), **knobs, guard=False) for _ in range(2)
        ]
        return [(retriever, retriever.retrieve) for retriever in indexes]

    def test_what_is_like_it_goes(self, two: Any) -> None:
        (one, ask_one), (other, ask_other) = two
        for question in ("question", "another one"):
            ask_one(question)
        assert other.forget("question~1") == 1
        assert other.forget("question~1") == 0
        ask_one("question")
        ask_one("another one")
        assert (one.stats().misses, one.stats().hits) == (3, 1)
        ask_other("question")
        assert other.stats().hits == 1

    async def test_coroutines_block_nothing(self, two: Any) -> None:
        (one, ask_one), (other, _) = two
        await asyncio.to_thread(ask_one, "question")
        with blockbuster_ctx("ragcache_integrations"):
            assert await other.aforget("question") == 1
            assert await one.aforget("question") == 0

    def test_a_search_under_way(self, two: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        (one, ask_one), (other, ask_other) = two
        core = one._core
        remember = core._remember

        def forget_meanwhile(*arguments: Any) -> Any:
            other.forget("question")
            return remember(*arguments)

        ask_one("before")
        with monkeypatch.context() as patch:
            patch.setattr(core, "_remember", forget_meanwhile)
            ask_one("question")
        ask_other("question")
        assert other.stats().hits == 0


class TestLangChain:
    @pytest.mark.parametrize("name", STORES)
    def test_one_asks_for_all(self, name: str, knobs: Any) -> None:
        one, other = (
            ApproximateCacheRetriever.from_vectorstore(STORES[name](), k=4, **knobs, guard=False)
            for _ in range(2)
        )
        plain = STORES[name]().as_retriever(search_kwargs={"k": 4})
        for number in range(5):
            question = f"question {number}"
            assert one.invoke(question) == other.invoke(question) == plain.invoke(question)
            near = {one.id for one in other.invoke(f"{question}~1")}
            assert len(near & {one.id for one in plain.invoke(f"{question}~1")}) >= 3
        assert one.stats().store_calls == 5
        assert other.stats().store_calls == 0
        assert other.stats().hits == 10
        assert cache_stats(other).failed == 0

    async def test_coroutines_share_and_block_nothing(self, knobs: Any) -> None:
        one, other = (
            ApproximateCacheRetriever.from_vectorstore(in_memory_store(), **knobs, guard=False)
            for _ in range(2)
        )
        expected = await one.ainvoke("question")
        await other.ainvoke("another")
        with blockbuster_ctx():
            assert await other.ainvoke("question") == expected
            assert (await other.aexplain("question")).hit
            await asyncio.gather(*(other.ainvoke(f"question~{number}") for number in range(20)))
        assert other.stats().hits == 21
        assert other.stats().failures == 0

    def test_threads_share(self, knobs: Any) -> None:
        retrievers = [
            ApproximateCacheRetriever.from_vectorstore(faiss_store(), k=3, **knobs)
            for _ in range(2)
        ]
        plain = faiss_store().as_retriever(search_kwargs={"k": 3})
        wanted = {f"question {n}": plain.invoke(f"question {n}") for n in range(8)}

        def ask(number: int) -> bool:
            question = f"question {number % 8}"
            return bool(retrievers[number % 2].invoke(question) == wanted[question])

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(ask, range(200)))
        asked = [retriever.stats() for retriever in retrievers]
        assert sum(one.requests for one in asked) == 200
        for one in asked:
            assert one.hits + one.misses + one.shared == one.requests
        assert sum(one.store_calls for one in asked) < 100

    @pytest.mark.parametrize("method", ["add_texts", "add_documents", "delete", "later"])
    def test_changes_through_one_reach_all(self, method: str, knobs: Any) -> None:
        store = in_memory_store()
        retrievers = [
            ApproximateCacheRetriever.from_vectorstore(store, k=3, follow_changes=False, **knobs)
            for _ in range(2)
        ]
        if method != "later":
            retrievers[0].attach(store)
            retrievers[0].invoke("something")
        first = retrievers[1].invoke("question")
        assert retrievers[1].stats().hits == 0
        if method == "later":  # it was never asked anything, and has to tell all the same
            retrievers[0].attach(store)
        if method == "delete":
            store.delete([first[0].id or ""])
        elif method == "add_documents":
            store.add_documents([Document("question", id="new")])
        else:
            store.add_texts(["question"], ids=["new"])
        plain = store.as_retriever(search_kwargs={"k": 3})
        assert retrievers[1].invoke("question") == plain.invoke("question") != first

    def test_namespaces_and_filters_keep_apart(self, knobs: Any) -> None:
        one, other = (
            ApproximateCacheRetriever.from_vectorstore(faiss_store(), k=3, **knobs)
            for _ in range(2)
        )
        one.invoke("question", namespace="a", filter={"half": 1})
        for arguments in ({"namespace": "a"}, {"filter": {"half": 1}}, {"namespace": "b"}):
            other.invoke("question", **arguments)
        assert other.stats().hits == 0
        found = other.invoke("question", namespace="a", filter={"half": 1})
        assert other.stats().hits == 1
        assert {document.metadata["half"] for document in found} == {1}

    def test_no_tolerance_is_too_large_for_namespaces(self, knobs: Any) -> None:
        knobs |= {"tolerance": 1e9}
        one, other = (
            ApproximateCacheRetriever.from_vectorstore(faiss_store(), k=3, **knobs)
            for _ in range(2)
        )
        spaces: tuple[dict[str, Any], ...] = ({}, *({"namespace": name} for name in "abAB"))
        for number, call in enumerate(spaces):
            one.invoke("question", **call)
            assert (one.stats().hits, one.stats().misses) == (0, number + 1)
        for number, call in enumerate(spaces):
            assert other.invoke("question", **call)
            assert (other.stats().hits, other.stats().misses) == (number + 1, 0)

    def test_without_tolerance_texts_are_compared(self, knobs: Any) -> None:
        class Blind(Words):
            def embed_query(self, text: str) -> list[float]:
                return super().embed_query("")

        store = FAISS.from_texts(TEXTS, Blind(), ids=TEXTS)
        knobs |= {"tolerance": 0}
        one, other = (
            ApproximateCacheRetriever.from_vectorstore(store, k=3, **knobs) for _ in range(2)
        )
        questions = ("who is he", "Who is he", "who  is he", "who is he?")
        for question in questions:
            one.invoke(question)
        assert (one.stats().hits, one.stats().misses) == (0, len(questions))
        for question in questions:
            other.invoke(question)
        other.invoke("who is she")
        assert (other.stats().hits, other.stats().misses) == (len(questions), 1)

    def test_proofs(self, knobs: Any) -> None:
        knobs |= {"guarantee": "exact", "rerank_factor": 20}
        one, other = (
            ApproximateCacheRetriever.from_vectorstore(in_memory_store(), k=2, **knobs, guard=False)
            for _ in range(2)
        )
        plain = in_memory_store().as_retriever(search_kwargs={"k": 2})
        for number in range(20):
            one.invoke(f"question {number}")
            assert other.invoke(f"question {number}~1") == plain.invoke(f"question {number}~1")
        assert other.stats().hits > 0

    def test_clear_ends_the_answers_of_all(self, knobs: Any) -> None:
        one, other = (
            ApproximateCacheRetriever.from_vectorstore(faiss_store(), **knobs) for _ in range(2)
        )
        one.invoke("question")
        other.invoke("question")
        assert other.stats().hits == 1
        other.clear()
        assert not other.explain("question").hit  # whether Redis has been told yet or not
        while cache_stats(other).owed:
            asyncio.run(asyncio.sleep(0.001))
        one.invoke("question")
        assert one.stats().hits == 0

    def test_a_staged_retriever(self, knobs: Any) -> None:
        one, other = (
            ApproximateCacheRetriever.from_retriever(
                StagedFaissRetriever.from_vectorstore(ivf_store()), k=3, **knobs
            )
            for _ in range(2)
        )
        expected = one.invoke("question")
        assert other.invoke("question") == expected
        (stage,) = other.stages("question")
        assert list(stage.documents) == expected
        assert other.stats().store_calls == 0

    def test_redis_that_is_gone(self) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(
            faiss_store(), k=3, tag="a", cache=f"redis://127.0.0.1:{free_port()}"
        )
        plain = faiss_store().as_retriever(search_kwargs={"k": 3})
        for number in range(6):
            question = f"question {number % 2}"
            assert retriever.invoke(question) == plain.invoke(question)
            assert asyncio.run(retriever.ainvoke(question)) == plain.invoke(question)
        assert retriever.stats().store_calls == 12
        assert cache_stats(retriever).skipped > 0
        assert not retriever.explain("question").hit

    def test_documents_without_ids_are_not_shared(
        self, knobs: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        index = faiss.IndexFlatL2(DIM)
        store = FAISS(Words(), index, InMemoryDocstore(), {})
        store.add_texts(TEXTS)
        for one in store.docstore._dict.values():
            one.id = None
        retriever = ApproximateCacheRetriever.from_vectorstore(store, **knobs)
        for _ in range(3):
            assert len(retriever.invoke("question")) == 4
        assert retriever.stats().hits == 0
        assert "documents without ids cannot be shared" in caplog.text


class TestLlamaIndex:
    @pytest.mark.parametrize("kind", ["l2", "ip", "map", "simple"])
    def test_one_asks_for_all(self, kind: str, knobs: Any) -> None:
        one, other = (
            LlamaIndexRetriever.from_index(faiss_index(kind), k=4, **knobs, guard=False)
            for _ in range(2)
        )
        plain = faiss_index(kind).as_retriever(similarity_top_k=4)
        for number in range(5):
            question = f"question {number}"
            expected = plain.retrieve(question)
            one.retrieve(question)
            again = other.retrieve(question)
            assert ids(again) == ids(expected)
            assert scores(again) == pytest.approx(scores(expected))
            near, right = other.retrieve(f"{question}~1"), plain.retrieve(f"{question}~1")
            both = set(ids(near)) & set(ids(right))
            assert len(both) >= 3
            of = dict(zip(ids(near), scores(near), strict=True))
            for name, score in zip(ids(right), scores(right), strict=True):
                assert name not in both or of[name] == pytest.approx(score, rel=1e-4)
        assert (one.stats().store_calls, other.stats().store_calls) == (5, 0)

    def test_no_tolerance_is_too_large_for_namespaces(self, knobs: Any) -> None:
        knobs |= {"tolerance": 1e9}
        index = faiss_index()
        spaces: tuple[dict[str, Any], ...] = ({}, *({"namespace": name} for name in "abAB"))
        asked, again = (
            [LlamaIndexRetriever.from_index(index, **knobs, **space) for space in spaces]
            for _ in range(2)
        )
        for retriever in asked:
            retriever.retrieve("question")
            assert (retriever.stats().hits, retriever.stats().misses) == (0, 1)
        for retriever in again:
            assert retriever.retrieve("question")
            assert (retriever.stats().hits, retriever.stats().misses) == (1, 0)

    async def test_coroutines_share(self, knobs: Any) -> None:
        one, other = (LlamaIndexRetriever.from_index(faiss_index(), **knobs) for _ in range(2))
        expected = ids(await one.aretrieve("question"))
        assert ids(await other.aretrieve("question")) == expected
        assert other.stats().hits == 1

    def test_changes_through_one_reach_all(self, knobs: Any) -> None:
        index = faiss_index("simple")
        one = LlamaIndexRetriever.from_index(index, **knobs)
        other = LlamaIndexRetriever.from_index(index, follow_changes=False, **knobs)
        one.retrieve("something")
        before = ids(other.retrieve("question"))
        index.insert_nodes([TextNode(id_="new", text="question")])
        assert ids(other.retrieve("question"))[0] == "new"
        index.delete_nodes(["new"])
        assert ids(other.retrieve("question")) == before

    def test_a_staged_retriever(self, knobs: Any) -> None:
        index = faiss_index()
        quantizer = faiss.IndexFlatL2(DIM)
        ivf = faiss.IndexIVFFlat(quantizer, DIM, 4)
        vectors = index.vector_store.client.reconstruct_n(0, 200)
        ivf.train(vectors)
        ivf.add(vectors)
        index.vector_store._faiss_index = ivf  # type: ignore[attr-defined]  # no public way
        one, other = (
            LlamaIndexRetriever.from_retriever(
                StagedLlamaIndexRetriever.from_index(index), k=3, **knobs
            )
            for _ in range(2)
        )
        expected = one.retrieve("question")
        again = other.retrieve("question")
        assert ids(again) == ids(expected)
        assert scores(again) == pytest.approx(scores(expected))
        assert other.stats().store_calls == 0


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"tag": None}, "tag must name"),
            ({"tolerance": "auto"}, "got 'auto'"),
            ({"max_rerank_factor": 9}, "max_rerank_factor cannot go with cache="),
            ({"cache": 5}, "a Redis URL or a RedisServer"),
            ({"cache": "http://host"}, "url must begin with"),
        ],
    )
    def test_what_cannot_be(self, arguments: Any, said: str) -> None:
        given = {"cache": "redis://host", "tag": "a"} | arguments
        with pytest.raises(ConfigurationError, match=said):
            ApproximateCacheRetriever.from_vectorstore(faiss_store(), **given)
        with pytest.raises(ConfigurationError, match=said):
            LlamaIndexRetriever.from_index(faiss_index(), **given)

    def test_just_any_retriever_cannot_share(self) -> None:
        asked = RunnableLambda[str, list[Document]](lambda _: [Document("a", id="a")])
        with pytest.raises(ConfigurationError, match="gives its documents by id"):
            ApproximateCacheRetriever.from_retriever(asked, Words(), cache="redis://host", tag="a")

    def test_nothing_is_saved_or_loaded(self, knobs: Any, tmp_path: Any) -> None:
        retriever = ApproximateCacheRetriever.from_vectorstore(faiss_store(), **knobs)
        retriever.invoke("question")
        for method in (retriever.save, retriever.load):
            with pytest.raises(ConfigurationError, match="Redis has it"):
                method(tmp_path / "file")

    def test_a_missing_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(*_: Any, **options: Any) -> Any:
            raise MissingExtraError(options["feature"], options["extra"])

        monkeypatch.setattr(lazy_cache, "require", missing)
        with pytest.raises(MissingExtraError, match=r"ragcache-integrations\[redis\]"):
            ApproximateCacheRetriever.from_vectorstore(faiss_store(), cache="redis://host", tag="a")

    def test_a_url_is_a_server(self) -> None:
        server = read_knobs({"cache": "redis://host"}).cache
        assert server == RedisServer("redis://host")
        assert read_knobs({"cache": server}).cache is server
        assert read_knobs({}).cache is None


def ivf_store() -> FAISS:
    """A store whose index is searched in stages."""
    flat = faiss_store()
    ivf = faiss.IndexIVFFlat(faiss.IndexFlatL2(DIM), DIM, 4)
    vectors = flat.index.reconstruct_n(0, flat.index.ntotal)
    ivf.train(vectors)
    ivf.add(vectors)
    return FAISS(flat.embeddings, ivf, flat.docstore, flat.index_to_docstore_id)
