"""Does the work of concurrent calls for the same key once, across threads and event loops."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Executor, Future
from typing import Any, Generic, Literal, TypeVar

from .forks import make_lock, renew_after_fork

__all__ = ["Role", "SingleFlight"]

V = TypeVar("V")

Role = Literal["found", "led", "joined"]
"""How a call got its value: it existed, this call did the work, or another call did."""


# A key, and the event loop if the work is a coroutine.
_Slot = tuple[Hashable, asyncio.AbstractEventLoop | None]


class _AbandonedError(Exception):
    """The work ended without a result because it was cancelled or interrupted."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(reason)
        self.reason = reason


class _Flight(Generic[V]):
    """Work in progress. Mostly nobody waits for it, and then it needs no future, which is costly.

    Attributes:
        result: What other calls wait for; ``None`` until there is one.
        task: The work, where it is a coroutine.
        waiting: Number of coroutines that wait for it.
    """

    def __init__(self) -> None:
        self.result: Future[V] | None = None
        self.task: asyncio.Task[V] | None = None
        self.waiting = 0

    def join(self) -> Future[V]:
        """Return what to wait for. The lock is held."""
        if self.result is None:
            self.result = Future()
        return self.result


class SingleFlight(Generic[V]):
    """Does the work for a key once for all calls at the same time.

    Every call first looks up the value, and the work stores it. Calls that find their value don't
    wait for each other. All calls that wait for the work get its exception, and the next call tries
    again. If the work was cancelled or interrupted, the calls that waited try again themselves.

    Work that can run in a thread is shared by all threads and event loops. Work that is a coroutine
    is shared within its event loop only: other threads cannot know whether the loop is alive, and a
    thread that waited for it could be the one that the loop needs to continue. The coroutine runs
    in a separate task, so that cancelling one caller does not affect the others; when the last one
    is cancelled, so is the task.

    Args:
        executor: Runs the work of coroutines that can run in a thread. Functions that wait for this
            object must not run there.

    Attributes:
        landed: How much work has ended.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = make_lock()
        self._flights: dict[_Slot, _Flight[V]] = {}
        self.landed = 0
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._flights = {}  # the work continues in the parent only

    def do(
        self,
        key: Hashable,
        find: Callable[[], V | None],
        work: Callable[[], V],
        *,
        looked: int | None = None,
    ) -> tuple[V, Role]:
        """Return the value for a key.

        Args:
            key: Identifies the value.
            find: Looks up the value; ``None`` if there is none. It is called again under a lock if
                other work has ended in the meantime, so it must be quick.
            work: Makes the value, and stores it where ``find`` looks it up.
            looked: Where the caller has looked the value up in vain: ``landed`` before that.
        """
        slot = (key, None)
        while True:
            landed = self.landed if looked is None else looked
            value = find() if looked is None else None
            looked = None
            if value is not None:
                return value, "found"
            with self._lock:
                # Work that ended in the meantime may have stored it.
                value = None if self.landed == landed else find()
                if value is not None:
                    return value, "found"
                flight = self._flights.get(slot)
                result = None if flight is None else flight.join()
                if flight is None:
                    flight = self._flights[slot] = _Flight()
            if result is None:
                return self._fly(slot, flight, work), "led"
            with contextlib.suppress(_AbandonedError):
                return result.result(), "joined"

    async def ado(
        self,
        key: Hashable,
        find: Callable[[], V | None],
        work: Callable[[], V],
        awork: Callable[[], Coroutine[Any, Any, V]] | None = None,
        *,
        looked: int | None = None,
    ) -> tuple[V, Role]:
        """Async version of :meth:`do`.

        Args:
            key: As for :meth:`do`.
            find: As for :meth:`do`.
            work: As for :meth:`do`; it runs in the executor.
            awork: A coroutine function that replaces ``work``; ``None`` for none.
            looked: As for :meth:`do`.
        """
        loop = asyncio.get_running_loop()
        own = (key, None if awork is None else loop)
        while True:
            landed = self.landed if looked is None else looked
            value = find() if looked is None else None
            looked = None
            if value is not None:
                return value, "found"
            with self._lock:
                # Work that ended in the meantime may have stored it.
                value = None if self.landed == landed else find()
                if value is not None:
                    return value, "found"
                slot = own if own in self._flights else (key, None)
                flight = self._flights.get(slot)
                leads = flight is None
                if flight is None:
                    self._forget_closed_loops()
                    slot = own
                    flight = self._flights[slot] = _Flight()
                result = flight.join()
                flight.waiting += 1
            if leads:
                self._start(slot, flight, work, awork)
            try:
                return await _wait(result), "led" if leads else "joined"
            except _AbandonedError as abandoned:
                if leads:
                    raise abandoned.reason from None
            finally:
                self._leave(slot, flight)

    def _start(
        self,
        slot: _Slot,
        flight: _Flight[V],
        work: Callable[[], V],
        awork: Callable[[], Coroutine[Any, Any, V]] | None,
    ) -> None:
        if awork is not None:
            flight.task = asyncio.get_running_loop().create_task(awork())
            flight.task.add_done_callback(lambda task: self._land_task(slot, flight, task))
            return
        context = contextvars.copy_context()
        try:
            # Whoever waits for it raises its errors.
            self._executor.submit(context.run, self._fly, slot, flight, work)
        except RuntimeError as error:  # the interpreter is shutting down
            self._land(slot, flight, error)

    def _fly(
        self,
        slot: _Slot,
        flight: _Flight[V],
        work: Callable[[], V],
    ) -> V:
        """Do the work in this thread, for all that wait for it."""
        try:
            value = work()
        except Exception as error:
            self._land(slot, flight, error)
            raise
        except BaseException as reason:
            self._land(slot, flight, _AbandonedError(reason))
            raise
        self._land(slot, flight, None, value)
        return value

    def _land_task(
        self,
        slot: _Slot,
        flight: _Flight[V],
        task: asyncio.Task[V],
    ) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self._land(slot, flight, None, task.result())
        else:
            landed = error if isinstance(error, Exception) else _AbandonedError(error)
            self._land(slot, flight, landed)

    def _land(
        self,
        slot: _Slot,
        flight: _Flight[V],
        error: Exception | None,
        value: V | None = None,
    ) -> None:
        # Removed from the table first: a call that tries again must not find it there.
        with self._lock:
            self.landed += 1
            if self._flights.get(slot) is flight:
                del self._flights[slot]
            result = flight.result
        if result is None:
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]  # a V where no error is

    def _leave(self, slot: _Slot, flight: _Flight[V]) -> None:
        with self._lock:
            flight.waiting -= 1
            if flight.waiting or flight.task is None or flight.task.done():
                return
            if self._flights.get(slot) is flight:  # no call may join a task that is cancelled below
                del self._flights[slot]
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            flight.task.cancel()

    def _forget_closed_loops(self) -> None:
        """Drop the work of loops that were closed without cancelling their tasks."""
        closed = [(key, loop) for key, loop in self._flights if loop and loop.is_closed()]
        for slot in closed:
            del self._flights[slot]


async def _wait(result: Future[V]) -> V:
    """Wait for a future that other threads complete; cancelling the wait doesn't cancel it."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    waiter = loop.create_future()

    def release() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def wake(_: Future[V]) -> None:
        with contextlib.suppress(RuntimeError):  # the waiter's loop has been closed
            if threading.get_ident() == thread:  # waking the loop itself takes far longer
                release()
            else:
                loop.call_soon_threadsafe(release)

    result.add_done_callback(wake)
    await waiter
    return result.result()
