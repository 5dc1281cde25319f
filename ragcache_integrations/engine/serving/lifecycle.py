"""From warm to drained: when the server takes requests, and how it ends.

uvicorn listens once the application's start-up is complete, so that warming up then means that
nobody is served before. The signals are taken here rather than by vLLM, which would abort what
runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum
from typing import Any

from .pulse import PulseWatch
from .request_log import RequestLog

__all__ = ["Lifecycle", "State", "engine_died"]

WATCH_SECONDS = 0.25
"""How soon a dead engine is noticed."""


class State(Enum):
    """How the server stands."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


_died = False


def engine_died() -> bool:
    """Whether the engine of a server in this process ended by itself."""
    return _died


class Lifecycle:
    """One server's.

    Args:
        drain_seconds: What running requests are given when the server is told to end.
        log: Is told what happens.
        pulse: Makes what ends engines that hang; ``None`` where none is watched.
    """

    def __init__(
        self,
        drain_seconds: float,
        log: RequestLog,
        pulse: Callable[[float], PulseWatch] | None = None,
    ) -> None:
        self._drain_seconds = drain_seconds
        self._log = log
        self._make_pulse = pulse
        self._state = State.STARTING
        self._engine: Any = None
        self._running: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> State:
        """How the server stands, asking the engine."""
        if self._state is State.READY and self._engine.errored:
            self._note_death()
        return self._state

    async def start(
        self, application_state: Any, warm_up: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Warm up, then take requests and signals.

        Args:
            application_state: The application's, as vLLM fills it.
            warm_up: Has the engine answer something.
        """
        self._engine = application_state.engine_client
        await warm_up(self._engine)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_end, application_state)
        self._state = State.READY
        self._tasks.append(asyncio.create_task(self._watch()))
        self._log.write("ready")

    def stop(self) -> None:
        """Let go of everything; the application has ended."""
        for task in self._tasks:
            task.cancel()
        if self.state is not State.DEAD:  # vLLM may have noticed its death first, and ended
            self._state = State.DRAINING
        self._engine = None

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Surrounds every request that reaches vLLM."""
        task = asyncio.current_task()
        if task is not None:
            self._running.add(task)
            self._idle.clear()
        try:
            yield
        finally:
            if task is not None:
                self._running.discard(task)
            if not self._running:
                self._idle.set()

    def _told_to_end(self, application_state: Any) -> None:
        if self._state is State.DRAINING:
            self._hurry.set()
            return
        self._state = State.DRAINING
        self._tasks.append(asyncio.create_task(self._drain(application_state)))

    async def _drain(self, application_state: Any) -> None:
        self._log.write("draining", running=len(self._running))
        waits = [asyncio.create_task(event.wait()) for event in (self._idle, self._hurry)]
        await asyncio.wait(waits, timeout=self._drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        left = list(self._running)
        for task in left:
            task.cancel()  # as when its client goes away: vLLM aborts it
        self._log.write("ending", aborted=len(left))
        application_state.server.should_exit = True  # vLLM ends so, too, when its engine has died

    async def _watch(self) -> None:
        pulse = self._pulse()
        try:
            while self.state is State.READY:
                if pulse is not None:
                    self._kill_hung(pulse)
                await asyncio.sleep(WATCH_SECONDS)  # vLLM tells nobody
        finally:
            if pulse is not None:
                pulse.close()

    def _pulse(self) -> PulseWatch | None:
        if self._make_pulse is None:
            return None
        try:
            return self._make_pulse(WATCH_SECONDS)
        except OSError as error:
            self._log.write("warning", message=f"an engine that hangs is not noticed: {error}")
            return None

    def _kill_hung(self, pulse: PulseWatch) -> None:
        for words in pulse.kill_hung():
            self._log.write("engine hung", message=words)
            sys.stderr.write(f"ragcache: {words}\n")

    def _note_death(self) -> None:
        global _died  # noqa: PLW0603 - the process's exit status, see launch.py
        _died = True
        self._state = State.DEAD
        self._log.write("engine died")
        sys.stderr.write("ragcache: the engine's process ended, this server ends with it\n")
