"""What a forked child must make new: locks that other threads held, threads, connections.

A child has one thread, the one that called ``os.fork``. Locks that other threads of the parent held
at that moment would stay held in the child for ever, and what those threads were about to finish
never ends there.
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
    """Has something that a forked child must not use as it is."""

    def _after_fork(self) -> None:
        """Make it new, in the child. Locks are not renewed yet: look at them, take none."""


# By identity: objects may compare as equal or have no hash.
_objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_executors: weakref.WeakSet[ThreadPoolExecutor] = weakref.WeakSet()


def make_lock() -> threading.Lock:
    """Return a lock that is free in every forked child, whoever held it in the parent."""
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
        prefix: Of their names.
    """
    executor = ThreadPoolExecutor(workers, thread_name_prefix=prefix)
    _executors.add(executor)
    return executor


def renew_after_fork(renewable: Renewable) -> None:
    """Have an object make new what it must, in every forked child. Keeps nothing alive."""
    _objects[id(renewable)] = renewable


def _renew_all() -> None:
    _renew(_objects.values(), lambda each: each._after_fork())  # noqa: SLF001 - the protocol above
    # As the standard library does with the locks of logging and of futures.
    _renew(_locks, lambda each: each._at_fork_reinit())  # noqa: SLF001 - as it does
    _renew(_executors, _renew_executor)
    _use_one_thread()


def _renew(some: Iterable[Any], renew: Any) -> None:
    for each in list(some):
        try:
            renew(each)
        except Exception:  # the others are to be renewed all the same
            logger.exception("A forked process could not renew a %s", type(each).__name__)


def _renew_executor(executor: ThreadPoolExecutor) -> None:
    # In place, as others hold the object; what the parent's threads were to do is theirs. A pool
    # has no public way to begin again or to say how it was made, hence __init__ and two private
    # attributes, which are the same in all Pythons that we run on.
    prefix, workers = executor._thread_name_prefix, executor._max_workers  # noqa: SLF001 - see above
    executor.__init__(workers, thread_name_prefix=prefix)  # type: ignore[misc] # see above


def _use_one_thread() -> None:
    """Keep FAISS from waiting for OpenMP's threads, which only the parent has."""
    faiss = sys.modules.get("faiss")
    if faiss is not None:
        faiss.omp_set_num_threads(1)


os.register_at_fork(after_in_child=_renew_all)
