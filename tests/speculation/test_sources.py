"""Searches as sources of stages."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest

from ragcache_integrations.speculation import (
    Speculator,
    StageOfDocuments,
    stage_of_search,
    stages_of_pair,
)

from .doubles import FakeEngine, assert_clean, prompt_of


async def found(documents: str, seconds: float = 0.0) -> list[str]:
    await asyncio.sleep(seconds)
    return list(documents)


async def test_any_search_is_one_final_stage() -> None:
    async def search() -> list[str]:
        return await found("ab")

    for one in (search, lambda: ["a", "b"], lambda: found("ab")):
        stages = [stage async for stage in stage_of_search(one)]
        assert stages == [StageOfDocuments(("a", "b"), final=True)]


async def test_a_synchronous_search_runs_in_a_thread() -> None:
    threads = []

    def search() -> list[str]:
        threads.append(threading.current_thread())
        return ["a"]

    answer = await Speculator(FakeEngine()).arun(stage_of_search(search), prompt_of)
    assert answer.documents == ("a",)
    assert threads[0] is not threading.current_thread()


async def test_a_fast_search_is_guessed_from() -> None:
    pair = stages_of_pair(lambda: found("ab"), lambda: found("ab", 0.05))
    answer = await Speculator(FakeEngine()).arun(pair, prompt_of)
    assert answer.report.confirmed
    assert answer.report.stages == 2
    pair = stages_of_pair(lambda: found("ac"), lambda: found("ab", 0.05))
    answer = await Speculator(FakeEngine()).arun(pair, prompt_of)
    assert answer.documents == ("a", "b")
    assert answer.report.aborted == 1


async def test_both_searches_of_a_pair_run_at_once() -> None:
    began = time.monotonic()
    pair = stages_of_pair(lambda: found("a", 0.2), lambda: found("a", 0.25))
    await Speculator(FakeEngine()).arun(pair, prompt_of)
    assert time.monotonic() - began < 0.44


async def test_a_fast_search_that_comes_last_is_not_waited_for() -> None:
    pair = stages_of_pair(lambda: found("a", 60), lambda: found("b", 0.01))
    assert [stage async for stage in pair] == [StageOfDocuments(("b",), final=True)]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_fast_search_that_fails_is_no_harm() -> None:
    def fail() -> list[str]:
        raise LookupError("no small index")

    pair = stages_of_pair(fail, lambda: found("b", 0.05))
    assert [stage async for stage in pair] == [StageOfDocuments(("b",), final=True)]


async def test_a_slow_search_that_fails_is_the_requests_error() -> None:
    def fail() -> list[str]:
        time.sleep(0.05)
        raise LookupError("the store is down")

    engine = FakeEngine()
    speculator = Speculator(engine)
    with pytest.raises(LookupError, match="the store is down"):
        await speculator.arun(stages_of_pair(lambda: found("a"), fail), prompt_of)
    assert_clean(engine, speculator)


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.03, 0.06])
async def test_a_pair_that_is_cancelled_leaves_nothing(moment: float) -> None:
    engine = FakeEngine(prefill_turns=10**9)  # not over before it is cancelled
    speculator = Speculator(engine)
    pair = stages_of_pair(partial(found, "a", 0.02), partial(found, "b", 0.04))
    task = asyncio.create_task(speculator.arun(pair, prompt_of))
    await asyncio.sleep(moment)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert_clean(engine, speculator)
