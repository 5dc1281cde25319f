"""Work that nobody waits for: checks of what a cache has answered already."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any

from .forks import make_lock, renew_after_fork
from .threads import is_ending

__all__ = ["BackgroundChecks"]

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
