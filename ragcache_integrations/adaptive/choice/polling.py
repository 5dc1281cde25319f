"""Reads a value that changes all the time, without waiting for a busy engine to report it."""

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
    """A value, and when it was read, by the monotonic clock in seconds.

    Attributes:
        value: The value.
        began: When reading began; the value may not reflect what happened later.
        ended: When reading ended.
    """

    value: Value
    began: float
    ended: float


class Latest(Generic[Value]):
    """Reads a value in its own thread, once for all callers at the same time. Thread-safe.

    A busy engine reports between two of its steps, which may take a good part of an answer's time.
    So no caller waits longer than ``patience`` while the last value is fresh enough.

    Args:
        look: Reads the value. Callers that wait for it get what it raises.
        name: Name of the thread.
        again_after: Seconds after the beginning of a reading before the next one may begin.
        patience: Seconds to wait for a reading.
        fresh: Seconds for which the last value is returned if a reading takes longer than
            ``patience``. If it is older, or there is none, callers wait for the reading to end.
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
        self._look = None  # only the parent process has the thread that reads

    def get(self) -> Seen[Value]:
        """Return the latest value, and when it was read."""
        look = self._latest_look()
        with contextlib.suppress(FutureTimeoutError):
            look.result(self._wait())
        return self._last()

    async def aget(self) -> Seen[Value]:
        """Async version of :meth:`get`."""
        wrapped = asyncio.wrap_future(self._latest_look())
        try:
            done, _ = await asyncio.wait({wrapped}, timeout=self._wait())
            for ended in done:
                ended.result()
        finally:
            # Not the reading itself, which others may wait for: this loop may be closed before it.
            wrapped.cancel()
        return self._last()

    def _last(self) -> Seen[Value]:
        assert self._seen is not None  # noqa: S101 - for type checkers: get() waits for the first
        return self._seen

    def _wait(self) -> float | None:
        seen = self._seen
        stale = seen is None or time.monotonic() > seen.ended + self._fresh
        return None if stale else self._patience

    def _latest_look(self) -> Future[None]:
        """The current or last reading; a new one if it is time."""
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
        except BaseException as error:  # noqa: BLE001 - raised to the callers
            look.set_exception(error)
        else:
            look.set_result(None)
