"""The engine of the retrievers over a store of numbers on a line.

The store is a toy because a real one cannot be told to wait, to fail or to count. Real stores and
embeddings stand in the tests of the adapters.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from numpy.typing import ArrayLike

from ragcache_integrations.errors import ConfigurationError, EmbeddingError
from ragcache_integrations.query_cache import VectorSource
from ragcache_integrations.retrievers import embedder
from ragcache_integrations.retrievers.cached.core import RetrieverCore
from ragcache_integrations.retrievers.cached.knobs import CacheKnobs
from ragcache_integrations.retrievers.retrieval import Embedding, Note, Question, Source, Texts
from ragcache_integrations.retrievers.stores.facts import StoreFacts


@dataclass(frozen=True)
class Book:
    id: str | None
    text: str
    at: float
    score: float | None = None
    note: Note | None = None


@dataclass
class Shelf:
    """Books at places on a line; a question is the text of the place it asks for."""

    books: list[Book] = field(
        default_factory=lambda: [Book(str(n), f"text {n}", n) for n in range(100)]
    )
    embedded: list[Texts] = field(default_factory=list)
    searched: list[tuple[float, int]] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    gate: threading.Event | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    wrong_embedding: Any = None
    passed: list[Embedding] = field(default_factory=list)

    def embed(self, texts: Texts) -> ArrayLike:
        self.embedded.append(texts)
        if self.wrong_embedding is not None:
            return self.wrong_embedding  # type: ignore[no-any-return]  # the point
        return [float(np.mean([float(text) for text in texts])), 1.0]

    async def aembed(self, texts: Texts) -> ArrayLike:
        await asyncio.sleep(0)
        return self.embed(texts)

    def search(self, embedding: Embedding, count: int) -> Sequence[Book]:
        self.searched.append((float(embedding[0]), count))
        self.passed.append(embedding)
        self.begun.set()
        if self.gate is not None:
            assert self.gate.wait(20)
        return self.answer(embedding, count)

    async def asearch(self, embedding: Embedding, count: int) -> Sequence[Book]:
        self.searched.append((float(embedding[0]), count))
        self.begun.set()
        while self.gate is not None and not self.gate.is_set():  # noqa: ASYNC110 - other threads'
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        return self.answer(embedding, count)

    def answer(self, embedding: Embedding, count: int) -> Sequence[Book]:
        if self.errors:
            raise self.errors.pop()
        nearest = sorted(self.books, key=lambda book: abs(book.at - float(embedding[0])))
        return nearest[: count or 7]

    def vectors(self, ids: Sequence[str]) -> ArrayLike:
        places = {book.id: book.at for book in self.books}
        return [[places[one], 1.0] for one in ids]


def core_over(
    shelf: Shelf,
    *,
    k: int | None = 4,
    vectors: VectorSource | None = None,
    native: bool = False,
    **knobs: Any,
) -> RetrieverCore[Book]:
    return RetrieverCore(
        CacheKnobs(**{"guard": False} | knobs),
        Source(
            embed=shelf.embed,
            identify=lambda book: (book.id, book.text),
            copy=lambda book, score, note: replace(book, score=score, note=note),
            aembed=shelf.aembed if native else None,
            k=k,
            facts=StoreFacts(vectors=vectors),
        ),
    )


def asked(shelf: Shelf, text: str, *, native: bool = False, **request: Any) -> Question[Book]:
    return Question((text,), shelf.search, shelf.asearch if native else None, **request)


def ids(retrieval: Question[Book]) -> list[str | None]:
    return [book.id for book in retrieval.documents]


class TestRetrieve:
    def test_a_miss_a_repetition_and_a_rephrasing(self) -> None:
        shelf = Shelf()
        core = core_over(shelf, vectors=shelf.vectors, tolerance=1.0)
        miss = core.retrieve(asked(shelf, "10"))
        again = core.retrieve(asked(shelf, "10"))
        near = core.retrieve(asked(shelf, "10.75"))
        far = core.retrieve(asked(shelf, "12"))
        assert ids(miss) == ids(again) == ["10", "9", "11", "8"]
        assert ids(near) == ["11", "10", "12", "9"]
        assert [book.score for book in near.documents] == [0.25, 0.75, 1.25, 1.75]
        assert ids(far) == ["12", "11", "13", "10"]
        assert shelf.searched == [(10.0, 16), (12.0, 16)]
        assert shelf.embedded == [("10",), ("10.75",), ("12",)]
        assert [one.trace.hit for one in (miss, again, near, far)] == [False, True, True, False]
        assert [one.trace.distance for one in (miss, again, near)] == [None, 0.0, 0.75]
        assert [one.trace.reranked for one in (miss, again, near)] == [False, False, True]
        assert [one.trace.embedding_memoised for one in (miss, again, near)] == [False, True, False]
        stats = core.stats()
        assert (stats.requests, stats.hits, stats.misses, stats.shared) == (4, 2, 2, 0)
        assert (stats.store_calls, stats.embedding_calls, stats.embedding_memo_hits) == (2, 3, 1)
        assert stats.store_seconds > 0 < stats.lookup_seconds
        assert stats.embedding_seconds > 0
        assert stats.cache is not None
        assert stats.cache.entries == 2

    @pytest.mark.parametrize("native", [False, True], ids=["thread", "coroutine"])
    async def test_the_async_twin_does_the_same(self, native: bool) -> None:
        shelf = Shelf()
        core = core_over(shelf, vectors=shelf.vectors, tolerance=1.0, native=native)
        answers = [
            ids(await core.aretrieve(asked(shelf, text, native=native)))
            for text in ("10", "10", "10.75", "12")
        ]
        assert answers[0] == answers[1] == ["10", "9", "11", "8"]
        assert answers[2:] == [["11", "10", "12", "9"], ["12", "11", "13", "10"]]
        assert shelf.searched == [(10.0, 16), (12.0, 16)]
        assert core.stats().hits == 2

    def test_without_vectors_k_are_fetched_and_it_is_said_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        shelf = Shelf()
        with caplog.at_level(logging.WARNING, "ragcache_integrations"):
            core = core_over(shelf, tolerance=1.0)
            assert ids(core.retrieve(asked(shelf, "10"))) == ["10", "9", "11", "8"]
            assert ids(core.retrieve(asked(shelf, "10.75"))) == ["10", "9", "11", "8"]
        assert shelf.searched == [(10.0, 4)]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "cached documents are not re-ranked, as it is not known how" in caplog.text
        assert "Up to a distance of 1.0" in caplog.text
        assert core.stats().unranked.startswith("cached documents are not re-ranked")
        caplog.clear()
        core_over(shelf, tolerance=1.0, rerank_factor=1)
        assert caplog.records == []

    @pytest.mark.parametrize(("factor", "hits"), [(1, 0), (2, 1)])
    def test_the_default_is_strict_where_no_more_are_fetched_than_returned(
        self, factor: int, hits: int
    ) -> None:
        shelf = Shelf()
        core = core_over(shelf, vectors=shelf.vectors, rerank_factor=factor)
        core.retrieve(asked(shelf, "10"))
        core.retrieve(asked(shelf, "10.2"))
        assert core.stats().hits == hits

    def test_a_larger_k_is_searched_for_and_a_smaller_one_is_not(self) -> None:
        shelf = Shelf()
        core = core_over(shelf, k=3)
        assert len(core.retrieve(asked(shelf, "10")).documents) == 3
        assert len(core.retrieve(asked(shelf, "10", k=2)).documents) == 2
        assert len(core.retrieve(asked(shelf, "10", k=5)).documents) == 5
        assert [count for _, count in shelf.searched] == [3, 5]

    def test_more_than_the_store_holds(self) -> None:
        shelf = Shelf(books=[Book(str(n), f"text {n}", n) for n in range(3)])
        core = core_over(shelf, k=50, vectors=shelf.vectors)
        assert ids(core.retrieve(asked(shelf, "2"))) == ["2", "1", "0"]
        assert ids(core.retrieve(asked(shelf, "2", k=1000))) == ["2", "1", "0"]
        assert len(shelf.searched) == 1  # it had no more to give

    def test_an_empty_store_gives_nothing_and_that_is_not_remembered(self) -> None:
        shelf = Shelf(books=[])
        core = core_over(shelf)
        assert ids(core.retrieve(asked(shelf, "2"))) == []
        shelf.books = [Book("2", "text 2", 2)]
        assert ids(core.retrieve(asked(shelf, "2"))) == ["2"]

    def test_a_source_without_a_number_gives_what_it_gives(self) -> None:
        shelf = Shelf()
        core = core_over(shelf, k=None)
        assert len(core.retrieve(asked(shelf, "10")).documents) == 7
        assert len(core.retrieve(asked(shelf, "10", k=2)).documents) == 2
        assert len(core.retrieve(asked(shelf, "10", k=50)).documents) == 7
        assert shelf.searched == [(10.0, 0)]

    def test_keys_are_kept_apart(self) -> None:
        shelf = Shelf()
        core = core_over(shelf, tolerance=math.inf)
        core.retrieve(asked(shelf, "10", key="one"))
        assert ids(core.retrieve(asked(shelf, "50", key="other")))[0] == "50"
        assert ids(core.retrieve(asked(shelf, "50", key="one")))[0] == "10"

    def test_a_given_embedding_is_used(self) -> None:
        shelf = Shelf()
        core = core_over(shelf)
        assert ids(core.retrieve(asked(shelf, "", embedding=[33.0, 1.0])))[0] == "33"
        assert shelf.embedded == []
        assert core.retrieve(asked(shelf, "", embedding=[33.0, 1.0])).trace.hit

    def test_several_texts_are_embedded_as_one(self) -> None:
        shelf = Shelf()
        core = core_over(shelf)
        request = replace(asked(shelf, "10"), texts=("10", "20"))
        assert ids(core.retrieve(request))[0] == "15"

    def test_the_store_is_asked_in_the_model_s_own_precision(self) -> None:
        shelf = Shelf()
        core = core_over(shelf)
        core.retrieve(asked(shelf, "10.1"))
        assert shelf.passed[0].tolist() == [10.1, 1.0]

    def test_clear_forgets_answers_and_keeps_embeddings(self) -> None:
        shelf = Shelf()
        core = core_over(shelf)
        core.caches.clear()
        core.retrieve(asked(shelf, "10"))
        core.caches.clear()
        assert not core.retrieve(asked(shelf, "10")).trace.hit
        assert len(shelf.embedded) == 1

    def test_a_search_from_before_a_clear_is_not_remembered_nor_joined(self) -> None:
        shelf = Shelf(gate=threading.Event())
        core = core_over(shelf)
        with ThreadPoolExecutor(2) as pool:
            before = pool.submit(core.retrieve, asked(shelf, "10"))
            assert shelf.begun.wait(20)
            core.caches.clear()
            after = pool.submit(core.retrieve, asked(shelf, "10"))
            while len(shelf.searched) < 2:
                time.sleep(0.001)
            assert shelf.gate is not None
            shelf.gate.set()
            assert not before.result(20).trace.hit
            assert not after.result(20).trace.shared
        stats = core.stats().cache
        assert stats is not None
        assert (stats.insertions, stats.dropped) == (1, 1)


class TestIdentity:
    def test_documents_without_ids_are_told_apart_by_their_text(self) -> None:
        shelf = Shelf(books=[Book(None, f"text {n}", n) for n in range(9)])
        seen: list[str] = []

        def vectors(wanted: Sequence[str]) -> ArrayLike:
            seen.extend(wanted)
            raise LookupError

        core = core_over(shelf, k=3, vectors=vectors)
        answers = [core.retrieve(asked(shelf, "4")) for _ in range(2)]
        assert answers[1].trace.hit
        assert answers[0].documents == answers[1].documents
        other = core_over(shelf, k=3, vectors=vectors)
        first = list(seen)
        other.retrieve(asked(shelf, "4"))
        assert len(set(first)) == len(first) == 9
        assert seen[9:] == first  # the same in every process and order

    def test_one_id_with_different_texts_does_not_mix_them_up(self) -> None:
        shelf = Shelf(books=[Book("same", f"text {n}", n) for n in range(9)])
        core = core_over(shelf, k=2, vectors=shelf.vectors, tolerance=0.6)
        for text in ("1", "7", "1.5", "7.5", "1"):
            found = core.retrieve(asked(shelf, text)).documents
            assert found[0].text in {
                f"text {math.floor(float(text))}",
                f"text {math.ceil(float(text))}",
            }
            assert len({book.text for book in found}) == 2


class TestBadInput:
    @pytest.mark.parametrize("text", [None, 5, b"bytes", b""])
    async def test_what_is_no_question(self, text: Any) -> None:
        shelf = Shelf()
        core = core_over(shelf)
        with pytest.raises(ConfigurationError, match="must be a string"):
            core.retrieve(asked(shelf, text))
        with pytest.raises(ConfigurationError, match="must be a string"):
            await core.aretrieve(asked(shelf, text))
        assert core.stats().requests == 0

    @pytest.mark.parametrize("k", [0, -3, 1.0, "2", True])
    def test_a_k_that_cannot_be(self, k: Any) -> None:
        shelf = Shelf()
        with pytest.raises(ConfigurationError, match="k must be"):
            core_over(shelf).retrieve(asked(shelf, "1", k=k))
        assert shelf.embedded == []

    @pytest.mark.parametrize(
        "embedding",
        [
            [0.0, 0.0],
            [math.nan, 1.0],
            [math.inf, 1.0],
            [],
            [[1.0, 2.0]],
            [[1.0, 2.0], [1.0, 2.0]],
            1.0,
            ["a", "b"],
            [1.0, 2.0, 3.0],
        ],
    )
    async def test_an_unusable_embedding_is_an_error_and_is_not_remembered(
        self, embedding: Any
    ) -> None:
        shelf = Shelf()
        core = core_over(shelf)
        core.retrieve(asked(shelf, "1"))  # from now on they have two dimensions
        shelf.wrong_embedding = embedding
        with pytest.raises(EmbeddingError, match="unusable embedding of '2'"):
            core.retrieve(asked(shelf, "2"))
        with pytest.raises(EmbeddingError, match="unusable embedding of '2'"):
            await core.aretrieve(asked(shelf, "2"))
        with pytest.raises(EmbeddingError, match="unusable embedding of the query"):
            core.retrieve(asked(shelf, "2", embedding=embedding))
        shelf.wrong_embedding = None
        assert ids(core.retrieve(asked(shelf, "2")))[0] == "2"
        assert core.stats().failures == 3
        assert len(shelf.searched) == 2

    def test_a_later_change_of_the_model_s_array_does_not_reach_the_memo(self) -> None:
        shelf = Shelf(wrong_embedding=np.array([5.0, 1.0]))
        core = core_over(shelf)
        core.retrieve(asked(shelf, "5"))
        shelf.wrong_embedding[0] = 90
        core.caches.clear()
        assert ids(core.retrieve(asked(shelf, "5")))[0] == "5"

    @pytest.mark.parametrize("native", [False, True], ids=["thread", "coroutine"])
    async def test_a_store_that_raises(self, native: bool) -> None:
        shelf = Shelf(errors=[TimeoutError("slow"), ConnectionError("gone")])
        core = core_over(shelf, native=native)
        with pytest.raises(ConnectionError, match="gone"):
            core.retrieve(asked(shelf, "1"))
        with pytest.raises(TimeoutError, match="slow"):
            await core.aretrieve(asked(shelf, "1", native=native))
        assert core.stats().cache is not None
        assert core.stats().cache.entries == 0  # type: ignore[union-attr]  # as above
        assert not core.retrieve(asked(shelf, "1")).trace.hit
        stats = core.stats()
        assert (stats.requests, stats.failures, stats.misses, stats.store_calls) == (3, 2, 1, 3)

    def test_vectors_that_cannot_be_read_do_not_spoil_the_answer(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def vectors(wanted: Sequence[str]) -> ArrayLike:
            raise OSError(wanted)

        shelf = Shelf()
        core = core_over(shelf, vectors=vectors)
        assert ids(core.retrieve(asked(shelf, "5")))[0] == "5"
        assert ids(core.retrieve(asked(shelf, "6")))[0] == "6"
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert [warning.message for warning in warnings] == ["An answer could not be cached"]

    def test_a_metric_other_than_the_store_s(self) -> None:
        shelf = Shelf()
        source = Source[Book](
            shelf.embed,
            lambda book: (book.id, book.text),
            lambda book, _, __: book,
            facts=StoreFacts(metric="ip"),
        )
        with pytest.raises(ConfigurationError, match=r"metric='l2'.*'ip'"):
            RetrieverCore(CacheKnobs(metric="l2"), source)


class TestMemo:
    def test_a_bounded_number_is_kept_and_the_least_recently_used_goes(self) -> None:
        shelf = Shelf()
        core = core_over(shelf, embedding_memo=2)
        for text in ("1", "2", "1", "3", "1", "2"):
            core.retrieve(asked(shelf, text))
        assert shelf.embedded == [("1",), ("2",), ("3",), ("2",)]

    @pytest.mark.parametrize("native", [False, True])
    async def test_tenants_share_no_embedding(self, native: bool) -> None:
        shelf = Shelf()
        core = core_over(shelf, native=native)

        def of(tenant: str) -> Question[Book]:
            return asked(shelf, "1", native=native, key=tenant, namespace=tenant)

        for tenant in ("ann", "bob"):
            assert not core.retrieve(of(tenant)).trace.embedding_memoised
            assert (await core.aretrieve(of(tenant))).trace.embedding_memoised
        at_once = await asyncio.gather(*(core.aretrieve(of(tenant)) for tenant in ("cat", "dan")))
        assert [one.trace.embedding_memoised for one in at_once] == [False, False]
        assert len(shelf.embedded) == 4

    def test_long_texts_do_not_fill_the_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(embedder, "_MOST_CHARACTERS", 10)
        shelf = Shelf()
        core = core_over(shelf)
        for text in ("1", "2" * 9, "1", "3" * 2, "2" * 9, "4" * 11, "4" * 11):
            core.retrieve(asked(shelf, text))
        embedded = [text for (text,) in shelf.embedded]
        assert embedded == ["1", "2" * 9, "3" * 2, "2" * 9, "4" * 11, "4" * 11]

    def test_it_can_be_switched_off(self) -> None:
        shelf = Shelf()
        core = core_over(shelf, embedding_memo=0)
        for _ in range(3):
            core.retrieve(asked(shelf, "1"))
        assert len(shelf.embedded) == 3
        assert core.stats().hits == 2


class TestConcurrency:
    def test_identical_questions_of_threads_are_searched_once(self) -> None:
        shelf = Shelf(gate=threading.Event())
        core = core_over(shelf)
        with ThreadPoolExecutor(16) as pool:
            answers = [pool.submit(core.retrieve, asked(shelf, "10")) for _ in range(16)]
            assert shelf.begun.wait(20)
            time.sleep(0.05)  # most others have come as far as they can
            assert shelf.gate is not None
            shelf.gate.set()
            found = [answer.result(20) for answer in answers]
        assert all(ids(one) == ["10", "9", "11", "8"] for one in found)
        assert len(shelf.searched) == len(shelf.embedded) == 1
        stats = core.stats()
        assert (stats.misses, stats.hits + stats.shared) == (1, 15)

    @pytest.mark.parametrize("native", [False, True], ids=["thread", "coroutine"])
    async def test_identical_questions_of_tasks_are_searched_once(self, native: bool) -> None:
        shelf = Shelf()
        core = core_over(shelf, native=native)
        found = await asyncio.gather(
            *[core.aretrieve(asked(shelf, "10", native=native)) for _ in range(200)]
        )
        assert all(ids(one) == ["10", "9", "11", "8"] for one in found)
        assert len(shelf.searched) == len(shelf.embedded) == 1

    async def test_threads_and_tasks_together_search_once(self) -> None:
        shelf = Shelf(gate=threading.Event())
        core = core_over(shelf)
        tasks = [asyncio.create_task(core.aretrieve(asked(shelf, "10"))) for _ in range(20)]
        with ThreadPoolExecutor(4) as pool:
            threads = [pool.submit(core.retrieve, asked(shelf, "10")) for _ in range(4)]
            await asyncio.to_thread(shelf.begun.wait, 20)
            assert shelf.gate is not None
            shelf.gate.set()
            found = await asyncio.gather(*tasks)
            found += [thread.result(20) for thread in threads]
        assert all(ids(one) == ["10", "9", "11", "8"] for one in found)
        assert len(shelf.searched) == 1

    @pytest.mark.parametrize("native", [False, True], ids=["thread", "coroutine"])
    async def test_a_cancelled_leader_leaves_the_search_to_the_others(self, native: bool) -> None:
        shelf = Shelf(gate=threading.Event())
        core = core_over(shelf, native=native)
        tasks = [
            asyncio.create_task(core.aretrieve(asked(shelf, "10", native=native))) for _ in range(3)
        ]
        await asyncio.to_thread(shelf.begun.wait, 20)
        tasks[0].cancel()
        await asyncio.wait([tasks[0]])
        assert shelf.gate is not None
        shelf.gate.set()
        assert [ids(await task)[0] for task in tasks[1:]] == ["10", "10"]
        assert len(shelf.searched) == 1
        stats = core.stats()
        assert (stats.failures, stats.hits + stats.misses + stats.shared) == (1, 2)

    async def test_a_failed_search_is_everybody_s_and_is_not_remembered(self) -> None:
        shelf = Shelf(gate=threading.Event(), errors=[ConnectionError("gone")])
        core = core_over(shelf)
        tasks = [asyncio.create_task(core.aretrieve(asked(shelf, "10"))) for _ in range(5)]
        await asyncio.to_thread(shelf.begun.wait, 20)
        await asyncio.sleep(0.05)
        assert shelf.gate is not None
        shelf.gate.set()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(end) for end in ends] == ["gone"] * 5
        assert len(shelf.searched) == 1
        assert not (await core.aretrieve(asked(shelf, "10"))).trace.hit

    @pytest.mark.parametrize("native", [False, True], ids=["thread", "coroutine"])
    async def test_a_coroutine_blocks_nothing(self, native: bool) -> None:
        shelf = Shelf()
        core = core_over(shelf, vectors=shelf.vectors, native=native, tolerance=1.0)
        if not native:
            shelf.gate = threading.Event()
            asyncio.get_running_loop().call_later(
                0.05, shelf.gate.set
            )  # would never come if blocked
        with blockbuster_ctx("ragcache_integrations"):
            for text in ("10", "10", "10.5", "40"):
                await core.aretrieve(asked(shelf, text, native=native))
        assert core.stats().hits == 2

    def test_many_threads_and_loops_get_their_own_answers(self) -> None:
        shelf = Shelf()
        core = core_over(
            shelf, vectors=shelf.vectors, tolerance=0.3, capacity=30, embedding_memo=20
        )

        def question(chance: random.Random) -> tuple[str, int, str]:
            place = chance.randrange(1, 60)
            return f"{place + chance.choice([0.0, 0.1, 0.2])}", chance.randrange(1, 4), str(place)

        def check(found: Question[Book], k: int, place: str) -> None:
            assert ids(found)[0] == place
            assert len(found.documents) == k

        def blocking(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(100):
                text, k, place = question(chance)
                check(core.retrieve(asked(shelf, text, k=k)), k, place)

        async def one(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(5):
                text, k, place = question(chance)
                native = chance.random() < 0.5
                request = asked(shelf, text, k=k, native=native)
                check(await core.aretrieve(request), k, place)

        async def many(base: int) -> None:
            await asyncio.gather(*[one(base + number) for number in range(100)])

        with ThreadPoolExecutor(12) as pool:
            ends = [pool.submit(blocking, seed) for seed in range(10)]
            ends += [pool.submit(asyncio.run, many(base)) for base in (1000, 2000)]
            for end in ends:
                end.result(120)
        stats = core.stats()
        assert stats.requests == stats.hits + stats.misses + stats.shared == 2000
        assert stats.failures == 0
        assert stats.store_calls == stats.misses
        assert stats.cache is not None
        assert stats.cache.entries <= 30
        assert stats.cache.vectors <= 30 * 12

    def test_an_unused_core_leaves_no_thread_behind(self) -> None:
        shelf = Shelf()
        core = core_over(shelf)
        before = set(threading.enumerate())
        asyncio.run(_ask(core, shelf))
        ours = [
            one
            for one in set(threading.enumerate()) - before
            if one.name.startswith("ragcache-retriever")
        ]
        assert ours
        del core
        for one in ours:
            one.join(20)
            assert not one.is_alive()


async def _ask(core: RetrieverCore[Book], shelf: Shelf) -> None:
    await core.aretrieve(asked(shelf, "1"))
