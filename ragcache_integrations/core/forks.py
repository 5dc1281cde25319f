"""Renews locks, threads and connections in forked child processes.

A child has one thread, the one that called ``os.fork``. Locks that other threads of the parent held
at that moment would stay locked in the child for ever, and the work of those threads never ends
there.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

__all__ = ["Renewable", "make_executor", "make_lock", "make_reentrant_lock", "renew_after_fork"]

logger = logging.getLogger(__name__)


class Renewable(Protocol):
    """Has state that a forked child must not use."""

    def _after_fork(self) -> None:
        """Renew the state, in the child. Locks are renewed later, so don't acquire any here."""


# By identity: objects may compare as equal or have no hash.
_objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_executors: weakref.WeakSet[ThreadPoolExecutor] = weakref.WeakSet()


def make_lock() -> threading.Lock:
    """Return a lock that is free in every forked child, even if it was held in the parent."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def make_reentrant_lock() -> threading.RLock:
    """Return a reentrant lock that is free in every forked child."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def make_executor(workers: int, prefix: str) -> ThreadPoolExecutor:
    """Return a pool of threads that starts new ones in every forked child.

    Args:
        workers: The most threads.
        prefix: Beginning of the threads' names.
    """
    executor = ThreadPoolExecutor(workers, thread_name_prefix=prefix)
    _executors.add(executor)
    return executor


def renew_after_fork(renewable: Renewable) -> None:
    """Renew an object in every forked child. It is referenced weakly."""
    _objects[id(renewable)] = renewable


def _renew_all() -> None:
    _renew(_objects.values(), lambda each: each._after_fork())  # noqa: SLF001 - the protocol above
    # The standard library renews its locks in the same way, such as those of logging.
    _renew(_locks, lambda each: each._at_fork_reinit())  # noqa: SLF001 - see above
    _renew(_executors, _renew_executor)
    _use_one_thread()


def _renew(objects: Iterable[Any], renew: Any) -> None:
    for each in list(objects):
        try:
            renew(each)
        except Exception:  # the other objects must be renewed in any case
            logger.exception("A forked process could not renew a %s", type(each).__name__)


def _renew_executor(executor: ThreadPoolExecutor) -> None:
    # In place, because others have references to the object. The parent's tasks are dropped. A pool
    # has no public way to restart or to read its arguments, hence __init__ and two private
    # attributes, which are the same in all supported versions of Python.
    prefix, workers = executor._thread_name_prefix, executor._max_workers  # noqa: SLF001 - see above
    executor.__init__(workers, thread_name_prefix=prefix)  # type: ignore[misc] # see above


def _use_one_thread() -> None:
    """Prevent FAISS from waiting for OpenMP's threads, which exist in the parent only."""
    faiss = sys.modules.get("faiss")
    if faiss is not None:
        faiss.omp_set_num_threads(1)


os.register_at_fork(after_in_child=_renew_all)
