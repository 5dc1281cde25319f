"""Between threads and event loops: iterating in a thread, and running a stream from one."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ragcache_integrations.core.forks import make_lock

__all__ = ["End", "Pump", "iterate_in_thread", "run_in_thread"]

Item = TypeVar("Item")

_END = object()


class _Search(Generic[Item]):
    """An iterator in a thread, whose items go to the event loop in which this was made."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = items
        self._loop = asyncio.get_running_loop()
        self._stopped = threading.Event()
        self.arrived: asyncio.Queue[tuple[Any, Exception | None]] = asyncio.Queue()

    def stop(self) -> None:
        """End after the item that is being made."""
        self._stopped.set()

    def run(self) -> None:
        """Iterate to the end."""
        try:
            iterator = iter(self._items)
            try:
                for item in iterator:
                    self._hand_over(item)
                    if self._stopped.is_set():
                        break
            finally:
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            self._hand_over(_END, error)
        else:
            self._hand_over(_END)

    def _hand_over(self, item: Any, error: Exception | None = None) -> None:
        try:
            self._loop.call_soon_threadsafe(self.arrived.put_nowait, (item, error))
        except RuntimeError:  # the loop was closed: nobody reads any more
            self.stop()


async def iterate_in_thread(items: Iterable[Item]) -> AsyncGenerator[Item, None]:
    """Iterate in a thread of its own, which runs ahead: a search does not wait for its reader.

    When this is closed early the thread closes the iterator, which it alone touches, and ends as
    soon as the item that it is at is done. That is not waited for.
    """
    search = _Search(items)
    context = contextvars.copy_context()
    threading.Thread(
        target=context.run, args=(search.run,), name="ragcache-search", daemon=True
    ).start()
    try:
        while True:
            item, error = await search.arrived.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        search.stop()


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """Ends a pump's output.

    Attributes:
        value: What it came to.
        error: The error that ended it; ``None`` where it ended normally.
    """

    value: Any = None
    error: BaseException | None = None


class Pump:
    """Runs a coroutine in an event loop of its own, in a thread, for a synchronous caller.

    Args:
        work: What to run; it is given :meth:`put`. Its result ends the output.
    """

    def __init__(self, work: Callable[[Callable[[Any], None]], Awaitable[Any]]) -> None:
        self._outputs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._work = work
        self._lock = make_lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="ragcache-speculation", daemon=True
        )
        self._thread.start()

    def get(self) -> Any:
        """The next output, or :class:`End`; waits for it."""
        return self._outputs.get()

    def cancel(self) -> None:
        """Cancel the coroutine. Blocks nothing; safe from any thread."""
        with self._lock:
            self._cancelled = True
            loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(task.cancel)

    def join(self) -> None:
        """Wait until the thread has ended."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            value = asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised again where it is read
            self._outputs.put(End(error=error))
        else:
            self._outputs.put(End(value))

    async def _main(self) -> Any:
        with self._lock:
            if self._cancelled:
                raise asyncio.CancelledError
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        return await self._work(self._outputs.put)


async def run_in_thread(function: Callable[[], Item]) -> Item:
    """Call a function in a thread of its own. When cancelled, its end is not waited for."""

    def once() -> Iterator[Item]:
        yield function()

    async with contextlib.aclosing(iterate_in_thread(once())) as results:
        return await anext(results)
