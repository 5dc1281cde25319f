"""Shares of the cache: a tenant with a quota has its own, all others have the rest together.

What a tenant uses is charged to its share. The share of which the largest multiple is used gives
memory back first. So nobody pushes out what is within another's share, and a share that nobody uses
is lent. Within a share the policy decides as in a cache of that size: it has its own clocks and its
own half-life.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ragcache_integrations.core.checks import is_number
from ragcache_integrations.errors import ConfigurationError

from .popularity import Popularity

__all__ = ["REST", "Share", "ShareStats", "Shares", "check_quotas"]

REST = "*"
"""Names all tenants without a quota together."""

SAMPLE = 8192
"""Of a larger cache, a part of about this many blocks is simulated to tune the half-life."""

ROUNDING = 1e-9


class ShareStats(NamedTuple):
    """What a share is, and what is charged to it, in blocks.

    Attributes:
        namespace: The tenant; :data:`REST` for all tenants without a quota.
        quota: Part of the memory, from 0 to 1.
        gpu_blocks: Blocks of the GPU, those in use included.
        host_blocks: Blocks of the host tier.
        pinned_blocks: Blocks that are kept for pinned documents.
    """

    namespace: str
    quota: float
    gpu_blocks: int
    host_blocks: int
    pinned_blocks: int


class Share:
    """A part of the cache.

    Args:
        namespace: The tenant, or :data:`REST`.
        quota: Part of the memory, from 0 to 1.
        blocks: Capacity of all tiers together.

    Attributes:
        popularity: Of its documents.
        used: GPU blocks that its requests use.
        pinned: Blocks that are kept for its pinned documents.
    """

    def __init__(self, namespace: str, quota: float, blocks: int) -> None:
        self.namespace = namespace
        self.quota = quota
        size = max(1, round(quota * blocks))
        self.popularity = Popularity(size, every=-(-size // SAMPLE))
        self.used = 0
        self.pinned = 0

    def blocks(self, capacity: int) -> int:
        """How many blocks it is of a tier."""
        return math.floor(self.quota * capacity + ROUNDING)

    def multiple(self, held: int, capacity: int) -> float:
        """By how many times its part of a tier is used."""
        part = self.quota * capacity
        return held / part if part else math.inf


class Shares:
    """All shares of a cache.

    Args:
        quotas: Part of the memory of each tenant that has one.
        blocks: Capacity of all tiers together.
    """

    def __init__(self, quotas: Mapping[str, float], blocks: int) -> None:
        self._own = {name: Share(name, quota, blocks) for name, quota in quotas.items()}
        self._rest = Share(REST, max(0.0, 1.0 - math.fsum(quotas.values())), blocks)

    def __getitem__(self, namespace: str) -> Share:
        """The share of a tenant."""
        return self._own.get(namespace, self._rest)

    def __iter__(self) -> Iterator[Share]:
        yield from self._own.values()
        yield self._rest

    def __len__(self) -> int:
        return len(self._own) + 1


def check_quotas(quotas: Mapping[str, float]) -> dict[str, float]:
    """Check tenants' quotas, and return a copy.

    Raises:
        ConfigurationError: A quota is out of its range, or all together are more than the memory.
    """
    if not isinstance(quotas, Mapping):
        msg = f"quotas must map namespaces to parts of the memory, got {quotas!r:.100}"
        raise ConfigurationError(msg)
    for name, quota in quotas.items():
        if not isinstance(name, str) or name == REST:
            msg = f"quotas must have namespaces as keys, which {REST!r} is not, got {name!r:.100}"
            raise ConfigurationError(msg)
        if not is_number(quota) or not 0 < quota <= 1:
            msg = f"a quota must be above 0 and at most 1, got {quota!r:.100} for {name!r:.100}"
            raise ConfigurationError(msg)
    total = math.fsum(quotas.values())
    if total > 1 + ROUNDING:
        raise ConfigurationError(f"quotas must be at most 1 together, got {total:g}")
    return dict(quotas)
