"""When the server takes requests, and how it ends. The engine alone is a double here: one that dies
when it is told to.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from ragcache_integrations.engine.serving import lifecycle
from ragcache_integrations.engine.serving.lifecycle import Lifecycle, State
from ragcache_integrations.engine.serving.observing import RequestLog
from ragcache_integrations.engine.serving.settings import ServingSettings


class World:
    def __init__(self, drain_seconds: float) -> None:
        self.written = io.StringIO()
        self.engine = SimpleNamespace(errored=False)
        self.server = SimpleNamespace(should_exit=False)
        self.warm: list[Any] = []
        settings = ServingSettings(drain_seconds=drain_seconds)
        self.lifecycle = Lifecycle(settings, RequestLog(self.written))

    async def start(self) -> Lifecycle:
        async def warm_up(engine: Any) -> None:
            assert self.lifecycle.state is State.STARTING
            self.warm.append(engine)

        state = SimpleNamespace(engine_client=self.engine, server=self.server)
        await self.lifecycle.start(state, warm_up)
        return self.lifecycle

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.written.getvalue().splitlines()]

    async def until_exit(self) -> None:
        async with asyncio.timeout(20):
            while not self.server.should_exit:  # noqa: ASYNC110 - uvicorn looks, too
                await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_died", False)


async def test_it_is_ready_when_it_is_warm() -> None:
    world = World(10)
    assert world.lifecycle.state.value == "starting"
    await world.start()
    assert world.lifecycle.state.value == "ready"
    assert world.warm == [world.engine]
    assert [event["event"] for event in world.events] == ["ready"]
    world.lifecycle.stop()
    assert world.lifecycle.state is State.DRAINING


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_runs_may_end(number: signal.Signals) -> None:
    world = World(10)
    running = await world.start()
    release = asyncio.Event()

    async def request() -> str:
        with running.serving():
            await release.wait()
            return "answered"

    tasks = [asyncio.create_task(request()) for _ in range(3)]
    await asyncio.sleep(0)
    os.kill(os.getpid(), number)
    await asyncio.sleep(0.05)
    assert running.state is State.DRAINING
    assert not world.server.should_exit
    release.set()
    assert await asyncio.gather(*tasks) == ["answered"] * 3
    await world.until_exit()
    assert [event["event"] for event in world.events] == ["ready", "draining", "ending"]
    assert world.events[1]["running"] == 3
    assert world.events[2]["aborted"] == 0
    assert not lifecycle.engine_died()


@pytest.mark.parametrize("signals", [1, 2])
async def test_what_takes_too_long_is_cancelled(signals: int) -> None:
    """After its time is over, or at the second signal."""
    world = World(0.05 if signals == 1 else 60)
    running = await world.start()

    async def request() -> None:
        with running.serving():
            await asyncio.Event().wait()

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    for _ in range(signals):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.02)
    await world.until_exit()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.events[-1]["aborted"] == 1


async def test_nothing_runs() -> None:
    world = World(60)
    await world.start()
    os.kill(os.getpid(), signal.SIGTERM)
    await world.until_exit()


async def test_a_dead_engine_is_noticed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    world = World(10)
    running = await world.start()
    world.engine.errored = True
    assert running.state is State.DEAD
    assert lifecycle.engine_died()
    assert world.events[-1]["event"] == "engine died"
    assert "the engine's process ended" in capsys.readouterr().err
    running.stop()
    assert running.state is State.DEAD


async def test_a_dead_engine_is_noticed_though_nobody_asks() -> None:
    world = World(10)
    running = await world.start()
    world.engine.errored = True
    async with asyncio.timeout(10):
        while not lifecycle.engine_died():  # noqa: ASYNC110 - so does the process
            await asyncio.sleep(0.05)
    running.stop()


async def test_a_dead_engine_of_which_vllm_heard_first() -> None:
    """It ends the application then, which may be before anybody looks."""
    world = World(10)
    running = await world.start()
    world.engine.errored = True
    running.stop()
    assert running.state is State.DEAD
    assert lifecycle.engine_died()
    assert world.events[-1]["event"] == "engine died"


async def test_an_engine_that_ends_while_draining_has_not_died() -> None:
    world = World(10)
    running = await world.start()
    os.kill(os.getpid(), signal.SIGTERM)
    await world.until_exit()
    world.engine.errored = True
    assert running.state is State.DRAINING
    assert not lifecycle.engine_died()
