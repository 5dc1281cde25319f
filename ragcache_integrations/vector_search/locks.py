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
        self._turn = threading.Lock()  # held by a writer for as long as it waits and writes
        self._empty = threading.Lock()  # held by the readers together, or by a writer
        self._reading = _Reading(self._turn, self._empty)

    def reading(self) -> AbstractContextManager[None]:
        """Read; nobody writes meanwhile."""
        return self._reading

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write; nobody else reads or writes meanwhile."""
        with self._turn, self._empty:
            yield


class _Reading(AbstractContextManager[None]):
    """What readers enter: no generator, since every stage does."""

    def __init__(self, turn: threading.Lock, empty: threading.Lock) -> None:
        self._turn = turn
        self._empty = empty
        self._count = threading.Lock()
        self._readers = 0

    def __enter__(self) -> None:
        with self._turn, self._count:
            if not self._readers:
                self._empty.acquire()  # no writer has it, since it would have the turn, too
            self._readers += 1

    def __exit__(self, *_: object) -> None:
        with self._count:
            self._readers -= 1
            if not self._readers:
                self._empty.release()
