"""Gets the kernels ready before the first question waits for them."""

from __future__ import annotations

import os
import sys
import threading
from functools import cache
from typing import Any

import numpy as np

from .cache import QueryCache
from .types import Candidate

__all__ = ["start_warm_up", "warm_up"]

_LONGEST_WARM_UP = 60.0  # seconds that a fork waits for it


def warm_up() -> None:
    """Load the kernels. On a new machine numba compiles them first, which takes some seconds."""
    queries = np.eye(2, dtype=np.float32)
    warmed = QueryCache[None](
        2,
        2,
        2.0,
        metric="cosine",
        guarantee="exact",
        exact_search=True,
        vectors=lambda ids: queries[: len(ids)],
    )
    warmed.insert(queries[0], [Candidate("some", None), Candidate("other", None)])
    warmed.lookup(queries[1], 1)


@cache
def start_warm_up() -> threading.Thread:
    """Call :func:`warm_up` in a daemon thread, once per process; returns the thread."""
    thread = threading.Thread(target=warm_up, name="ragcache-kernels", daemon=True)
    thread.start()
    return thread


_held: list[Any] = []


def _before_fork() -> None:
    """Wait until the thread, which imports modules, and numba's compilations are done."""
    if start_warm_up.cache_info().currsize:
        thread = start_warm_up()
        if thread is not threading.current_thread():
            thread.join(_LONGEST_WARM_UP)
    numba = sys.modules.get("numba.core.compiler_lock")
    if numba is not None:
        lock = numba.global_compiler_lock
        lock.acquire()
        _held.append(lock)


def _after_fork() -> None:
    while _held:
        _held.pop().release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
