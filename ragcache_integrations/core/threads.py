"""Threads: their number, blocking functions for coroutines, and checks in the background."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, wait
from functools import partial
from typing import Any, ParamSpec, TypeVar

from .forks import make_lock, renew_after_fork

__all__ = [
    "BackgroundChecks",
    "in_executor",
    "in_thread",
    "is_ending",
    "map_in_threads",
    "usable_cores",
]


logger = logging.getLogger(__name__)

# Under way at once; more are not begun. What is slow is not to be flooded by them.
_MOST = 4


class BackgroundChecks:
    """Runs checks in threads, or as tasks of the event loop that asks for them.

    A check that fails is counted, and the first one logged. A task that ends with its event loop is
    repeated in a thread.

    Args:
        executor: Runs the checks of threads.
        on_begin: Counts a check.
        on_failure: Counts one that raised an error.
    """

    def __init__(
        self, executor: Executor, on_begin: Callable[[], None], on_failure: Callable[[], None]
    ) -> None:
        self._executor = executor
        self._on_begin = on_begin
        self._on_failure = on_failure
        self._lock = make_lock()
        self._in_threads = 0
        # An event loop refers to its tasks weakly.
        self._tasks: set[asyncio.Task[None]] = set()
        self._warned = False
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._in_threads, self._tasks = 0, set()  # those are the parent's

    def start(
        self, check: Callable[[], None], acheck: Callable[[], Coroutine[Any, Any, None]] | None
    ) -> None:
        """Begin a check, unless enough are under way.

        Args:
            check: Makes the check.
            acheck: Async version of ``check``, preferred if the caller is in an event loop.
        """
        with self._lock:
            self._tasks = {task for task in self._tasks if not task.get_loop().is_closed()}
            if self._in_threads + len(self._tasks) >= _MOST:
                return
            if acheck is not None:
                task = asyncio.get_running_loop().create_task(acheck())
                self._tasks.add(task)
                task.add_done_callback(lambda done: self._end_task(done, check))
                self._on_begin()
                return
            self._in_threads += 1
        self._on_begin()
        self._submit(check)

    def _submit(self, check: Callable[[], None]) -> None:
        try:
            future = self._executor.submit(contextvars.copy_context().run, check)
        except RuntimeError as error:  # the interpreter is shutting down
            self._end_in_thread(error)
        else:
            future.add_done_callback(lambda done: self._end_in_thread(done.exception()))

    def _end_in_thread(self, error: BaseException | None) -> None:
        with self._lock:
            self._in_threads -= 1
        if error is not None:
            self.fail(error)

    def _end_task(self, task: asyncio.Task[None], check: Callable[[], None]) -> None:
        with self._lock:
            self._tasks.discard(task)
            self._in_threads += task.cancelled()
        if task.cancelled():
            self._submit(check)
        elif (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Count an error, and log the first one."""
        self._on_failure()
        level = logging.DEBUG if self._warned or is_ending(error) else logging.WARNING
        self._warned = True
        logger.log(level, "A cached answer could not be checked: %s", error, exc_info=error)


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def in_executor(
    executor: Executor | None, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
) -> asyncio.Future[R]:
    """Run a function in a thread of an executor, in a copy of the caller's context.

    asyncio gives it none: what reads a context variable, such as a filter that looks for its
    tenant, would find what that thread happened to have.

    Args:
        executor: The executor; the event loop's own where ``None``.
        function: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    call = partial(contextvars.copy_context().run, partial(function, *args, **kwargs))
    return asyncio.get_running_loop().run_in_executor(executor, call)


async def in_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a function in a worker thread of the event loop, and wait for its end.

    Unlike with :func:`asyncio.to_thread`, a caller that is cancelled waits for the function to end
    first, so that the function is never still running after its call.

    Args:
        function: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    future = in_executor(None, function, *args, **kwargs)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:  # one cancellation is raised below, that is enough
                continue
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not warn about it
        raise


def is_ending(error: BaseException) -> bool:
    """Whether an error says that an executor takes no more work: it, or the interpreter, ends."""
    return isinstance(error, RuntimeError) and "cannot schedule new futures" in str(error)


def map_in_threads(function: Callable[[T], R], items: Sequence[T], workers: int) -> list[R]:
    """Call a function with every item, several at once, each in a copy of the caller's context.

    After a failure or an interruption, calls that have not begun never will. Nobody waits for the
    others, not even the end of the process, as it would for those of an executor.

    Args:
        function: The function.
        items: What it is called with.
        workers: The most calls at once.

    Returns:
        The results, in the order of the items.

    Raises:
        Exception: What the first call to fail has raised.
    """
    calls: queue.SimpleQueue[tuple[Future[R], Callable[[], R]]] = queue.SimpleQueue()
    results: list[Future[R]] = []
    for item in items:
        results.append(Future())
        calls.put((results[-1], partial(contextvars.copy_context().run, function, item)))

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                result, call = calls.get_nowait()
                if result.set_running_or_notify_cancel():
                    _settle(result, call)

    for number in range(min(workers, len(results))):
        threading.Thread(target=work, name=f"ragcache-map-{number}", daemon=True).start()
    try:
        for result in wait(results, return_when=FIRST_EXCEPTION).done:
            result.result()  # raises what the first to fail ran into
        return [result.result() for result in results]
    finally:
        for result in results:
            result.cancel()


def _settle(future: Future[R], call: Callable[[], R]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
        future.set_exception(error)


def usable_cores() -> int:
    """The number of cores that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
