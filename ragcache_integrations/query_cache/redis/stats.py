"""What a cache in Redis did, as one process sees it."""

from __future__ import annotations

from dataclasses import dataclass

from ragcache_integrations.query_cache.types import QueryCacheStats

__all__ = ["SharedCacheStats"]


@dataclass(frozen=True, slots=True)
class SharedCacheStats(QueryCacheStats):
    """What this process did with the shared cache.

    ``entries`` and ``vectors`` are 0: they are not counted. ``capacity`` is that of each cache
    key. ``expired`` and ``invalidated`` are entries that lookups came upon, ``evictions`` those
    that had to go for this process's insertions.

    Attributes:
        failed: Lookups that missed because Redis failed or did not answer in time.
        skipped: Lookups that missed without asking, because it had failed before.
        lost: Insertions and deletions that did not reach Redis.
        corrupt: Values in Redis, or answers of it, that are no entries.
        owed: Shards whose entries have to be cleared once Redis can be reached again.
    """

    failed: int = 0
    skipped: int = 0
    lost: int = 0
    corrupt: int = 0
    owed: int = 0
