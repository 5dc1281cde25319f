"""One tier of the cache: its blocks, its clock, and the heap of what goes first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from .node import Key, Node, Shelf
from .policies import Policy

__all__ = ["Tier"]

Slot = TypeVar("Slot")

HEAP_SLACK = 256
"""Outdated heap entries that are tolerated before the heap is rebuilt."""


class Tier(Generic[Slot]):
    """Blocks of a tier, each idle (it may be evicted) or busy (it must stay).

    Leaves that a request waits for go after all others: its access is certain and near, that of any
    other leaf is only probable. Of leaves that are alike in this, the one with the lowest priority
    goes first. It is found through a heap in O(log n). An entry is outdated, and skipped when it
    comes up, unless it carries the stamp that its node's shelf carries.

    Args:
        shelf: Gets a node's shelf in this tier.
        policy: Prices a node at this tier's clock.
    """

    def __init__(self, shelf: Callable[[Node], Shelf], policy: Policy) -> None:
        self._shelf = shelf
        self._policy = policy
        self.clock = 0.0
        self.slots: dict[Key, Slot] = {}
        self._heap: list[tuple[bool, float, int, Node]] = []  # first, whether requests need it
        self._stamps = itertools.count()
        self._candidates = 0

    def __len__(self) -> int:
        return len(self.slots)

    def __contains__(self, key: Key) -> bool:
        return key in self.slots

    def price(self, node: Node) -> None:
        """Set a node's priority by the clock of now."""
        shelf = self._shelf(node)
        shelf.priority = self._policy(node, self.clock)
        if shelf.idle and not shelf.idle_below:
            self._push(node, shelf)

    def spare(self, node: Node) -> None:
        """No request needs a node any more."""
        shelf = self._shelf(node)
        if shelf.idle and not shelf.idle_below:
            self._push(node, shelf)

    def add_idle(self, node: Node, key: Key, slot: Slot) -> None:
        """Take a block in; it may be evicted from now on."""
        self.slots[key] = slot
        self._make_idle(node, key)

    def hold(self, node: Node, key: Key) -> Slot:
        """Keep a block from eviction until it is released."""
        shelf = self._shelf(node)
        if key in shelf.idle:
            self._end_idle(node, shelf, key)
            shelf.busy.add(key)
        return self.slots[key]

    def release(self, node: Node, key: Key) -> None:
        """Undo :meth:`hold`; of no effect on an idle block."""
        shelf = self._shelf(node)
        if key in shelf.busy:
            shelf.busy.discard(key)
            self._make_idle(node, key)

    def touch(self, node: Node, key: Key) -> None:
        """Let an idle block be the last of its node's to go, for now."""
        idle = self._shelf(node).idle
        del idle[key]
        idle[key] = None

    def remove(self, node: Node, key: Key) -> Slot:
        """Forget an idle block, which is not an eviction: the clock stays."""
        self._end_idle(node, self._shelf(node), key)
        return self.slots.pop(key)

    def evict(self, at_most: int) -> tuple[Node, list[tuple[Key, Slot]]] | None:
        """Free blocks of the leaf that goes first, its last block first.

        The clock rises to the leaf's priority (RAGCache §5.1, formula 2).

        Args:
            at_most: How many blocks to free; fewer where the leaf has fewer.

        Returns:
            The leaf and its blocks that went; ``None`` where nothing may be evicted.
        """
        node = self._lowest()
        if node is None:
            return None
        shelf = self._shelf(node)
        self.clock = max(self.clock, shelf.priority)
        keys = list(itertools.islice(shelf.idle, at_most))
        for key in keys:
            self._end_idle(node, shelf, key)
        return node, [(key, self.slots.pop(key)) for key in keys]

    def clear(self) -> None:
        """Forget everything, the clock included. The nodes' shelves are the caller's."""
        self.clock = 0.0
        self.slots.clear()
        self._heap.clear()
        self._candidates = 0

    def _lowest(self) -> Node | None:
        heap = self._heap
        while heap:
            needed, _, stamp, node = heap[0]
            shelf = self._shelf(node)
            if shelf.stamp != stamp or not shelf.idle or shelf.idle_below:
                heapq.heappop(heap)
            elif node.requests and not needed:  # a request came after the entry was made
                heapq.heapreplace(heap, (True, shelf.priority, stamp, node))
            else:
                return node
        return None

    def _make_idle(self, node: Node, key: Key) -> None:
        shelf = self._shelf(node)
        first = not shelf.idle
        shelf.idle[key] = None
        if not first:
            return
        self._candidates += 1
        if not shelf.idle_below:
            self._tell_ancestors(node, 1)
            self._push(node, shelf)

    def _end_idle(self, node: Node, shelf: Shelf, key: Key) -> None:
        del shelf.idle[key]
        if shelf.idle:
            return
        self._candidates -= 1
        if not shelf.idle_below:
            self._tell_ancestors(node, -1)

    def _tell_ancestors(self, node: Node, change: int) -> None:
        """A subtree got its first idle block, or lost its last one."""
        for parent in _ancestors(node):
            shelf = self._shelf(parent)
            before = bool(shelf.idle_below)
            shelf.idle_below += change
            if shelf.idle:
                if not shelf.idle_below:
                    self._push(parent, shelf)  # it has become a leaf
                return
            if bool(shelf.idle_below) == before:
                return

    def _push(self, node: Node, shelf: Shelf) -> None:
        shelf.stamp = next(self._stamps)
        heapq.heappush(self._heap, (bool(node.requests), shelf.priority, shelf.stamp, node))
        if len(self._heap) > 2 * self._candidates + HEAP_SLACK:
            self._heap = [
                entry
                for entry in self._heap
                if (shelf := self._shelf(entry[-1])).stamp == entry[-2]
                and shelf.idle
                and not shelf.idle_below
            ]
            heapq.heapify(self._heap)


def _ancestors(node: Node) -> Iterator[Node]:
    parent = node.parent
    while parent is not None:
        yield parent
        parent = parent.parent
