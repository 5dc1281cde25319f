"""Changes that Redis has to receive once it can be reached again.

The store changed, and a shard was not reached in time: until its entries are cleared, they may
answer wrongly. Until then this process does not ask that shard; a thread clears it as soon
as it can. Other processes that reach the server when this one cannot may get answers that are out
of date.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from ragcache_integrations.core.forks import make_lock, renew_after_fork

from .link import Link, ScriptCall, UnreachableError

__all__ = ["Debts"]

logger = logging.getLogger(__name__)


class Debts:
    """Shards that have to be cleared. Thread-safe.

    Args:
        link: The link to the server.
        clearing: Makes the request that clears a shard.
    """

    def __init__(self, link: Link, clearing: Callable[[int], ScriptCall]) -> None:
        self._link = link
        self._clearing = clearing
        self._lock = make_lock()
        self._owed: dict[int, int] = {}  # how often each was owed, so that none gets lost
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._thread, self._closed = None, threading.Event()  # the next lookup starts a thread

    def __len__(self) -> int:
        return len(self._owed)

    def __contains__(self, shard: object) -> bool:
        return shard in self._owed

    def add(self, shards: Iterable[int]) -> None:
        """Have shards cleared as soon as possible, along with those owed already."""
        with self._lock:
            for shard in shards:
                self._owed[shard] = self._owed.get(shard, 0) + 1
            if self._owed and self._thread is None and not self._closed.is_set():
                self._begin()

    def _begin(self) -> None:
        """Start the thread; the lock is held. Where that fails, the next lookup tries again."""
        thread = threading.Thread(target=self._pay, name="ragcache-redis-changes", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # as where there are too many threads
            logger.warning("What Redis has to forget cannot be sent to it yet: %s", error)
        else:
            self._thread = thread

    def close(self) -> None:
        """Stop trying until something is added. Shards still owed stay out of date."""
        self._closed.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        self._thread = None
        self._closed.clear()
        if self._owed:
            logger.warning(
                "The shared %s at %s did not receive changes, and holds what is out of date",
                self._link.what,
                self._link.server.where,
            )

    def _pay(self) -> None:
        pause = 0.0
        warned = False
        while not self._closed.wait(pause):
            try:
                self._pay_all()
            except Exception:  # of any kind: what is owed stays owed and is tried again
                level = logging.DEBUG if warned else logging.WARNING
                warned = True
                logger.log(level, "Redis cannot receive changes of the store", exc_info=True)
            with self._lock:
                if not self._owed:
                    self._thread = None
                    return
            pause = self._link.server.retry_after

    def _pay_all(self) -> None:
        for shard, times in list(self._owed.items()):
            if not self._pay_one(shard, times):
                return

    def _pay_one(self, shard: int, times: int) -> bool:
        try:
            self._link.call(self._clearing(shard), self._link.budget(patient=True))
        except UnreachableError:
            return False
        with self._lock:
            if self._owed.get(shard) == times:  # else it is owed once more since
                del self._owed[shard]
        return True
