"""Blocks close their objects, whether they end or raise."""

from __future__ import annotations

import asyncio

import pytest

from ragcache_integrations.core.blocks import AsyncCloseable, Closeable


class Store(Closeable, AsyncCloseable):
    def __init__(self) -> None:
        self.closed: list[str] = []

    def close(self) -> None:
        self.closed.append("closed")

    async def aclose(self) -> None:
        self.close()


def test_a_block_closes_its_object() -> None:
    store = Store()
    with store as entered:
        assert entered is store
        assert not store.closed
    assert len(store.closed) == 1


def test_an_error_passes_and_closes() -> None:
    store = Store()
    with pytest.raises(KeyError), store:
        raise KeyError
    assert len(store.closed) == 1


def test_an_async_block_closes_its_object() -> None:
    async def main(store: Store) -> None:
        async with store as entered:
            assert entered is store
            assert not store.closed
        with pytest.raises(KeyError):
            async with store:
                raise KeyError

    store = Store()
    asyncio.run(main(store))
    assert len(store.closed) == 2
