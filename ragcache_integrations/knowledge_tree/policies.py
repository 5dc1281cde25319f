"""What is worth keeping: the replacement policies.

A policy gives a node a priority at each access; the lowest-priority leaf of a tier is evicted
first. All have one signature, so that they can be compared on the same tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from .popularity import NEVER

__all__ = ["DEFAULT_POLICY", "POLICIES", "Policy", "Priced", "gdsf", "lfu", "lrfu", "lru", "pgdsf"]


class Priced(Protocol):
    """What a policy sees of a node, or of anything else that is kept."""

    @property
    def frequency(self) -> int:
        """Accesses so far."""

    @property
    def popularity(self) -> float:
        """Base-2 logarithm of the accesses, those of long ago counting less."""

    @property
    def average_cost(self) -> float:
        """Seconds to compute a token of it again."""

    @property
    def last_access(self) -> int:
        """Number of the latest access."""


Policy = Callable[[Priced, float], float]
"""Takes a node and its tier's clock, gives the node's priority."""


def lrfu(node: Priced, clock: float) -> float:  # noqa: ARG001 - one signature for all policies
    """Least recently and frequently used, by cost.

    The base-2 logarithm of ``popularity * average cost``: accesses count half as much after each
    half-life (see :mod:`.popularity`). What was never computed goes first.
    """
    cost = node.average_cost
    return node.popularity + math.log2(cost) if cost > 0 else NEVER


def pgdsf(node: Priced, clock: float) -> float:
    """Prefix-aware Greedy-Dual-Size-Frequency (RAGCache §5.1, formulas 1 and 3).

    ``Clock + Frequency * AvgCost``, the average cost being the prefill time per computed token of
    the requests that found the document missing.
    """
    return clock + node.frequency * node.average_cost


def gdsf(node: Priced, clock: float) -> float:
    """Greedy-Dual-Size-Frequency with a cost proportional to the size (RAGCache §7.3).

    Cost over size is then the same for every document: ``Clock + Frequency``.
    """
    return clock + node.frequency


def lru(node: Priced, clock: float) -> float:  # noqa: ARG001 - one signature for all policies
    """Least recently used."""
    return node.last_access


def lfu(node: Priced, clock: float) -> float:  # noqa: ARG001 - one signature for all policies
    """Least frequently used; counts survive eviction."""
    return node.frequency


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {"lrfu": lrfu, "pgdsf": pgdsf, "gdsf": gdsf, "lru": lru, "lfu": lfu}
)

DEFAULT_POLICY = "lrfu"
"""The one whose largest regret is smallest in ``benchmarks/knowledge_tree_simulator.py``."""
