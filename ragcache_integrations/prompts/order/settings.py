"""The settings of document order, and their limits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol, get_args

from ragcache_integrations.core.checks import check_choice, check_int, check_number
from ragcache_integrations.engine.protocol import EngineStats
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.snapshot import TreeSnapshot

__all__ = ["Order", "OrderSettings", "TreeSource", "Uncached", "order_arguments"]

Order = Literal["relevance", "reverse", "cached_first", "auto"]
Uncached = Literal["auto", "relevance", "popularity"]


class TreeSource(Protocol):
    """The part of :class:`~ragcache_integrations.engine.RAGCacheEngine` that the order needs."""

    total_kv_tokens: int
    block_size: int

    def tree(self) -> TreeSnapshot | None:
        """The knowledge tree as it is now."""

    def stats(self) -> EngineStats:
        """Counters that are known without asking the engine's process."""


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """The arguments of :class:`~ragcache_integrations.prompts.order.order.DocumentOrder`, checked.

    Raises:
        ConfigurationError: An argument is out of range, or has no meaning for this order.
    """

    order: Order = "relevance"
    max_displacement: int | None = None
    pin_top: int = 0
    uncached: Uncached = "auto"
    cache_tokens: int | None = None
    engine: TreeSource | None = None
    refresh_seconds: float = 30.0
    min_saved_share: float = 0.2

    def __post_init__(self) -> None:
        check_choice("order", self.order, get_args(Order))
        check_choice("uncached", self.uncached, get_args(Uncached))
        limit = self.max_displacement
        if limit is not None:
            check_int("max_displacement", limit, 0, also="None for no limit")
        check_int("pin_top", self.pin_top, 0)
        if self.order == "reverse" and (self.pin_top or limit is not None):
            msg = "pin_top and max_displacement keep the order of relevance, reverse turns it round"
            raise ConfigurationError(msg)
        if self.cache_tokens is not None:
            check_int("cache_tokens", self.cache_tokens, 1, also="None")
        check_number("refresh_seconds", self.refresh_seconds, 0, above=True, unit="seconds")
        check_number("min_saved_share", self.min_saved_share, 0, 1)
        needed = ("tree", "stats", "total_kv_tokens", "block_size")
        if self.engine is not None and not all(hasattr(self.engine, name) for name in needed):
            msg = f"engine must be a RAGCacheEngine, got {type(self.engine).__name__}"
            raise ConfigurationError(msg)

    def room(self) -> int | None:
        """Tokens that the cache holds: the setting, or those of the engine's tiers.

        The engine's host tier is not counted before a request has ended. ``None`` if neither is
        known.
        """
        if self.cache_tokens is not None or self.engine is None:
            return self.cache_tokens
        tree = self.engine.stats().tree
        host_blocks = tree.host_blocks if tree is not None else 0
        return self.engine.total_kv_tokens + host_blocks * self.engine.block_size


def order_arguments(settings: object) -> dict[str, Any]:
    """The attributes of an object that are arguments of a document order, by name."""
    return {field.name: getattr(settings, field.name) for field in fields(OrderSettings)}
