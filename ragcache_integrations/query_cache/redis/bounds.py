"""What one operation may take of a server that is not to be trusted: time and bytes.

The timeouts of redis-py are those of a single read, and a server that sends a byte now and then
never exceeds them. It reads what a server announces, however much that is. So every socket and
every stream reader of a connection is wrapped here, and asks the budget of the operation under way,
which is the same for all that belongs to the operation: connecting, logging in, asking again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

__all__ = ["LARGEST_ANSWER", "Budget", "bounded", "bounded_async", "bounded_pool"]

LARGEST_ANSWER = 1 << 26
"""Bytes that an operation may read, answers of the server to logging in included."""


class Budget:
    """Time and bytes of an operation.

    Args:
        seconds: Time for the whole operation.
        patient: Whether it is a change, which must not get lost.

    Attributes:
        patient: As given.
        deadline: When the time is over, by ``time.monotonic``.
    """

    def __init__(self, seconds: float, *, patient: bool = False) -> None:
        self.patient = patient
        self.deadline = time.monotonic() + seconds
        self._bytes = LARGEST_ANSWER

    def seconds(self) -> float:
        """Return the time that is left.

        Raises:
            TimeoutError: None is.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            msg = "the operation took too long"
            raise TimeoutError(msg)
        return left

    def take(self, count: int) -> None:
        """Note that bytes are read.

        Raises:
            ConnectionError: The budget is exceeded.
        """
        self._bytes -= count
        if self._bytes < 0:
            msg = f"the server sends more than {LARGEST_ANSWER} bytes"
            raise ConnectionError(msg)

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Charge all reads and writes within the block to this budget."""
        before = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(before)


_CURRENT: ContextVar[Budget | None] = ContextVar("ragcache_redis_budget", default=None)


class _Socket:
    """A socket whose reads and writes end with the operation."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._timeout: float | None = socket.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, seconds: float | None) -> None:
        """Set the timeout of a single read or write; 0: do not wait."""
        self._timeout = seconds
        self._socket.settimeout(seconds)

    def recv(self, size: int) -> bytes:
        """Read some bytes."""
        content: bytes = self._within(self._socket.recv, size)
        _take(len(content))
        return content

    def recv_into(self, *arguments: Any) -> int:
        """Read some bytes into a buffer."""
        count: int = self._within(self._socket.recv_into, *arguments)
        _take(count)
        return count

    def sendall(self, content: bytes) -> None:
        """Write all bytes."""
        self._within(self._socket.sendall, content)

    def _within(self, act: Callable[..., Any], *arguments: Any) -> Any:
        budget = _CURRENT.get()
        # One that does not wait is asked whether there is something to read.
        if budget is not None and self._timeout != 0:
            left = budget.seconds()
            self._socket.settimeout(left if self._timeout is None else min(self._timeout, left))
        return act(*arguments)


class _Reader:
    """A stream reader of asyncio whose bytes are counted; its time is bounded where it is used."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def readexactly(self, count: int) -> bytes:
        """Read this many bytes, if the budget allows."""
        _take(count)
        content: bytes = await self._reader.readexactly(count)
        return content

    async def readline(self) -> bytes:
        """Read a line, which asyncio bounds at 64 KiB."""
        content: bytes = await self._reader.readline()
        _take(len(content))
        return content

    async def read(self, count: int = -1) -> bytes:
        """Read the bytes that have arrived."""
        content: bytes = await self._reader.read(count)
        _take(len(content))
        return content


def _take(count: int) -> None:
    budget = _CURRENT.get()
    if budget is not None:
        budget.take(count)


@cache
def bounded(kind: Any) -> Any:
    """Return a subclass of a connection of redis-py, with bounds."""

    def connect(self: Any) -> Any:
        return _Socket(kind._connect(self))  # noqa: SLF001 - redis-py has no other hook

    return type(f"Bounded{kind.__name__}", (kind,), {"_connect": connect})


@cache
def bounded_async(kind: Any) -> Any:
    """Return a subclass of a connection of ``redis.asyncio``, with bounds."""

    async def connect(self: Any) -> None:
        await kind._connect(self)  # noqa: SLF001 - as above
        self._reader = _Reader(self._reader)

    return type(f"Bounded{kind.__name__}", (kind,), {"_connect": connect})


@cache
def bounded_pool(kind: Any, usual: Any) -> Any:
    """Return the same kind of pool of redis-py, whose connections have bounds.

    Args:
        kind: Class of the pool.
        usual: Class of its connections where none is named.
    """

    def make(self: Any, connection_class: Any = usual, **options: Any) -> None:
        kind.__init__(self, connection_class=bounded(connection_class), **options)

    return type(f"Bounded{kind.__name__}", (kind,), {"__init__": make})
