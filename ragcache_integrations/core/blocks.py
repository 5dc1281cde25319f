"""Helpers of ``with`` blocks: objects that they close, and values of context variables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Self, TypeVar

__all__ = ["AsyncCloseable", "Closeable", "context_value"]


class Closeable:
    """An object with a ``close`` method, which its ``with`` block calls."""

    def close(self) -> None:
        """Release what the object holds. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncCloseable:
    """An object with an ``aclose`` method, which its ``async with`` block calls."""

    async def aclose(self) -> None:
        """Async version of :meth:`Closeable.close`."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


V = TypeVar("V")


@contextmanager
def context_value(variable: ContextVar[V], value: V) -> Iterator[None]:
    """Set a context variable, and set it back at the end of the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
