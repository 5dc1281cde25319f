"""When the server accepts requests, and how it ends.

uvicorn listens once the application's start-up is complete, so that no request is served before the
warm-up, which is part of it. The signals are handled here rather than by vLLM, which would abort
running requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum
from typing import Any

from .observing import RequestLog
from .reports import PulseWatch
from .settings import ServingSettings

__all__ = ["Lifecycle", "State", "engine_died"]

WATCH_SECONDS = 0.25
"""Seconds between two checks of the engine."""


class State(Enum):
    """What the server is doing."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


_died = False


def engine_died() -> bool:
    """Whether the engine of a server in this process has died."""
    return _died


class Lifecycle:
    """The start and end of one server.

    Args:
        settings: The server's settings.
        log: Gets a line for each change.
    """

    def __init__(self, settings: ServingSettings, log: RequestLog) -> None:
        self._settings = settings
        self._log = log
        self._state = State.STARTING
        self._engine: Any = None
        self._running: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> State:
        """The current state; checks whether the engine is alive."""
        if self._state is State.READY and self._engine.errored:
            self._note_death()
        return self._state

    async def start(
        self, application_state: Any, warm_up: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Warm up, then accept requests and handle signals.

        Args:
            application_state: The application's state, as filled by vLLM.
            warm_up: Makes the engine answer a request.
        """
        self._engine = application_state.engine_client
        await warm_up(self._engine)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end_on_signal, application_state)
        self._state = State.READY
        self._tasks.append(asyncio.create_task(self._watch()))
        self._log.write("ready")

    def stop(self) -> None:
        """Release everything after the application's end."""
        for task in self._tasks:
            task.cancel()
        if self.state is not State.DEAD:  # vLLM may have noticed the death first, and ended
            self._state = State.DRAINING
        self._engine = None

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Count a request as running; for every request that reaches vLLM."""
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

    def _end_on_signal(self, application_state: Any) -> None:
        if self._state is State.DRAINING:
            self._hurry.set()
            return
        self._state = State.DRAINING
        self._tasks.append(asyncio.create_task(self._drain(application_state)))

    async def _drain(self, application_state: Any) -> None:
        self._log.write("draining", running=len(self._running))
        waits = [asyncio.create_task(event.wait()) for event in (self._idle, self._hurry)]
        await asyncio.wait(
            waits, timeout=self._settings.drain_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for wait in waits:
            wait.cancel()
        left = list(self._running)
        for task in left:
            task.cancel()  # as if its client had disconnected: vLLM aborts it
        self._log.write("ending", aborted=len(left))
        # vLLM ends this way, too, when its engine has died.
        application_state.server.should_exit = True

    async def _watch(self) -> None:
        pulse = self._pulse()
        try:
            while self.state is State.READY:
                for words in () if pulse is None else pulse.kill_hung():
                    self._log.write("engine hung", message=words)
                    sys.stderr.write(f"ragcache: {words}\n")
                await asyncio.sleep(WATCH_SECONDS)  # vLLM does not report the death
        finally:
            if pulse is not None:
                pulse.close()

    def _pulse(self) -> PulseWatch | None:
        """What finds engines that hang; ``None`` if it is switched off or impossible."""
        settings = self._settings
        limits = settings.hang_timeout, settings.step_timeout
        if not settings.folder or limits == (None, None):
            return None
        try:
            return PulseWatch(settings.folder, WATCH_SECONDS, *limits)
        except OSError as error:
            self._log.write("warning", message=f"an engine that hangs is not noticed: {error}")
            return None

    def _note_death(self) -> None:
        global _died  # noqa: PLW0603 - the process's exit status, see launch.py
        _died = True
        self._state = State.DEAD
        self._log.write("engine died")
        sys.stderr.write("ragcache: the engine's process ended, this server ends with it\n")
