"""The settings of document order, and their limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from ragcache_integrations.core.checks import is_number, is_whole
from ragcache_integrations.engine.generation import EngineStats
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.snapshot import TreeSnapshot

__all__ = ["Order", "OrderSettings", "TreeSource", "Uncached"]

Order = Literal["relevance", "reverse", "cached_first"]
Uncached = Literal["auto", "relevance", "popularity"]


class TreeSource(Protocol):
    """What of :class:`~ragcache_integrations.engine.RAGCacheEngine` the order needs."""

    total_kv_tokens: int
    block_size: int

    def tree(self) -> TreeSnapshot | None:
        """What is cached now."""

    def stats(self) -> EngineStats:
        """What is known without asking the engine's process."""


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """The arguments of :class:`~ragcache_integrations.prompts.order.order.DocumentOrder`, checked.

    Raises:
        ConfigurationError: One is out of its range, or asks for what the order does not do.
    """

    order: Order = "relevance"
    max_displacement: int | None = None
    pin_top: int = 0
    uncached: Uncached = "auto"
    cache_tokens: int | None = None
    engine: TreeSource | None = None
    refresh_seconds: float = 30.0

    def __post_init__(self) -> None:
        _check_name("order", self.order, get_args(Order))
        _check_name("uncached", self.uncached, get_args(Uncached))
        limit = self.max_displacement
        if limit is not None and not (is_whole(limit) and limit >= 0):
            msg = (
                "max_displacement must be a whole number of at least 0, or None for no limit, "
                f"got {limit!r}"
            )
            raise ConfigurationError(msg)
        if not is_whole(self.pin_top) or self.pin_top < 0:
            msg = f"pin_top must be a whole number of at least 0, got {self.pin_top!r}"
            raise ConfigurationError(msg)
        if self.order == "reverse" and (self.pin_top or limit is not None):
            msg = "pin_top and max_displacement keep the order of relevance, reverse turns it round"
            raise ConfigurationError(msg)
        self._check_cache()

    def _check_cache(self) -> None:
        if self.cache_tokens is not None and not (
            is_whole(self.cache_tokens) and self.cache_tokens >= 1
        ):
            msg = f"cache_tokens must be a whole number above 0, or None, got {self.cache_tokens!r}"
            raise ConfigurationError(msg)
        if not is_number(self.refresh_seconds) or self.refresh_seconds <= 0:
            msg = f"refresh_seconds must be a number above 0, got {self.refresh_seconds!r}"
            raise ConfigurationError(msg)
        needed = ("tree", "stats", "total_kv_tokens", "block_size")
        if self.engine is not None and not all(hasattr(self.engine, name) for name in needed):
            msg = f"engine must be a RAGCacheEngine, got {type(self.engine).__name__}"
            raise ConfigurationError(msg)

    def room(self) -> int | None:
        """Tokens that the cache holds: as set, or of the engine's tiers; ``None`` if not known.

        The engine's host tier is counted once a request has ended.
        """
        if self.cache_tokens is not None or self.engine is None:
            return self.cache_tokens
        tree = self.engine.stats().tree
        host_blocks = tree.host_blocks if tree is not None else 0
        return self.engine.total_kv_tokens + host_blocks * self.engine.block_size


def _check_name(what: str, name: object, allowed: tuple[str, ...]) -> None:
    if name not in allowed:
        msg = f"{what} must be one of {', '.join(allowed)}, got {name!r}"
        raise ConfigurationError(msg)
