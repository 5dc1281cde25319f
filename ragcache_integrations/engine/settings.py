"""The knowledge tree's settings, as they are passed to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ragcache_integrations.core.checks import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_seconds,
)
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.policies import POLICIES

__all__ = ["CacheSettings", "cache_settings"]


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Plain values only, because they pass through vLLM's own configuration.

    Attributes:
        policy: ``pgdsf``, ``gdsf``, ``lru`` or ``lfu``.
        host_cache_gib: Size of the host tier in GiB; 0 for none.
        reorder_window: How many requests may overtake a waiting one; ``None`` for the order of
            arrival.
        cache_depth: How many of a request's first documents are kept; ``None`` for all.
        frequency_window: Seconds for which an access counts; ``None`` for ever.
        prefill_profile: A measured prefill cost model, as plain data.
    """

    policy: str = "pgdsf"
    host_cache_gib: float = 0.0
    reorder_window: int | None = 32
    cache_depth: int | None = None
    frequency_window: float | None = None
    prefill_profile: dict[str, Any] | None = None


def cache_settings(
    *,
    knowledge_tree: bool,
    policy: str,
    host_cache_gib: float,
    reorder_window: int | None,
    cache_depth: int | None,
    frequency_window: float | None,
) -> CacheSettings | None:
    """Check the settings (see :class:`RAGCacheEngine` for the meanings).

    Returns:
        ``None`` without the knowledge tree.

    Raises:
        ConfigurationError: A setting is out of its range, or needs the tree, which is off.
    """
    knowledge_tree = check_flag("knowledge_tree", knowledge_tree)
    policy = check_choice("policy", policy, tuple(POLICIES))
    host_cache_gib = check_number("host_cache_gib", host_cache_gib, 0)
    if reorder_window is not None:
        also = "None for the order of arrival"
        reorder_window = check_int("reorder_window", reorder_window, 1, also=also)
    if cache_depth is not None:
        cache_depth = check_int("cache_depth", cache_depth, 1, also="None for all documents")
    frequency_window = check_seconds("frequency_window", frequency_window, also="None for all time")
    if not knowledge_tree:
        if host_cache_gib:
            msg = "host_cache_gib needs the knowledge tree: leave knowledge_tree=True"
            raise ConfigurationError(msg)
        return None
    return CacheSettings(policy, host_cache_gib, reorder_window, cache_depth, frequency_window)
