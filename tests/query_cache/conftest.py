"""A real redis-server for the tests of the shared cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.query_cache.redis.servers import RealRedis, redis_server


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RealRedis]:
    """One that stays as it is: tests keep apart by their tags."""
    with redis_server() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[RealRedis]:
    """One that a test may stop, kill or flush."""
    with redis_server() as server:
        yield server
