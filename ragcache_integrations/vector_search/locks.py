"""Many read, or one writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["ReadWriteLock"]


class ReadWriteLock:
    """Readers go in together; a writer waits until they are gone and keeps others out.

    Whoever comes while a writer waits goes behind it. Neither side may enter twice in one thread.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()  # of writers
        self._reading = _Reading()

    def reading(self) -> AbstractContextManager[None]:
        """Read; nobody writes meanwhile. The same for all, and good for any number of times."""
        return self._reading

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write; nobody else reads or writes meanwhile."""
        with self._turn:
            try:
                self._reading.shut()
                yield
            finally:
                self._reading.open()


class _Reading(AbstractContextManager[None]):
    """What readers enter, every one at every stage: so it is a single lock, taken for a moment."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._readers = 0
        self._shut = False

    def shut(self) -> None:
        """Let no more in, and wait until all are gone."""
        with self._changed:
            self._shut = True
            self._changed.wait_for(lambda: not self._readers)

    def open(self) -> None:
        """Let those in who wait."""
        with self._changed:
            self._shut = False
            self._changed.notify_all()

    def __enter__(self) -> None:
        with self._mutex:
            while self._shut:
                self._changed.wait()
            self._readers += 1

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._readers -= 1
            if self._shut and not self._readers:
                self._changed.notify_all()
