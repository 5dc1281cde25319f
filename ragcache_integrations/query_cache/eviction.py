"""Which entry makes room for a new one.

A policy sees slots, the numbers of a cache's preallocated rows, and writes one stamp per slot: the
lowest stamp goes first. In the manner of cachetools, a policy is a few lines over one contract.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

__all__ = ["POLICIES", "Eviction", "FIFOEviction", "LRUEviction"]

Eviction = Literal["lru", "fifo"]


class FIFOEviction:
    """First in, first out: the oldest entry goes, however often it was used.

    Args:
        capacity: Number of slots.
    """

    def __init__(self, capacity: int) -> None:
        self._stamps = np.zeros(capacity, dtype=np.int64)
        self._clock = 0

    def inserted(self, slot: int) -> None:
        """Note that an entry was put into the slot."""
        self._clock += 1
        self._stamps[slot] = self._clock

    def used(self, slot: int) -> None:
        """Note that the slot's entry answered a query."""

    def victim(self) -> int:
        """Return the slot to be emptied. Every slot must be full."""
        return int(self._stamps.argmin())


class LRUEviction(FIFOEviction):
    """Least recently used: the entry goes that was neither inserted nor used for longest."""

    def used(self, slot: int) -> None:
        """Note that the slot's entry answered a query."""
        self.inserted(slot)


POLICIES: dict[Eviction, type[FIFOEviction]] = {"lru": LRUEviction, "fifo": FIFOEviction}
