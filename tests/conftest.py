"""Fixtures that every room's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ragcache_integrations.engine import RAGCacheEngine


@pytest.fixture(scope="session")
def engine() -> Iterator[RAGCacheEngine]:
    """The real engine with the tiny model, shared by the whole run.

    ``float32``: cached and uncached runs can be compared. Eager: compiling pays off over hours.
    """
    with RAGCacheEngine(
        kv_cache_gib=0.25, dtype="float32", vllm_args={"enforce_eager": True}
    ) as shared:
        yield shared
