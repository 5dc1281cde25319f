"""Concurrent calls for the same key do their work once, across threads and event loops."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Executor, Future
from typing import Any, Generic, Literal, TypeVar

from ragcache_integrations.core.forks import make_lock, renew_after_fork

__all__ = ["Role", "SingleFlight"]

V = TypeVar("V")

Role = Literal["found", "led", "joined"]
"""How a call got its value: it was there, this call did the work, or another call did."""


# A key; and an event loop, where the work is a coroutine.
_Slot = tuple[Hashable, asyncio.AbstractEventLoop | None]


class _AbandonedError(Exception):
    """Whoever did the work went away without a result (cancelled, interrupted)."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(reason)
        self.reason = reason


class _Flight(Generic[V]):
    """Work under way."""

    def __init__(self) -> None:
        self.result: Future[V] = Future()
        self.task: asyncio.Task[V] | None = None
        self.waiting = 0  # coroutines


class SingleFlight(Generic[V]):
    """Does the work for a key once, however many ask for it at the same time.

    Every call first looks whether the value is there already; work ends by putting it there. Calls
    that find theirs do not wait for each other. An exception of the work goes to everyone who
    waited for it, and the next call tries anew. Where whoever did the work went away instead, those
    who waited try anew themselves.

    Work that can run in a thread is shared by all threads and event loops. Work that is a
    coroutine is shared within its event loop only: nobody else can know that the loop is alive,
    and a thread that waited for it could be the very one that it needs to go on. It is a task of
    its own, so that cancelling one caller does not take it from the others; when the last one is
    cancelled, so is the task.

    Args:
        executor: Runs the work of coroutines that can run in a thread. Nothing that waits for
            this object may run there.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = make_lock()
        self._flights: dict[_Slot, _Flight[V]] = {}
        self._landed = 0
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._flights = {}  # they land in the parent

    def do(
        self, key: Hashable, find: Callable[[], V | None], work: Callable[[], V]
    ) -> tuple[V, Role]:
        """Return the value for a key.

        Args:
            key: What the value depends on.
            find: Returns the value if it is there. Called once more, under a lock, where other work
                ended meanwhile; must be quick.
            work: Makes the value, and leaves it where ``find`` looks.
        """
        slot = (key, None)
        while True:
            landed = self._landed
            found = find()
            if found is not None:
                return found, "found"
            with self._lock:
                found = self._find_again(find, landed)
                if found is not None:
                    return found, "found"
                flight = self._flights.get(slot)
                leads = flight is None
                if flight is None:
                    flight = self._flights[slot] = _Flight()
            if leads:
                self._fly(slot, flight, work)
            with contextlib.suppress(_AbandonedError):  # a leader's own reason was raised above
                return flight.result.result(), "led" if leads else "joined"

    async def ado(
        self,
        key: Hashable,
        find: Callable[[], V | None],
        work: Callable[[], V],
        awork: Callable[[], Coroutine[Any, Any, V]] | None = None,
    ) -> tuple[V, Role]:
        """Return the value for a key; blocks no event loop.

        Args:
            key: As for :meth:`do`.
            find: As for :meth:`do`.
            work: As for :meth:`do`; runs in the executor.
            awork: Does the same as a coroutine, instead of ``work``.
        """
        loop = asyncio.get_running_loop()
        own = (key, None if awork is None else loop)
        while True:
            landed = self._landed
            found = find()
            if found is not None:
                return found, "found"
            with self._lock:
                found = self._find_again(find, landed)
                if found is not None:
                    return found, "found"
                slot = own if own in self._flights else (key, None)
                flight = self._flights.get(slot)
                leads = flight is None
                if flight is None:
                    self._forget_closed_loops()
                    slot = own
                    flight = self._flights[slot] = _Flight()
                flight.waiting += 1
            if leads:
                self._start(slot, flight, work, awork)
            try:
                return await _wait(flight.result), "led" if leads else "joined"
            except _AbandonedError as abandoned:
                if leads:
                    raise abandoned.reason from None
            finally:
                self._leave(slot, flight)

    def _find_again(self, find: Callable[[], V | None], landed: int) -> V | None:
        """Look once more, where work that ended since may have brought the value."""
        return None if self._landed == landed else find()

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
            self._executor.submit(context.run, self._fly, slot, flight, work)
        except RuntimeError as error:  # the interpreter is shutting down
            self._land(slot, flight, error)

    def _fly(
        self,
        slot: _Slot,
        flight: _Flight[V],
        work: Callable[[], V],
    ) -> None:
        try:
            value = work()
        except Exception as error:  # noqa: BLE001 - handed on to everyone who waits
            self._land(slot, flight, error)
        except BaseException as reason:
            self._land(slot, flight, _AbandonedError(reason))
            raise
        else:
            self._land(slot, flight, None, value)

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
        # Out of the table first: who tries anew must not find it there.
        self._drop(slot, flight)
        if error is not None:
            flight.result.set_exception(error)
        else:
            flight.result.set_result(value)  # type: ignore[arg-type]  # a V where no error is

    def _drop(self, slot: _Slot, flight: _Flight[V]) -> None:
        with self._lock:
            self._landed += 1
            if self._flights.get(slot) is flight:
                del self._flights[slot]

    def _leave(self, slot: _Slot, flight: _Flight[V]) -> None:
        with self._lock:
            flight.waiting -= 1
            if flight.waiting or flight.task is None or flight.task.done():
                return
            if self._flights.get(slot) is flight:  # nobody may join what is about to be cancelled
                del self._flights[slot]
        with contextlib.suppress(RuntimeError):  # the loop was closed under us
            flight.task.cancel()

    def _forget_closed_loops(self) -> None:
        """Drop what was under way in a loop that was closed without cancelling its tasks."""
        for slot in [one for one in self._flights if one[1] is not None and one[1].is_closed()]:
            del self._flights[slot]


async def _wait(result: Future[V]) -> V:
    """Wait for a future that other threads complete; cancelling the wait leaves it alone."""
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def release() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def wake(_: Future[V]) -> None:
        with contextlib.suppress(RuntimeError):  # the waiter's loop was closed meanwhile
            loop.call_soon_threadsafe(release)

    result.add_done_callback(wake)
    await waiter
    return result.result()
