"""Looking at what changes all the time without waiting for whoever is too busy to show it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Generic, TypeVar

from ragcache_integrations.core.forks import make_lock, renew_after_fork

__all__ = ["Latest", "Seen"]

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Seen(Generic[Value]):
    """What was seen, and when, by the monotonic clock in seconds.

    Attributes:
        value: What was seen.
        began: When the look began: what happened later may not be in it.
        ended: When it had ended.
    """

    value: Value
    began: float
    ended: float


class Latest(Generic[Value]):
    """Looks in a thread of its own, once for all who want to know at the same time. Thread-safe.

    An engine that computes answers between two steps, which may be a good part of what an answer
    takes: no question waits longer for it than ``patience``, as long as what was seen last is fresh
    enough.

    Args:
        look: Looks. What it raises, whoever waits gets.
        name: Of the thread.
        again_after: Seconds in which nobody looks again.
        patience: Seconds to wait for a look.
        fresh: Seconds for which what was seen will do where a look takes longer than that; older,
            or nothing, and the look is waited for to its end.
    """

    def __init__(
        self,
        look: Callable[[], Value],
        name: str,
        *,
        again_after: float = 0.0,
        patience: float = 0.01,
        fresh: float = 1.0,
    ) -> None:
        self._do_look = look
        self._name = name
        self._again_after = again_after
        self._patience = patience
        self._fresh = fresh
        self._lock = make_lock()
        self._look: Future[None] | None = None
        self._began = 0.0
        self._seen: Seen[Value] | None = None
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._look = None  # the parent's thread looks for the parent

    def get(self) -> Seen[Value]:
        """What is to be seen."""
        look = self._latest_look()
        with contextlib.suppress(FutureTimeoutError):
            look.result(self._wait())
        return self._last()

    async def aget(self) -> Seen[Value]:
        """The async twin of :meth:`get`."""
        wrapped = asyncio.wrap_future(self._latest_look())
        try:
            done, _ = await asyncio.wait({wrapped}, timeout=self._wait())
            for one in done:
                one.result()
        finally:
            wrapped.cancel()  # the look goes on; this loop may end before it does
        return self._last()

    def _last(self) -> Seen[Value]:
        assert self._seen is not None  # noqa: S101 - said to type checkers: the first is waited for
        return self._seen

    def _wait(self) -> float | None:
        seen = self._seen
        stale = seen is None or time.monotonic() > seen.ended + self._fresh
        return None if stale else self._patience

    def _latest_look(self) -> Future[None]:
        """The look that is under way or was the last; a new one where it is time."""
        with self._lock:
            now = time.monotonic()
            if self._look is None or (self._look.done() and now >= self._began + self._again_after):
                self._began = now
                self._look = Future()
                self._look.set_running_or_notify_cancel()
                threading.Thread(
                    target=self._see, args=(self._look,), name=self._name, daemon=True
                ).start()
            return self._look

    def _see(self, look: Future[None]) -> None:
        began = time.monotonic()
        try:
            self._seen = Seen(self._do_look(), began, time.monotonic())
        except BaseException as error:  # noqa: BLE001 - for whoever waits
            look.set_exception(error)
        else:
            look.set_result(None)
