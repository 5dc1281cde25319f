"""The settings of document order, and how far an order may be from that of relevance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol, Self

from pydantic import ConfigDict, Field, SkipValidation, model_validator

from ragcache_integrations.core.checks import check_int, check_number, or_none
from ragcache_integrations.core.knobs import (
    CheckedSettings,
    Count,
    PositiveOrNone,
    Seconds,
    checked,
)
from ragcache_integrations.engine.protocol import EngineStats
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.snapshot import TreeSnapshot

__all__ = [
    "Order",
    "OrderSettings",
    "TreeSource",
    "Uncached",
    "cache_room",
    "may_follow",
    "within_limit",
]


def may_follow(placed: Sequence[int], candidate: int, limit: int) -> bool:
    """Whether a document may come next, so that all documents can stay within the limit.

    Documents are numbered by relevance, from 0. If the first remaining document is within the limit
    at the next place, the others are, too, in order of relevance: each document is pushed back once
    by every less relevant one before it, and the first one has the most of those before it.

    Args:
        placed: The documents before, within the limit.
        candidate: The next document; none of those placed.
        limit: The largest distance between a document's place and its number.
    """
    place = len(placed)
    if candidate - place > limit:
        return False
    first_left = 0
    while first_left == candidate or first_left in placed:
        first_left += 1
    return place + 1 - first_left <= limit


def within_limit(
    best: Sequence[int], limit: int | None, placed: Sequence[int] = ()
) -> tuple[int, ...]:
    """The order closest to the best one in which no document is too far from its place.

    At each place comes the first remaining document that may come there. The most relevant one
    always may.

    Args:
        best: The documents that are not placed yet, by number, in the best order.
        limit: As for :func:`may_follow`; ``None`` for no limit.
        placed: The documents before them, within the limit.

    Returns:
        All documents, beginning with those placed.
    """
    if limit is None:
        return (*placed, *best)
    order, left = list(placed), list(best)
    while left:
        chosen = next(number for number in left if may_follow(order, number, limit))
        left.remove(chosen)
        order.append(chosen)
    return tuple(order)


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


class OrderSettings(CheckedSettings):
    """The arguments of :class:`~ragcache_integrations.prompts.order.order.DocumentOrder`, checked.

    Raises:
        ConfigurationError: An argument is out of range, or has no meaning for this order.
    """

    model_config = ConfigDict(
        extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True
    )

    order: Order = "relevance"
    max_displacement: Annotated[
        int | None, checked(or_none(check_int), 0, also="None for no limit")
    ] = None
    pin_top: Count = 0
    uncached: Uncached = "auto"
    cache_tokens: PositiveOrNone = None
    engine: Annotated[TreeSource | None, SkipValidation] = Field(default=None, exclude=True)
    refresh_seconds: Seconds = 30.0
    min_saved_share: Annotated[float, checked(check_number, 0, 1)] = 0.2

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if self.order == "reverse" and (self.pin_top or self.max_displacement is not None):
            msg = "pin_top and max_displacement keep the order of relevance, reverse turns it round"
            raise ConfigurationError(msg)
        needed = ("tree", "stats", "total_kv_tokens", "block_size")
        if self.engine is not None and not all(hasattr(self.engine, name) for name in needed):
            msg = f"engine must be a RAGCacheEngine, got {type(self.engine).__name__}"
            raise ConfigurationError(msg)
        return self


def cache_room(settings: OrderSettings) -> int | None:
    """Tokens that the cache holds: the setting, or those of the engine's tiers.

    The engine's host tier is not counted before a request has ended. ``None`` if neither is known.
    """
    engine = settings.engine
    if settings.cache_tokens is not None or engine is None:
        return settings.cache_tokens
    tree = engine.stats().tree
    host_blocks = tree.host_blocks if tree is not None else 0
    return engine.total_kv_tokens + host_blocks * engine.block_size
