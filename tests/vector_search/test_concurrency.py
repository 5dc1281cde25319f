"""Threads and coroutines that search while others change the index."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.core.threads import in_thread
from ragcache_integrations.vector_search import Stage, StagedIndex, StagePlan
from ragcache_integrations.vector_search.index import ReadWriteLock
from ragcache_integrations.vector_search.searches import IVFSearch
from tests.support.sizes import scaled

from .worlds import CONNECTED, DIM, Vectors, assert_same, cloud, last, names, staged

SECONDS = scaled(2)  # at least one
FAR = 50.0
MANY = 450


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(before)


class TestChangesBetweenStages:
    @pytest.mark.parametrize("kind", ["ivf", "hnsw"])
    def test_the_search_begins_again(self, kind: str) -> None:
        index = staged(kind)
        query = cloud(1, 2)[0]
        stages = index.stages(query, 3)
        some = [next(stages), next(stages)]
        index.add(["new"], query[None])
        index.delete([index.search(query, 2).ids[1]])
        some += stages
        assert last(some).ids[0] == "new"
        assert_same(some[-1], index.search(query, 3))

    @pytest.mark.parametrize("kind", ["ivf", "hnsw"])
    def test_it_ends_however_often_the_index_changes(self, kind: str) -> None:
        index = staged(kind)
        query = cloud(1, 2)[0]
        some = []
        for number, stage in enumerate(index.stages(query, 3)):
            some.append(stage)
            right = index.search(query, 3)
            index.add([f"new {number}"], query[None] + 0.1 / (number + 1))
        assert_same(last(some), right)
        assert len(some) == 3

    def test_compacting_is_a_change(self) -> None:
        index = staged("hnsw")
        query = cloud(1, 2)[0]
        index.delete(names(500))
        stages = index.stages(query, 3)
        some = [next(stages)]
        index.compact()
        some += stages
        assert_same(last(some), index.search(query, 3))

    def test_closing_ends_it_and_keeps_nobody_waiting(self) -> None:
        index = staged("hnsw")
        for query in cloud(50, 2):
            stages = index.stages(query, 3)
            next(stages)
            stages.close()
            assert list(stages) == []
        index.add(["new"], cloud(1, 3))


class Contest:
    """An index in which some documents stay and others come and go.

    Every document lies far from all others and at its own query, so that a wrong name or a vector
    in a wrong place is seen.
    """

    def __init__(self, kind: str) -> None:
        rng = np.random.default_rng(0)
        self.fixed = rng.normal(size=(40, DIM)).astype(np.float32) * FAR
        self.moving = rng.normal(size=(40, DIM)).astype(np.float32) * FAR
        ids = [*names(300), *(f"fixed {one}" for one in range(40))]
        self.index = StagedIndex(CONNECTED[kind](np.concatenate([cloud(300, 1), self.fixed])), ids)
        if kind == "ivf":
            self.index.index.nprobe = self.index.index.nlist
        elif kind == "hnsw":
            self.index.index.hnsw.efSearch = 600
        self.there = [False] * len(self.moving)
        self.searched = itertools.count()
        self._owned = [threading.Lock() for _ in self.moving]
        self._ends = time.monotonic() + SECONDS

    def nearest(self, query: Vectors) -> Stage:
        return last(list(self.index.stages(query, 1, plan=StagePlan(number=3))))

    def search(self, seed: int) -> None:
        mine = random.Random(seed)
        while time.monotonic() < self._ends:
            one = mine.randrange(len(self.fixed))
            query = self.fixed[one]
            found = self.index.search(query, 1) if mine.random() < 0.5 else self.nearest(query)
            assert found.ids == (f"fixed {one}",)
            assert found.distances[0] == pytest.approx(0, abs=1e-2)
            next(self.searched)

    def change(self, seed: int) -> None:
        mine = random.Random(seed)
        while time.monotonic() < self._ends:
            one = mine.randrange(len(self.moving))
            with self._owned[one]:
                self._change(one, delete=mine.random() < 0.5)

    def _change(self, one: int, *, delete: bool) -> None:
        name, row = f"moving {one}", self.moving[one]
        if not self.there[one]:
            self.index.add([name], row[None])
        elif delete:
            self.index.delete([name])
        else:
            self.index.update([name], row[None])
        self.there[one] = not (self.there[one] and delete)
        if self.index.index.ntotal > MANY:  # deleted ones in a graph
            self.index.compact()
        if self.there[one]:
            np.testing.assert_array_equal(self.index.vectors([name])[0], row)
        assert (self.nearest(row).ids == (name,)) == self.there[one]
        assert (self.index.search(row, 1).ids == (name,)) == self.there[one]


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_threads_that_search_and_change(kind: str) -> None:
    """What is never touched is always found; what is gone is not, from then on."""
    contest = Contest(kind)
    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(contest.search, seed) for seed in range(5)]
        work += [pool.submit(contest.change, seed) for seed in range(3)]
        for one in work:
            one.result()
    assert next(contest.searched) > 20
    assert len(contest.index) == 340 + sum(contest.there)


class TestTheLock:
    def test_readers_are_in_together_and_writers_alone(self) -> None:
        lock = ReadWriteLock()
        state = {"readers": 0, "writers": 0, "most": 0, "written": 0}
        guard = threading.Lock()
        ends = time.monotonic() + SECONDS / 4

        def read() -> None:
            while time.monotonic() < ends:
                with lock.reading():
                    with guard:
                        state["readers"] += 1
                        state["most"] = max(state["most"], state["readers"])
                        assert not state["writers"]
                    time.sleep(0)
                    with guard:
                        state["readers"] -= 1

        def write() -> None:
            while time.monotonic() < ends:
                with lock.writing():
                    state["writers"] += 1
                    assert (state["readers"], state["writers"]) == (0, 1)
                    time.sleep(0)
                    state["writers"] -= 1
                    state["written"] += 1
                time.sleep(1e-4)

        with ThreadPoolExecutor(8) as pool:
            work = [pool.submit(one) for one in [read] * 5 + [write] * 3]
            for one in work:
                one.result()
        assert state["most"] > 1
        assert state["written"] > 3  # readers keep no writer out

    def test_a_writer_waits_for_every_lock_that_is_lent(self) -> None:
        lock = ReadWriteLock()
        first, second = lock.lend(), lock.lend()
        assert first is not second
        written = threading.Event()

        def write() -> None:
            with lock.writing():
                written.set()

        with ThreadPoolExecutor(2) as pool:
            with first, second:
                writer = pool.submit(write)
                while not lock.shut:
                    time.sleep(1e-3)
                behind = pool.submit(lock.wait)
                assert not written.wait(0.05)
                assert not behind.done()
            writer.result()
            behind.result()
        assert not lock.shut
        lock.give_back(first)
        assert lock.lend() is first

    def test_a_search_that_is_neither_ended_nor_going_on_keeps_nobody_out(self) -> None:
        index = staged("hnsw")
        query = cloud(1, 2)[0]
        stages = index.stages(query, 5)
        next(stages)
        index.add(["new"], query[None])
        *_, final = stages
        assert final.ids[0] == "new"

    def test_an_exception_gives_it_back(self) -> None:
        lock = ReadWriteLock()
        for enter in (lock.reading, lock.writing, lock.reading, lock.writing):
            with pytest.raises(ZeroDivisionError), enter():
                raise ZeroDivisionError


def computing() -> list[str]:
    """Threads of ours that are at work."""
    return [
        str(frame)
        for frame in sys._current_frames().values()
        if "vector_search/index.py" in _files(frame)
    ]


def _files(frame: Any) -> str:
    files = ""
    while frame is not None:
        files += frame.f_code.co_filename + " "
        frame = frame.f_back
    return files


class TestCoroutines:
    @pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
    async def test_they_do_the_same(self, kind: str, tmp_path: Any) -> None:
        index = staged(kind)
        query = cloud(1, 2)[0]
        assert await index.asearch(query, 5) == index.search(query, 5)
        stages = [stage async for stage in index.astages(query, 5)]
        assert_same(last(stages), index.search(query, 5))
        await index.aadd(["new"], query[None], [{"n": 1}])
        assert (await index.asearch(query, 1, filter={"n": 1})).ids == ("new",)
        await index.aupdate(["new"], query[None] + 1)
        np.testing.assert_array_equal(await index.avectors(["new"]), query[None] + 1)
        await index.adelete(["new"])
        await index.acompact()
        await index.asave(tmp_path)
        assert (await StagedIndex.aload(tmp_path)).ids == index.ids

    async def test_the_event_loop_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        index = staged("ivf")
        probe = IVFSearch._prepare
        waiting, go_on = threading.Event(), threading.Event()

        def slow(*arguments: Any) -> Any:
            waiting.set()
            assert go_on.wait(10)
            return probe(*arguments)

        monkeypatch.setattr(IVFSearch, "_prepare", slow)
        stages = index.astages(cloud(1, 2)[0], 5)
        task = asyncio.create_task(anext(stages))
        await asyncio.to_thread(waiting.wait, 10)
        assert not task.done()
        go_on.set()
        assert (await task).number == 1
        await stages.aclose()

    async def test_cancelled_while_a_stage_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It waits for the stage; then nothing runs, and nothing is locked."""
        index = staged("ivf")
        probe = IVFSearch._prepare
        waiting, go_on = threading.Event(), threading.Event()
        ended: list[bool] = []

        def slow(*arguments: Any) -> Any:
            waiting.set()
            assert go_on.wait(10)
            ended.append(True)
            return probe(*arguments)

        async def consume() -> None:
            async for _ in index.astages(cloud(1, 2)[0], 5):
                pass

        with monkeypatch.context() as patch:
            patch.setattr(IVFSearch, "_prepare", slow)
            task = asyncio.create_task(consume())
            await asyncio.to_thread(waiting.wait, 10)
            task.cancel()
            await asyncio.sleep(0.01)
            task.cancel()  # impatient
            await asyncio.sleep(0.01)
            assert not task.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended == [True]
            assert computing() == []
        await index.aadd(["new"], cloud(1, 3))

    async def test_who_stops_reading_leaves_nothing(self) -> None:
        index = staged("hnsw")
        before = asyncio.all_tasks()
        for query in cloud(100, 2):
            stages = index.astages(query, 5)
            async for stage in stages:
                if stage.number == 2:
                    break
            await stages.aclose()
        assert asyncio.all_tasks() == before
        assert computing() == []
        await index.adelete(["d1"])

    async def test_cancelled_at_any_moment(self) -> None:
        index = staged("ivf")
        mine = random.Random(0)

        async def consume(query: Any) -> list[Stage]:
            return [stage async for stage in index.astages(query, 5)]

        for query in cloud(200, 2):
            task = asyncio.create_task(consume(query))
            await asyncio.sleep(mine.random() * 3e-3)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert_same(last(await task), index.search(query, 5))
            assert computing() == []
        assert len(asyncio.all_tasks()) == 1

    async def test_a_change_that_is_cancelled_is_made(self) -> None:
        index = staged("hnsw")
        for number in range(20):
            task = asyncio.create_task(index.aadd([f"new {number}"], cloud(1, number)))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert index.ids[-1] == f"new {number}"

    async def test_many_at_once(self) -> None:
        index = staged("hnsw")
        queries = cloud(100, 2)

        async def ask(query: Any) -> None:
            stages = [stage async for stage in index.astages(query, 5)]
            assert_same(last(stages), index.search(query, 5))

        await asyncio.gather(*(ask(query) for query in queries))

    async def test_an_error_of_a_function_in_a_thread(self) -> None:
        def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await in_thread(fail)
        task = asyncio.create_task(in_thread(fail))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, ZeroDivisionError)):
            await task

    async def test_wrong_arguments_are_told_with_the_first_stage(self) -> None:
        with pytest.raises(ValueError, match="k must be"):
            await anext(staged("ivf", cloud(100, 1)).astages(cloud(1, 2)[0], 0))
