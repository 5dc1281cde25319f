"""Checks of cached answers: how they run, and ``tolerance="auto"`` from end to end."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from langchain_community.vectorstores import FAISS
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableLambda

from ragcache_integrations.core.threads import BackgroundChecks
from ragcache_integrations.retrievers.cached.langchain.retriever import ApproximateCacheRetriever
from ragcache_integrations.retrievers.cached.llama_index.retriever import (
    ApproximateCacheRetriever as LlamaIndexRetriever,
)
from ragcache_integrations.retrievers.retrieval import Tally
from tests.retrievers.cached.llama_index.indexes import faiss_index
from tests.support.waiting import wait_until


@pytest.fixture
def tally() -> Tally:
    return Tally()


def checks_of(pool: ThreadPoolExecutor, tally: Tally) -> BackgroundChecks:
    begin, fail = partial(tally.add, shadow_checks=1), partial(tally.add, shadow_failures=1)
    return BackgroundChecks(pool, begin, fail)


def test_one_that_comes_as_the_interpreter_ends_is_no_news(
    tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    checks_of(pool, tally).start(lambda: None, None)
    assert tally.stats(None).shadow_failures == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def checks(tally: Tally) -> Iterator[BackgroundChecks]:
    with ThreadPoolExecutor(8) as pool:
        yield checks_of(pool, tally)


def fail() -> None:
    raise ConnectionError("gone")


class TestChecks:
    def test_they_run_in_threads_and_a_few_at_once(
        self, checks: BackgroundChecks, tally: Tally
    ) -> None:
        gate, done = threading.Event(), threading.Semaphore(0)

        def check() -> None:
            assert gate.wait(20)
            done.release()

        for _ in range(20):
            checks.start(check, None)
        assert tally.stats(None).shadow_checks == 4
        gate.set()
        for _ in range(4):
            assert done.acquire(timeout=20)
        wait_until(lambda: checks._in_threads == 0)
        checks.start(check, None)
        assert done.acquire(timeout=20)
        assert tally.stats(None).shadow_checks == 5

    def test_failures_are_counted_and_the_first_is_told(
        self, checks: BackgroundChecks, tally: Tally, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "ragcache_integrations"):
            for number in range(10):
                checks.start(fail, None)
                wait_until(lambda: checks._in_threads == 0)
                assert tally.stats(None).shadow_failures == number + 1
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "could not be checked: gone" in caplog.text

    async def test_they_run_as_tasks_that_nobody_has_to_hold(
        self, checks: BackgroundChecks, tally: Tally
    ) -> None:
        gate, ran = asyncio.Event(), []

        async def acheck() -> None:
            await gate.wait()
            ran.append(threading.get_ident())

        for _ in range(20):
            checks.start(fail, acheck)
        gc.collect()
        gate.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert ran == [threading.get_ident()] * 4
        assert not checks._tasks
        assert tally.stats(None).shadow_failures == 0

    async def test_a_task_that_fails(self, checks: BackgroundChecks, tally: Tally) -> None:
        async def acheck() -> None:
            fail()

        checks.start(fail, acheck)
        for _ in range(5):
            await asyncio.sleep(0)
        assert tally.stats(None).shadow_failures == 1

    def test_a_task_that_ends_with_its_loop_is_done_in_a_thread(
        self, checks: BackgroundChecks, tally: Tally
    ) -> None:
        done = threading.Event()

        async def acheck() -> None:
            await asyncio.sleep(60)

        async def main() -> None:
            checks.start(done.set, acheck)
            await asyncio.sleep(0)

        asyncio.run(main())
        assert done.wait(20)
        wait_until(lambda: checks._in_threads == 0)
        assert not checks._tasks
        assert tally.stats(None).shadow_failures == 0

    def test_tasks_of_a_loop_that_was_just_closed_take_no_place(
        self, checks: BackgroundChecks, tally: Tally
    ) -> None:
        async def acheck() -> None:
            await asyncio.sleep(60)

        async def begin() -> None:
            for _ in range(4):
                checks.start(fail, acheck)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        tasks = list(asyncio.all_tasks(loop))
        loop.close()
        done = threading.Event()
        checks.start(done.set, None)
        assert done.wait(20)
        for task in tasks:  # so that nobody complains of them
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own
            task.get_coro().close()

    def test_an_executor_that_was_shut_down(self, tally: Tally) -> None:
        pool = ThreadPoolExecutor(1)
        pool.shutdown()
        checks_of(pool, tally).start(fail, None)
        assert tally.stats(None).shadow_failures == 1


class Line(Embeddings):
    """A text is where it lies on a circle: ``name@angle``."""

    def embed_query(self, text: str) -> list[float]:
        angle = float(text.partition("@")[2])
        return [float(np.cos(angle)), float(np.sin(angle))]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


# Documents lie this far from each other, so that answers of one hold for questions this near.
STEP = 2 * np.pi / 200


def circle() -> FAISS:
    texts = [f"document@{number * STEP}" for number in range(200)]
    return FAISS.from_texts(texts, Line(), ids=[str(number) for number in range(200)])


def settle(retriever: ApproximateCacheRetriever) -> None:
    wait_until(lambda: retriever._core._checks._in_threads == 0)


@pytest.mark.parametrize("start", [None, 1.0], ids=["from nothing", "from far too much"])
def test_the_tolerance_is_learnt(start: float | None) -> None:
    """Answers hold within half a step, and for no more: the nearest document is another then."""
    retriever = ApproximateCacheRetriever.from_vectorstore(
        circle(),
        k=1,
        rerank_factor=1,
        tolerance="auto",
        start_tolerance=start,
        exact_search=False,  # so that nothing is proven
        guard=False,
        max_violation=0.05,
    )
    plain = circle()
    chance = np.random.default_rng(0)
    wrong = hits = 0
    for number in range(3000):
        place = chance.integers(200) * STEP + chance.uniform(-0.1, 0.1) * STEP
        before = retriever.stats().hits
        (found,) = retriever.invoke(f"question {number}@{place}")
        if retriever.stats().hits > before:
            hits += 1
            (right,) = plain.similarity_search(f"question@{place}", k=1)
            wrong += found.id != right.id
        settle(retriever)
    stats = retriever.stats()
    assert stats.cache is not None
    assert stats.cache.learning is not None
    assert 0.1 * STEP < stats.cache.tolerance < STEP
    assert hits > 1000
    assert wrong / hits < 0.05
    assert 0 < stats.shadow_checks < hits
    assert stats.shadow_failures == 0
    assert stats.store_calls == stats.misses + stats.shadow_checks
    assert stats.cache.learning.shadow_checks == stats.shadow_checks


class Hearing(BaseCallbackHandler):
    def __init__(self) -> None:
        self.starts: list[str] = []

    def on_retriever_start(self, *args: Any, **kwargs: Any) -> None:
        self.starts.append(kwargs["name"])


class Native(BaseRetriever):
    """A retriever with a coroutine of its own."""

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return [Document("one", id="one")]

    async def _aget_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        await asyncio.sleep(0)
        return [Document("one", id="one")]


def asked_of_a_wrapped_one(plain: Any) -> ApproximateCacheRetriever:
    return ApproximateCacheRetriever.from_retriever(
        plain, Line(), tolerance="auto", start_tolerance=1.0, guard=False
    )


async def test_checks_of_a_wrapped_retriever_are_not_heard() -> None:
    retriever, hearing = asked_of_a_wrapped_one(Native()), Hearing()
    config = RunnableConfig(callbacks=[hearing])
    chain = RunnableLambda[str, str](lambda text: text) | retriever
    await chain.ainvoke("question@1", config)
    await chain.ainvoke("question@1.1", config)
    for _ in range(10):
        await asyncio.sleep(0.01)
    chain.invoke("question@1.2", config)
    settle(retriever)
    assert hearing.starts.count("Native") == 1
    stats = retriever.stats()
    assert (stats.hits, stats.shadow_checks, stats.store_calls) == (2, 2, 3)
    assert stats.shadow_failures == 0


def test_a_check_that_fails_reaches_no_caller(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def search(query: str) -> list[Document]:
        calls.append(query)
        if len(calls) > 1:
            raise ConnectionError("gone")
        return [Document("one", id="one")]

    retriever = asked_of_a_wrapped_one(RunnableLambda(search))
    for number in range(3):
        assert retriever.invoke(f"question@1.{number}")[0].id == "one"
        settle(retriever)
    assert retriever.stats().shadow_failures == 2
    assert [record.levelname for record in caplog.records][-1] == "WARNING"


def test_in_llama_index() -> None:
    retriever = LlamaIndexRetriever.from_index(
        faiss_index(), tolerance="auto", start_tolerance=1.0, exact_search=False, guard=False
    )
    for question in ("question", "question~1", "question~2"):
        assert len(retriever.retrieve(question)) == 2
    wait_until(lambda: retriever._core._checks._in_threads == 0)
    stats = retriever.stats()
    assert (stats.hits, stats.misses, stats.shadow_checks, stats.store_calls) == (2, 1, 2, 3)
    assert stats.shadow_failures == 0
    assert stats.cache is not None
    assert stats.cache.learning is not None
    assert stats.cache.learning.shadow_checks == 2
