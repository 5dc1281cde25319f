"""Many read, or one writes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.errors import RAGCacheError

__all__ = ["ReadWriteLock"]


class ReadWriteLock:
    """Readers go in together; a writer waits until they are gone and keeps others out.

    Each reader holds a separate lock, and a writer takes all of them, which makes going in and out
    cheap for readers. A reader that comes while a writer waits goes after it. Neither side may
    enter twice in one thread.

    A reader that goes in and out many times borrows a lock for all of them::

        own = lock.lend()
        try:
            while ...:
                if lock.shut:
                    lock.wait()
                with own:
                    ...
        finally:
            lock.give_back(own)

    Attributes:
        shut: Whether somebody writes, or waits until readers are gone.
    """

    def __init__(self) -> None:
        self._turn = make_lock()  # of writers, and of those for whom there is no lock yet
        self._all: list[threading.Lock] = []
        self._free: list[threading.Lock] = []
        self.shut = False
        self._torn = False
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._torn = self.shut

    def lend(self) -> threading.Lock:
        """Return a lock that no other reader has; it may be held as long as nobody waits."""
        try:
            return self._free.pop()
        except IndexError:
            own = make_lock()
        with self._turn:
            self._all.append(own)
        return own

    def give_back(self, own: threading.Lock) -> None:
        """Take back what was lent, and is not held. Never waits."""
        self._free.append(own)

    def wait(self) -> None:
        """Let a writer go first.

        Raises:
            RAGCacheError: As for :meth:`writing`.
        """
        self._check()
        with self._turn:
            pass

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read once; nobody writes meanwhile."""
        own = self.lend()
        try:
            if self.shut:
                self.wait()
            with own:
                yield
        finally:
            self.give_back(own)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write; nobody else reads or writes meanwhile.

        Raises:
            RAGCacheError: This process was forked while another thread wrote.
        """
        self._check()
        with self._turn:
            self.shut = True
            try:
                with ExitStack() as held:
                    for own in self._all:
                        held.enter_context(own)
                    yield
            finally:
                self.shut = False

    def _check(self) -> None:
        if self._torn:
            msg = (
                "this process was forked while another thread changed the index, which is "
                "incomplete here: load or build it in this process"
            )
            raise RAGCacheError(msg)
