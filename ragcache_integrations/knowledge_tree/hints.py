"""Hints of what is needed soon: steps of a workflow, and how many are before each (KVFlow)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from .node import Node

__all__ = ["HINTED", "Hints"]

HINTED = 0.75
"""Largest part of a tenant's share of the GPU that hints may keep: wrong ones cost no more."""


@dataclass(slots=True)
class _Hint:
    nodes: tuple[Node, ...]
    steps: int
    until: float


class Hints:
    """The hints of a tree, each of a path that a workflow needs after a number of steps.

    Nodes that are needed sooner are evicted later, and all of them after those without a hint. A
    hint keeps nothing in use: what is pinned, or another tenant's, is not touched for it.

    Args:
        spare: Called with a node that is needed later than before, or not at all.
        size: Blocks that are kept of a node.
        now: Clock, in seconds.
    """

    def __init__(
        self,
        spare: Callable[[Node], None],
        size: Callable[[Node], int],
        now: Callable[[], float],
    ) -> None:
        self._spare = spare
        self._size = size
        self._now = now
        self._hints: dict[Hashable, _Hint] = {}
        # Both save searching all hints for a node: paths may have thousands of them.
        self._steps: dict[Node, list[int]] = {}
        self._blocks: Counter[object] = Counter()  # that the hints of a share keep

    def __len__(self) -> int:
        return len(self._hints)

    def add(
        self, name: Hashable, nodes: tuple[Node, ...], steps: int, ttl: float, most: int
    ) -> tuple[bool, tuple[Node, ...]]:
        """Add a hint, or replace the one of its name. Hints that are farther make room for it.

        Args:
            name: Of the hint.
            nodes: Of its path, and what is before them, each once; all of one tenant's.
            steps: How many steps are before it.
            ttl: Seconds for which it holds.
            most: Blocks that all hints of this tenant may keep.

        Returns:
            Whether there is room for it, and nodes that have no hint any more.
        """
        gone = set(self.remove(name))
        share = nodes[-1].share
        more = sum(self._size(node) for node in nodes if not node.hints)
        while self._blocks[share] + more > most:
            others = [key for key, hint in self._hints.items() if hint.nodes[-1].share is share]
            farthest = max(others, key=lambda key: self._hints[key].steps, default=None)
            if farthest is None or self._hints[farthest].steps <= steps:
                return False, tuple(gone)
            spared = set(self.remove(farthest))
            more += sum(self._size(node) for node in nodes if node in spared)
            gone |= spared
        self._hints[name] = _Hint(nodes, steps, self._now() + ttl)
        self._blocks[share] += more
        for node in nodes:
            node.hints += 1
            self._steps.setdefault(node, []).append(steps)
            node.nearness = max(node.nearness, _nearness(steps))
        return True, tuple(node for node in gone if not node.hints)

    def remove(self, name: Hashable) -> tuple[Node, ...]:
        """Remove a hint.

        Returns:
            Nodes that have no hint any more, the last of a path first.
        """
        hint = self._hints.pop(name, None)
        if hint is None:
            return ()
        share = hint.nodes[-1].share
        for node in hint.nodes:
            node.hints -= 1
            steps = self._steps[node]
            steps.remove(hint.steps)
            if not steps:
                del self._steps[node]
                self._blocks[share] -= self._size(node)
            node.nearness = _nearness(min(steps)) if steps else 0.0
            self._spare(node)
        return tuple(node for node in hint.nodes if not node.hints)

    def expire(self) -> tuple[Node, ...]:
        """Remove the hints whose time is over, and return nodes without a hint."""
        now = self._now()
        over = [name for name, hint in self._hints.items() if hint.until <= now]
        return tuple(node for name in over for node in self.remove(name))

    def steps(self, name: Hashable) -> float:
        """How many steps are before a hint; infinite if there is none of this name."""
        hint = self._hints.get(name)
        return math.inf if hint is None else hint.steps


def _nearness(steps: int) -> float:
    return 1 / (1 + steps)
