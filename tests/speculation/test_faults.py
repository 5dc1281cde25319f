"""Whatever goes wrong, and whenever: the answer is right or the error clear, nothing is left."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from ragcache_integrations.errors import EngineDeadError, EngineError
from ragcache_integrations.speculation import Speculator, StageOfDocuments
from tests.support.waiting import wait_until

from .doubles import (
    BUSY,
    FakeEngine,
    answer_to,
    assert_clean,
    our_threads,
    prompt_of,
    stage,
    stages_in_thread,
    stages_of,
    turns,
)

PLAN = (2, "a"), (9, "b"), (9, "b"), (3, "a"), (4, "c")


@pytest.mark.parametrize("prefill", [0, 4, 30])
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("busy", [False, True])
async def test_cancelled_at_every_turn(*, prefill: int, right: bool, busy: bool) -> None:
    plan = (*PLAN[:-1], (4, "a")) if right else PLAN
    for cancelled_at in range(10_000):
        engine = FakeEngine(prefill, submit_turns=2)
        engine.busy = BUSY if busy else None
        speculator = Speculator(engine, max_prefill_bs=1)
        task = asyncio.create_task(speculator.arun(stages_of(*plan), prompt_of))
        await turns(cancelled_at)
        if task.done():
            assert task.result().generation.text == answer_to(plan[-1][1])
            assert_clean(engine, speculator)
            break
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert_clean(engine, speculator)
    assert cancelled_at > 20


@pytest.mark.parametrize("prefill", [0, 4, 30])
async def test_cancelled_twice(prefill: int) -> None:
    for cancelled_at in range(60):
        engine = FakeEngine(prefill, submit_turns=2)
        speculator = Speculator(engine, max_prefill_bs=1)
        task = asyncio.create_task(speculator.arun(stages_of(*PLAN), prompt_of))
        await turns(cancelled_at)
        for _ in range(3):
            task.cancel()
            await turns(1)
        await asyncio.wait([task])
        await turns(3)
        assert_clean(engine, speculator)


@pytest.mark.parametrize("read", [0, 1, 2])
@pytest.mark.parametrize("how", ["close", "abort", "drop"])
async def test_a_consumer_that_stops_reading(read: int, how: str) -> None:
    engine = FakeEngine(prefill_turns=20)
    speculator = Speculator(engine)
    stream = await speculator.astream(stages_of((1, "a"), (9, "a")), prompt_of)
    for _ in range(read):
        await anext(stream)
    if how == "close":
        await stream.aclose()
        assert_clean(engine, speculator)
    elif how == "abort":
        stream.abort()
    else:
        del stream
        gc.collect()
    await turns(10)
    assert_clean(engine, speculator)
    assert engine.aborted == [(prompt_of("a"), False)]  # these documents were asked for


async def test_aborting_ends_the_iteration_of_somebody_else() -> None:
    engine = FakeEngine(prefill_turns=20)
    stream = await Speculator(engine).astream(stages_of((1, "a")), prompt_of)
    reader = asyncio.create_task(anext(stream, None))
    await turns(3)
    stream.abort()
    assert await reader is None


@pytest.mark.parametrize("raising_stage", [1, 2, 3])
async def test_a_search_that_raises(raising_stage: int) -> None:
    async def failing() -> AsyncIterator[StageOfDocuments[str]]:
        for number in range(1, 4):
            await turns(8)
            if number == raising_stage:
                raise LookupError("the index is gone")
            yield stage("ab"[number % 2])

    engine = FakeEngine()
    speculator = Speculator(engine)
    with pytest.raises(LookupError, match="the index is gone"):
        await speculator.arun(failing(), prompt_of)
    assert_clean(engine, speculator)


async def test_a_search_without_an_end() -> None:
    async def endless() -> AsyncIterator[StageOfDocuments[str]]:
        yield stage("a")
        await turns(10)

    engine = FakeEngine()
    speculator = Speculator(engine)
    with pytest.raises(ValueError, match="without one whose `final` is True"):
        await speculator.arun(endless(), prompt_of)
    assert_clean(engine, speculator)


async def test_stages_are_closed_when_the_request_ends() -> None:
    closed = []

    async def stages() -> AsyncIterator[StageOfDocuments[str]]:
        try:
            await turns(3)
            yield stage("a", final=True)
            raise AssertionError("nobody asked for more")
        finally:
            closed.append(True)

    await Speculator(FakeEngine()).arun(stages(), prompt_of)
    assert closed == [True]


async def test_a_prompt_that_cannot_be_made() -> None:
    def refuse(documents: tuple[str, ...]) -> object:
        raise KeyError(documents[0])

    engine = FakeEngine()
    speculator = Speculator(engine)
    with pytest.raises(KeyError, match="b"):
        await speculator.arun(stages_of((1, "a"), (3, "b")), refuse)  # type: ignore[arg-type]
    assert_clean(engine, speculator)


@pytest.mark.parametrize("moment", range(0, 36, 3))
async def test_an_engine_that_dies(moment: int) -> None:
    engine = FakeEngine()
    speculator = Speculator(engine)
    task = asyncio.create_task(speculator.arun(stages_of(*PLAN), prompt_of))
    await turns(moment)
    engine.breaks = engine.load_breaks = EngineDeadError("killed")
    with pytest.raises(EngineDeadError, match="killed"):
        await task
    assert_clean(engine, speculator)


# Threads


def test_a_synchronous_caller() -> None:
    engine = FakeEngine()
    speculator = Speculator(engine)
    answer = speculator.run(stages_in_thread("a", "b", "b"), prompt_of)
    assert answer.generation.text == answer_to("b")
    assert answer.documents == ("b",)
    with speculator.stream(stages_in_thread("a", "b"), prompt_of) as stream:
        assert stream.documents == ("b",)
        assert "".join(chunk.text for chunk in stream) == answer_to("b")
        assert stream.result().generation.text == answer_to("b")
        assert stream.report.stages == 2
    wait_until(lambda: not our_threads())
    assert not engine.in_flight


async def test_a_synchronous_call_inside_a_running_loop() -> None:
    assert Speculator(FakeEngine()).run(stages_in_thread("a"), prompt_of).documents == ("a",)


def test_a_synchronous_caller_of_an_asynchronous_search() -> None:
    assert Speculator(FakeEngine()).run(stages_of((1, "a")), prompt_of).documents == ("a",)


@pytest.mark.parametrize("how", ["close", "abort", "drop"])
@pytest.mark.parametrize("read", [0, 1])
def test_a_synchronous_consumer_that_stops_reading(how: str, read: int) -> None:
    engine = FakeEngine(prefill_turns=2000)
    speculator = Speculator(engine)
    stream = speculator.stream(stages_in_thread("a", "b"), prompt_of)
    for _ in range(read):
        next(stream)
    if how == "close":
        stream.close()
        assert not [thread for thread in our_threads() if thread.name == "ragcache-speculation"]
    elif how == "abort":
        stream.abort()
        with pytest.raises(EngineError, match="aborted"):
            stream.result()
    del stream
    gc.collect()
    wait_until(lambda: not our_threads())
    assert not engine.in_flight
    assert len(speculator._shared.pool) == 0


def test_a_synchronous_search_that_raises() -> None:
    def failing() -> Iterator[StageOfDocuments[str]]:
        yield stage("a")
        raise LookupError("the index is gone")

    engine = FakeEngine()
    with pytest.raises(LookupError, match="the index is gone"):
        Speculator(engine).run(failing(), prompt_of)
    wait_until(lambda: not our_threads())
    assert not engine.in_flight


async def test_cancelling_does_not_wait_for_a_search_in_a_thread() -> None:
    going_on, may_end, closed = threading.Event(), threading.Event(), threading.Event()

    def stages() -> Iterator[StageOfDocuments[str]]:
        try:
            yield stage("a")
            going_on.set()
            may_end.wait(30)
            yield stage("a", final=True)
        finally:
            closed.set()

    engine = FakeEngine()
    speculator = Speculator(engine)
    task = asyncio.create_task(speculator.arun(stages(), prompt_of))
    await asyncio.to_thread(going_on.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_clean(engine, speculator)
    assert not closed.is_set()
    may_end.set()
    await asyncio.to_thread(closed.wait, 30)
    await asyncio.to_thread(wait_until, lambda: not our_threads())
