"""Where LLM classes get their backend from: made late, once, shared, and closed when due."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from blockbuster import BlockBuster

from ragcache_integrations.errors import EngineClosedError, EngineStartError
from ragcache_integrations.llms.backend import Backend, BackendSource


class Fake:
    """Stands for an engine, of which this test would need dozens; only its life is looked at."""

    def __init__(self, factory: Factory) -> None:
        self._factory = factory
        self.closed = False
        self.is_closed = threading.Event()

    def close(self) -> None:
        self.closed = True
        self._factory.closed += 1
        self.is_closed.set()

    async def aclose(self) -> None:
        self.closed_in = asyncio.get_running_loop()
        self.close()


class Factory:
    """Counts what it makes; ``gate`` holds it up, ``failures`` is how often it fails first."""

    def __init__(self, failures: int = 0) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()
        self.made = self.closed = 0
        self.failures = failures

    def __call__(self) -> Backend:
        self.started.set()
        assert self.gate.wait(10)
        if self.failures:
            self.failures -= 1
            msg = "no memory"
            raise EngineStartError(msg)
        self.made += 1
        return cast("Backend", Fake(self))

    def source(self, key: Any = "one") -> BackendSource:
        return BackendSource(make=self, key=(self, key))


def test_nothing_is_made_before_it_is_needed() -> None:
    factory = Factory()
    source = factory.source()
    assert factory.made == 0
    assert source.get() is source.get()
    assert factory.made == 1
    source.close()
    assert factory.closed == 1


def test_unused_it_is_never_made() -> None:
    factory = Factory()
    factory.source().close()
    assert (factory.made, factory.closed) == (0, 0)


def test_threads_and_loops_that_come_at_once_share_one() -> None:
    factory = Factory()
    factory.gate.clear()
    source = factory.source()

    async def aget() -> list[Backend]:
        return await asyncio.gather(*(source.aget() for _ in range(50)))

    with ThreadPoolExecutor(16) as pool:
        plain = [pool.submit(source.get) for _ in range(8)]
        loops = [pool.submit(asyncio.run, aget()) for _ in range(8)]
        assert factory.started.wait(10)
        factory.gate.set()
        got = [future.result() for future in plain]
        got += [backend for future in loops for backend in future.result()]
    assert len(got) == 8 + 8 * 50
    assert len(set(map(id, got))) == 1
    assert factory.made == 1
    source.close()


def test_a_failure_reaches_all_who_wait_and_is_not_for_ever() -> None:
    factory = Factory(failures=1)
    factory.gate.clear()
    source = factory.source()
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(source.get) for _ in range(4)]
        waiting += [pool.submit(asyncio.run, source.aget()) for _ in range(4)]
        assert factory.started.wait(10)
        # Whoever comes after the failure tries anew, so all must be waiting before it.
        while sum(future.running() for future in waiting) < 8:
            threading.Event().wait(0.01)
        factory.gate.set()
        errors = [future.exception() for future in waiting]
    assert any(isinstance(error, EngineStartError) for error in errors)
    source.get()
    assert factory.made == 1
    source.close()
    assert factory.closed == 1


async def test_waiting_for_the_start_blocks_nothing(no_blocking: BlockBuster) -> None:
    factory = Factory()
    factory.gate.clear()
    source = factory.source()
    waiting = [asyncio.create_task(source.aget()) for _ in range(100)]
    assert await asyncio.to_thread(factory.started.wait, 10)
    factory.gate.set()
    assert len({id(backend) for backend in await asyncio.gather(*waiting)}) == 1
    await source.aclose()
    assert factory.closed == 1


async def test_a_backend_is_closed_in_the_loop_that_asks_for_it() -> None:
    """A server's connections belong to the loop that opened them."""
    source = Factory().source()
    backend = await source.aget()
    await source.aclose()
    assert cast("Fake", backend).closed_in is asyncio.get_running_loop()


async def test_a_backend_in_the_making_is_closed_when_it_is_made() -> None:
    factory = Factory()
    factory.gate.clear()
    source = factory.source()
    waiting = asyncio.create_task(source.aget())
    assert await asyncio.to_thread(factory.started.wait, 10)
    await source.aclose()
    assert not factory.closed
    factory.gate.set()
    made = cast("Fake", await waiting)
    # By the thread that made it, just after it says so.
    assert await asyncio.to_thread(made.is_closed.wait, 60)


async def test_cancelling_one_who_waits_disturbs_nobody() -> None:
    factory = Factory()
    factory.gate.clear()
    source = factory.source()
    first, second = (asyncio.create_task(source.aget()) for _ in range(2))
    assert await asyncio.to_thread(factory.started.wait, 10)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    factory.gate.set()
    assert await second is source.get()
    assert factory.made == 1
    source.close()


def test_a_loop_closed_while_it_waited() -> None:
    factory = Factory()
    factory.gate.clear()
    source = factory.source()

    async def give_up() -> None:
        async with asyncio.timeout(0.01):
            await source.aget()

    with pytest.raises(TimeoutError):
        asyncio.run(give_up())
    factory.gate.set()
    source.get()
    assert factory.made == 1
    source.close()


def test_equal_wishes_share_and_the_last_one_closes() -> None:
    factory = Factory()
    one, two, other = factory.source(), factory.source(), factory.source("other")
    assert one.get() is two.get()
    assert one.get() is not other.get()
    one.close()
    one.close()
    assert factory.closed == 0
    assert two.get() is not None
    two.close()
    assert factory.closed == 1
    again = factory.source()
    again.get()
    assert factory.made == 3
    again.close()
    other.close()


def test_a_closed_source_refuses() -> None:
    factory = Factory()
    source, other = factory.source(), factory.source()
    source.close()
    with pytest.raises(EngineClosedError):
        source.get()
    with pytest.raises(EngineClosedError):
        asyncio.run(source.aget())
    other.get()
    other.close()


def test_collected_sources_close_it() -> None:
    factory = Factory()
    sources = [factory.source(), factory.source()]
    sources[0].get()
    del sources[0]
    gc.collect()
    assert factory.closed == 0
    del sources[0]
    gc.collect()
    assert factory.closed == 1


def test_closed_while_it_is_made() -> None:
    """The engine that then comes up is closed at once; nobody is left to use it."""
    factory = Factory()
    factory.gate.clear()
    source = factory.source()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(source.get)
        assert factory.started.wait(10)
        source.close()
        assert factory.closed == 0
        factory.gate.set()
        waiting.result()
    assert (factory.made, factory.closed) == (1, 1)


def test_a_given_one_is_never_closed() -> None:
    factory = Factory()
    source = BackendSource(factory())
    assert source.get() is asyncio.run(source.aget())
    source.close()
    asyncio.run(source.aclose())
    del source
    gc.collect()
    assert factory.closed == 0


def test_a_given_one_is_not_given_any_more_after_close() -> None:
    source = BackendSource(Factory()())
    source.close()
    with pytest.raises(EngineClosedError):
        source.get()


def test_opening_and_closing_from_many_threads() -> None:
    """Whatever the interleaving, nothing that was made stays open and nobody gets a closed one."""
    factory = Factory()

    def live() -> None:
        for _ in range(50):
            source = factory.source()
            assert not cast("Fake", source.get()).closed
            source.close()

    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(live) for _ in range(16)]:
            future.result()
    assert factory.made == factory.closed >= 1
