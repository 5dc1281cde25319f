"""Threads: how many there is room for, and blocking functions for coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, wait
from functools import partial
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "in_executor",
    "in_thread",
    "is_ending",
    "map_in_threads",
    "usable_cores",
    "wait_in_thread",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

CANCEL_SECONDS = 1.0
"""The longest time that an interrupted caller waits for what it cancels."""


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


def wait_in_thread(begin: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run a coroutine in an event loop of its own, in another thread, and wait for its end.

    An interruption of the waiting, as in a notebook, cancels the coroutine. The process ends
    without waiting for the thread.

    Args:
        begin: Makes the coroutine.
    """
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
    result: Future[R] = Future()

    async def run() -> R:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this coroutine runs in one
        running.set_result((asyncio.get_running_loop(), task))
        return await begin()

    def work() -> None:
        _settle(result, lambda: asyncio.run(run()))

    threading.Thread(target=work, name="ragcache-wait", daemon=True).start()
    try:
        return result.result()
    except KeyboardInterrupt:
        loop, task = running.result()
        with contextlib.suppress(RuntimeError):  # it has ended meanwhile
            loop.call_soon_threadsafe(task.cancel)
        wait([result], CANCEL_SECONDS)
        raise


def usable_cores() -> int:
    """The number of cores that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
