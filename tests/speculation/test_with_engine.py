"""On the real engine: the same answers as without, and nothing left behind.

The stress test asks as much as the profile says (``tests/support/sizes.py``).
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from ragcache_integrations.engine import (
    EngineLoad,
    Prompt,
    PromptDocument,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_integrations.errors import EngineDeadError
from ragcache_integrations.resources import load_passages
from ragcache_integrations.speculation import SpeculativeAnswer, Speculator, StageOfDocuments
from tests.support.sizes import scaled

from .doubles import assert_no_threads

pytestmark = pytest.mark.engine

REQUESTS = scaled(160)
THREADS = TASKS = 8
SHORT = SamplingOptions(max_tokens=4, ignore_eos=True)
LONG = SamplingOptions(max_tokens=2000, ignore_eos=True)

TEXTS = [passage.text for passage in load_passages()[:60]]
DOCUMENTS = {  # longer than a block of the KV cache
    name: PromptDocument(" ".join(TEXTS[6 * number : 6 * number + 6]), name)
    for number, name in enumerate("abcdefgh")
}


def prompt_of(names: Sequence[str]) -> Prompt:
    return Prompt.rag("What do they say?", [DOCUMENTS[name] for name in names], system="Answer.")


async def stages_of(*plan: tuple[float, str]) -> AsyncIterator[StageOfDocuments[str]]:
    for number, (seconds, names) in enumerate(plan, 1):
        await asyncio.sleep(seconds)
        yield StageOfDocuments(tuple(names), number == len(plan))


def stages_in_thread(*plan: tuple[float, str]) -> Iterator[StageOfDocuments[str]]:
    for number, (seconds, names) in enumerate(plan, 1):
        time.sleep(seconds)
        yield StageOfDocuments(tuple(names), number == len(plan))


def idle_load(engine: RAGCacheEngine, seconds: float = 20.0) -> EngineLoad:
    """Its load once it has nothing to do; aborts take effect between steps."""
    deadline = time.monotonic() + seconds
    while True:
        load = engine.load()
        busy = load.running_requests + load.waiting_requests
        if not busy and load.free_kv_tokens == load.total_kv_tokens:
            return load
        assert time.monotonic() < deadline, load
        time.sleep(0.02)


def assert_clean(engine: RAGCacheEngine, speculator: Speculator) -> None:
    """No request in the engine, no pinned node in its tree, nobody in the pool, no thread."""
    idle_load(engine)
    assert not engine._process.exchange._pending
    tree = engine.tree()
    assert tree is not None
    assert not [node for node in tree.nodes() if node.place == "in use"]
    assert len(speculator._shared.pool) == 0
    assert_no_threads()


def frequencies(engine: RAGCacheEngine) -> dict[str, int]:
    tree = engine.tree()
    assert tree is not None
    return {node.name: node.frequency for node in tree.nodes() if node.name}


def test_the_answer_is_the_one_without_speculation(engine: RAGCacheEngine) -> None:
    engine.reset_cache()
    expected = engine.generate(prompt_of("ab"), SHORT, namespace="reference")
    plain = Speculator(engine, speculate=False)
    speculator = Speculator(engine)
    for plan in ([(0.0, "ab")], [(0.0, "ac"), (0.1, "ab")], [(0.0, "ab"), (0.3, "ab")]):
        for one in (plain, speculator):
            answer = one.run(stages_in_thread(*plan), prompt_of, SHORT)
            assert answer.generation.token_ids == expected.token_ids
            assert answer.documents == ("a", "b")
    assert speculator.stats().guesses == 2
    assert_clean(engine, speculator)


async def test_a_right_guess_has_its_tokens_when_the_search_ends(engine: RAGCacheEngine) -> None:
    speculator = Speculator(engine)
    stream = await speculator.astream(stages_of((0, "cd"), (3.0, "cd")), prompt_of, SHORT)
    report = stream.report
    assert report.confirmed
    assert "first token" in {event.what for event in report.events}
    assert report.overlapped_seconds == pytest.approx(3.0, abs=0.5)
    began = time.monotonic()
    chunks = [chunk async for chunk in stream]
    assert time.monotonic() - began < 1.0
    assert sum(len(chunk.token_ids) for chunk in chunks) == 4
    await asyncio.to_thread(assert_clean, engine, speculator)


@pytest.mark.parametrize("search_seconds", [0.02, 2.0])
def test_a_wrong_guess_does_not_count_in_the_trees_frequencies(
    engine: RAGCacheEngine, search_seconds: float
) -> None:
    """Neither when it is terminated in its prefill nor when it was answered long before."""
    idle_load(engine)
    engine.reset_cache()
    speculator = Speculator(engine)
    stages = stages_in_thread((0.0, "ac"), (search_seconds, "ab"))
    answer = speculator.run(stages, prompt_of, SHORT)
    assert answer.report.aborted == 1
    idle_load(engine)
    assert {name: frequencies(engine)[name] for name in "ab"} == {"a": 1, "b": 1}
    assert frequencies(engine).get("c", 0) == 0


def test_what_a_wrong_guess_computed_serves_the_next_prompt(engine: RAGCacheEngine) -> None:
    idle_load(engine)
    engine.reset_cache()
    stages = stages_in_thread((0.0, "ac"), (2.0, "ab"))
    answer = Speculator(engine).run(stages, prompt_of, SHORT)
    assert answer.generation.usage.cached_tokens >= engine.block_size
    assert answer.report.wasted_prefill_tokens > engine.count_tokens(DOCUMENTS["c"].text)


def test_requests_that_are_being_prefilled_are_told_apart(engine: RAGCacheEngine) -> None:
    engine.reset_cache()
    stream = engine.stream(prompt_of("defgh"), LONG)
    seen = set()
    deadline = time.monotonic() + 20
    while (1, 0) not in seen and time.monotonic() < deadline:
        load = engine.load()
        seen.add((load.running_requests, load.prefilling_requests))
    stream.close()
    assert (1, 0) in seen  # it decodes
    assert max(prefilling for _, prefilling in seen) <= 1
    idle_load(engine)


class Load:
    """Requests that end in all kinds of ways, each by its number."""

    def __init__(self, engine: RAGCacheEngine, speculator: Speculator) -> None:
        self.speculator = speculator
        self.expected = {
            names: engine.generate(prompt_of(names), SHORT, namespace="reference").token_ids
            for names in ("a", "b", "c", "ab")
        }
        self.wrong: list[object] = []
        self.endings: list[str] = []

    def plan(self, chance: random.Random) -> list[tuple[float, str]]:
        return [
            (chance.uniform(0, 0.02), chance.choice(list(self.expected)))
            for _ in range(chance.randint(1, 4))
        ]

    def check(self, plan: list[tuple[float, str]], answer: SpeculativeAnswer[str]) -> None:
        self.endings.append("answered")
        if answer.generation.token_ids != self.expected[plan[-1][1]]:
            self.wrong.append((plan, answer))

    def in_thread(self, numbers: range) -> None:
        for number in numbers:
            chance = random.Random(number)
            plan, read = self.plan(chance), chance.choice([0, 1, 2, None, None])
            try:
                self.ask(plan, read)
            except Exception as error:
                self.wrong.append(error)

    def ask(self, plan: list[tuple[float, str]], read: int | None) -> None:
        with self.speculator.stream(stages_in_thread(*plan), prompt_of, SHORT) as stream:
            if read is None:
                self.check(plan, stream.result())
                return
            for _ in range(read):
                next(stream)
            self.endings.append("given up")

    async def in_task(self, number: int) -> None:
        chance = random.Random(number)
        plan = self.plan(chance)
        running = asyncio.create_task(self.speculator.arun(stages_of(*plan), prompt_of, SHORT))
        if chance.random() < 0.6:
            await asyncio.sleep(chance.uniform(0, 0.15))
            running.cancel()
        try:
            self.check(plan, await running)
        except asyncio.CancelledError:
            self.endings.append("cancelled")

    async def in_tasks(self, numbers: range) -> None:
        for first in range(numbers.start, numbers.stop, TASKS):
            some = range(first, min(first + TASKS, numbers.stop))
            await asyncio.gather(*map(self.in_task, some))
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.timeout(3600 if REQUESTS > 1000 else 300)
def test_random_cancellations_leave_nothing_behind(engine: RAGCacheEngine) -> None:
    speculator = Speculator(engine)
    load = Load(engine, speculator)
    half = REQUESTS // 2
    threads = [
        threading.Thread(target=load.in_thread, args=(range(first, half, THREADS),))
        for first in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    asyncio.run(load.in_tasks(range(half, REQUESTS)))
    for thread in threads:
        thread.join()
    assert not load.wrong
    assert len(load.endings) == REQUESTS
    assert set(load.endings) == {"answered", "given up", "cancelled"}
    assert_clean(engine, speculator)


def test_an_engine_that_is_killed_in_the_middle_and_stays_dead() -> None:
    with RAGCacheEngine(
        kv_cache_gib=0.125, max_restarts=0, vllm_args={"enforce_eager": True}
    ) as engine:
        speculator = Speculator(engine)
        errors: list[BaseException] = []

        def ask(*plan: tuple[float, str]) -> None:
            try:
                speculator.run(stages_in_thread(*plan), prompt_of, LONG)
            except BaseException as error:
                errors.append(error)

        async def aask(*plan: tuple[float, str]) -> None:
            await speculator.arun(stages_of(*plan), prompt_of, LONG)

        async def aask_all() -> tuple[BaseException | None, ...]:
            results = await asyncio.gather(
                aask((0.0, "a"), (3.0, "a")), aask((0.0, "b")), return_exceptions=True
            )
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return results

        plans = [[(0.0, "a"), (3.0, "a")], [(0.0, "c"), (3.0, "d")], [(0.0, "e")]]
        threads = [threading.Thread(target=ask, args=plan) for plan in plans]
        for thread in threads:
            thread.start()
        threading.Timer(1.0, os.kill, (engine.pid, signal.SIGKILL)).start()
        results = asyncio.run(aask_all())
        for thread in threads:
            thread.join(30)
        assert [type(error) for error in [*errors, *results]] == [EngineDeadError] * 5
        assert len(speculator._shared.pool) == 0
        assert_no_threads()
        with pytest.raises(EngineDeadError):
            speculator.run(stages_in_thread((0.0, "a")), prompt_of)
