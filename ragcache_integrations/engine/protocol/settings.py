"""The knowledge tree's settings, as they are passed to the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ragcache_integrations.core.checks import (
    check_choice,
    check_field,
    check_int,
    check_number,
    check_seconds,
    or_none,
)
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.policies import DEFAULT_POLICY, POLICIES
from ragcache_integrations.knowledge_tree.shares import check_quotas

__all__ = ["MOST_LINK_TOKENS", "MOST_URGENT", "REUSES", "CacheSettings"]

REUSES = ("prefix", "anywhere")
MOST_LINK_TOKENS = 1 << 20
"""More than any document has. vLLM refuses requests with numbers that don't fit 64 bits."""
MOST_URGENT = 1 << 31
"""Priorities of requests go from this number, negated, to this number."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Plain values only, because they pass through vLLM's own configuration.

    Attributes:
        policy: ``lrfu``, ``pgdsf``, ``gdsf``, ``lru`` or ``lfu``.
        host_cache_gib: Size of the host tier in GiB; 0 for none.
        reorder_window: How many requests may overtake a waiting one; ``None`` for the order of
            arrival.
        cache_depth: How many of a request's first documents are kept; ``None`` for all.
        frequency_window: Seconds for which an access counts, except for ``lrfu`` and ``lru``;
            ``None`` for ever.
        prefill_profile: A measured prefill cost model, as plain data.
        reuse: ``prefix``, which is exact, or ``anywhere``.
        link_tokens: How many first tokens of each document are computed where the rest is reused
            anywhere.
        exact_documents: How many documents at the beginning of a prompt are exact where others are
            reused anywhere.
        document_cache_gib: Memory of the host for documents that are reused anywhere, in GiB.
        disk_cache_gib: Room on disk for documents of both kinds, in GiB; 0 for none.
        disk_cache_dir: Folder in which they are kept; ``None`` for the user's cache folder.
        quotas: Part of the KV cache that belongs to each of some tenants, by namespace.

    Raises:
        ConfigurationError: A setting is out of its range.
    """

    policy: str = DEFAULT_POLICY
    host_cache_gib: float = 0.0
    reorder_window: int | None = 32
    cache_depth: int | None = None
    frequency_window: float | None = None
    prefill_profile: dict[str, Any] | None = None
    reuse: str = "prefix"
    link_tokens: int = 16
    exact_documents: int = 0
    document_cache_gib: float = 1.0
    disk_cache_gib: float = 0.0
    disk_cache_dir: str | None = None
    quotas: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        check_field(self, check_choice, "policy", tuple(POLICIES))
        check_field(self, check_number, "host_cache_gib", 0)
        optional = or_none(check_int)
        check_field(self, optional, "reorder_window", 1, also="None for the order of arrival")
        check_field(self, optional, "cache_depth", 1, also="None for all documents")
        check_field(self, check_seconds, "frequency_window", also="None for all time")
        check_field(self, check_choice, "reuse", REUSES)
        check_field(self, check_int, "link_tokens", 0, MOST_LINK_TOKENS)
        check_field(self, check_int, "exact_documents", 0)
        check_field(self, check_number, "document_cache_gib", 0, above=True)
        check_field(self, check_number, "disk_cache_gib", 0)
        if self.quotas is not None:
            object.__setattr__(self, "quotas", check_quotas(self.quotas))
        if self.disk_cache_dir is not None and not (
            isinstance(self.disk_cache_dir, str) and self.disk_cache_dir and self.disk_cache_gib
        ):
            msg = (
                "disk_cache_dir must be a folder, or None, and needs disk_cache_gib above 0, got "
                f"{self.disk_cache_dir!r} and {self.disk_cache_gib}"
            )
            raise ConfigurationError(msg)
