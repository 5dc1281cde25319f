"""Base classes of objects that a ``with`` block closes."""

from __future__ import annotations

from typing import Self

__all__ = ["AsyncCloseable", "Closeable"]


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
