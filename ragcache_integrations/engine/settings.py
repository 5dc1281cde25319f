"""The knowledge tree's knobs, as they travel to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ragcache_integrations.core.checks import is_number, is_whole
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.policies import POLICIES

__all__ = ["CacheSettings", "cache_settings", "is_number", "is_whole"]


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Plain values only: they pass through vLLM's own configuration.

    Attributes:
        policy: ``pgdsf``, ``gdsf``, ``lru`` or ``lfu``.
        host_cache_gib: Size of the host tier in GiB; 0 for none.
        reorder_window: By how many others a waiting request may be overtaken; ``None`` for the
            order of arrival.
        cache_depth: Only the first documents of a request are kept; ``None`` for all.
        frequency_window: Accesses count for so many seconds; ``None`` for ever.
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
    """Check the knobs.

    Returns:
        ``None`` without the knowledge tree.

    Raises:
        ConfigurationError: A knob is out of its range, or asks for what needs the tree without it.
    """
    if not isinstance(knowledge_tree, bool):
        msg = f"knowledge_tree must be True or False, got {knowledge_tree!r}"
        raise ConfigurationError(msg)
    if policy not in POLICIES:
        msg = f"policy must be one of {', '.join(POLICIES)}, got {policy!r}"
        raise ConfigurationError(msg)
    if not is_number(host_cache_gib) or host_cache_gib < 0:
        msg = f"host_cache_gib must be a number of at least 0, got {host_cache_gib!r}"
        raise ConfigurationError(msg)
    if reorder_window is not None and not (is_whole(reorder_window) and reorder_window >= 1):
        msg = (
            "reorder_window must be a whole number of at least 1, or None for the order of "
            f"arrival, got {reorder_window!r}"
        )
        raise ConfigurationError(msg)
    if cache_depth is not None and not (is_whole(cache_depth) and cache_depth >= 1):
        msg = (
            "cache_depth must be a whole number of at least 1 document, or None for all, "
            f"got {cache_depth!r}"
        )
        raise ConfigurationError(msg)
    if frequency_window is not None and not (is_number(frequency_window) and frequency_window > 0):
        msg = (
            "frequency_window must be a number of seconds above 0, or None for all time, "
            f"got {frequency_window!r}"
        )
        raise ConfigurationError(msg)
    if not knowledge_tree:
        if host_cache_gib:
            msg = "host_cache_gib needs the knowledge tree: leave knowledge_tree=True"
            raise ConfigurationError(msg)
        return None
    return CacheSettings(
        policy, float(host_cache_gib), reorder_window, cache_depth, frequency_window
    )
