"""Answers that are given up, by whatever means: their memory is free again, and nobody waits."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ragcache_integrations.adaptive import (
    AdaptivePipeline,
    AdaptiveSettings,
    MemoryLoad,
    ProfileEstimate,
)
from ragcache_integrations.adaptive.resources import Resources
from tests.support.forking import run_forking

from .askers import ScriptedAsker, said
from .test_gradual import wait_in
from .test_pipeline import (
    QUESTION,
    Memory,
    Profiling,
    Way,
    aretrieve,
    every_way,
    left_clean,
    make,
    retrieve,
    sure,
)

every_mode = pytest.mark.parametrize("mode", ["adaptive", "gradual"])


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@every_mode
@pytest.mark.usefixtures("no_collector")
def test_the_garbage_collector_may_close_a_stream_during_a_choice(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream in a reference cycle, as those of errors, ends wherever the collector runs."""
    pipeline = make(memory=Memory(), mode=mode)
    cycle: list[Any] = [pipeline.stream(QUESTION, retrieve)]
    cycle.append(cycle)
    next(cycle[0])
    del cycle
    assert not left_clean(pipeline)
    choose: Any = pipeline._reservations.choose

    def collecting(*arguments: Any, **more: Any) -> Any:
        *others, chosen = arguments

        def collect(situation: Any) -> Any:
            gc.collect()
            return chosen(situation)

        return choose(*others, collect, **more)

    # It stands for a collector that happens to run then.
    monkeypatch.setattr(pipeline._reservations, "choose", collecting)
    answering = threading.Thread(target=pipeline.answer, args=(QUESTION, retrieve), daemon=True)
    answering.start()
    answering.join(10)
    assert not answering.is_alive()
    assert left_clean(pipeline)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("mode", "choice"), [("adaptive", 1), ("gradual", 1), ("gradual", 2)])
def test_an_event_loop_that_is_closed_during_a_choice_leaves_no_memory_reserved(
    mode: Any, choice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without being cancelled, as by a program that stops its loop."""
    asker = ScriptedAsker(lambda _: said("It is not in the document."))
    pipeline = make(memory=Memory(), asker=asker, mode=mode)
    choosing, closed = wait_in(pipeline, choice, monkeypatch)

    async def begin() -> None:
        answering = asyncio.ensure_future(pipeline.aanswer(QUESTION, aretrieve))
        assert await asyncio.to_thread(choosing.wait, 10)
        assert not answering.done()

    loop = asyncio.new_event_loop()
    threads = ThreadPoolExecutor()
    loop.set_default_executor(threads)
    loop.run_until_complete(begin())
    threads.shutdown(wait=False)
    loop.close()
    gc.collect()
    closed.set()
    threads.shutdown()
    gc.collect()
    assert left_clean(pipeline)


@every_mode
def test_an_interruption_during_a_choice_leaves_no_memory_reserved(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make(memory=Memory(), mode=mode)
    choose = pipeline._choose

    def interrupted(*args: Any) -> bool:
        choose(*args)
        raise KeyboardInterrupt

    # It stands for a user who interrupts it then.
    monkeypatch.setattr(pipeline, "_choose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.answer(QUESTION, retrieve)
    assert left_clean(pipeline)


def test_a_forked_process_answers_none_of_its_parents_questions() -> None:
    assert run_forking("tests.adaptive.forks", anew=True) == "done\n"


def test_a_question_that_is_cancelled_does_not_wait_for_the_start_of_an_engine() -> None:
    starting, started = threading.Event(), threading.Event()

    def start() -> Resources:
        starting.set()
        assert started.wait(10)
        return Resources(Memory())

    async def find_nothing(question: str, count: int) -> list[Any]:
        return []

    async def cancel() -> float:
        first = asyncio.ensure_future(pipeline.aanswer(QUESTION, aretrieve))
        assert await asyncio.to_thread(starting.wait, 10)
        second = asyncio.ensure_future(pipeline.aanswer(QUESTION, find_nothing))
        await asyncio.sleep(0.1)
        second.cancel()
        began = time.perf_counter()
        await asyncio.wait({second})
        took = time.perf_counter() - began
        started.set()
        await first
        return took

    settings = AdaptiveSettings(mode="gradual")
    pipeline = AdaptivePipeline(ScriptedAsker(), Profiling(sure()), settings, resources=start)
    threading.Timer(3, started.set).start()
    assert asyncio.run(cancel()) < 2


@every_way
@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
def test_whatever_ends_the_profiler_costs_no_answer(way: Way, error: type[BaseException]) -> None:
    class Ending:
        def profile(self, question: str) -> ProfileEstimate:
            raise error

        async def aprofile(self, question: str) -> ProfileEstimate:
            raise asyncio.CancelledError  # an event loop ends with the other

    began = time.perf_counter()
    answer = way(make(Ending(), Memory(), mode="gradual", profile_timeout=5.0))
    assert time.perf_counter() - began < 4
    assert answer.text == "yes"
    assert not answer.explanation.trusted
    assert answer.explanation.estimate is not None
    assert answer.explanation.estimate.problem != "the profiler did not answer in time"


@every_way
@pytest.mark.parametrize("error", [ValueError, StopIteration])
@pytest.mark.parametrize("reading", [1, 2])
def test_whatever_the_source_of_the_load_runs_into_costs_no_answer(
    way: Way, error: type[Exception], reading: int
) -> None:
    class Broken(Memory):
        readings = 0

        def read(self) -> MemoryLoad:
            self.readings += 1
            if self.readings == reading:
                raise error
            return super().read()

    answers = iter([said("It is not in the document."), said("yes", -0.5)])
    asker = ScriptedAsker(lambda _: next(answers))
    pipeline = make(memory=Broken(), asker=asker, mode="gradual")
    assert way(pipeline).text == "yes"
    assert left_clean(pipeline)
