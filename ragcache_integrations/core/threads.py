"""Threads: how many there is room for, and blocking functions for coroutines."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

__all__ = ["in_executor", "in_thread", "usable_cores"]

P = ParamSpec("P")
R = TypeVar("R")


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


def usable_cores() -> int:
    """The number of cores that this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
