"""One tier of the cache: its blocks, its clocks, and the heaps of what goes first.

:class:`Windows` says which blocks of a document are kept in all tiers.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from .node import Key, Node, Shelf, in_group
from .policies import Policy
from .shares import Share

__all__ = ["Tier", "Windows"]

Slot = TypeVar("Slot")

HEAP_SLACK = 256
"""Outdated heap entries that are tolerated before the heap is rebuilt."""


class _Leaves:
    """What a tier has of one share.

    Attributes:
        clock: Rises to the priority of every node that is evicted.
        heap: Leaves, the next to go first; outdated entries among them.
        candidates: Nodes with something idle.
        blocks: Blocks of the share, idle and busy ones.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        self.heap: list[tuple[float, bool, float, float, int, Node]] = []
        self.candidates = 0
        self.blocks = 0


class Tier(Generic[Slot]):
    """Blocks of a tier, each idle (it may be evicted) or busy (it must stay).

    Of a share's leaves, those that only less urgent requests had go first. Of leaves that are alike
    in this, those that a request waits for go last: its access is certain and near, that of any
    other leaf is only probable. Of leaves that are alike in this, too, those without a hint go
    first, then those that a workflow needs later, then the one with the lowest priority. It is
    found through a heap in O(log n). An entry is outdated, and skipped when it comes up, unless it
    carries the stamp that its node's shelf carries.

    Args:
        shelf: Gets a node's shelf in this tier.
        policy: Prices a node at the clock of its share in this tier.

    Attributes:
        idle: How many blocks are idle.
    """

    def __init__(self, shelf: Callable[[Node], Shelf], policy: Policy) -> None:
        self._shelf = shelf
        self._policy = policy
        self.slots: dict[Key, Slot] = {}
        self.idle = 0
        self._parts: defaultdict[Share | None, _Leaves] = defaultdict(_Leaves)
        self._stamps = itertools.count()

    def __len__(self) -> int:
        return len(self.slots)

    def __contains__(self, key: Key) -> bool:
        return key in self.slots

    @property
    def clock(self) -> float:
        """The clock; of several shares' the one that is ahead."""
        return max((part.clock for part in self._parts.values()), default=0.0)

    def blocks(self, share: Share | None) -> int:
        """How many blocks of a share are here."""
        return self._parts[share].blocks

    def price(self, node: Node) -> None:
        """Set a node's priority by the clock of now."""
        shelf = self._shelf(node)
        shelf.priority = self._policy(node, self._parts[node.share].clock)
        self.spare(node)

    def spare(self, node: Node) -> None:
        """A node's place has changed: it may have to go sooner or later than before."""
        shelf = self._shelf(node)
        if shelf.idle and not shelf.idle_below:
            self._push(node, shelf)

    def add_idle(self, node: Node, key: Key, slot: Slot) -> None:
        """Take a block in; it may be evicted from now on."""
        self.slots[key] = slot
        self._parts[node.share].blocks += 1
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
        if key in idle:
            del idle[key]
            idle[key] = None

    def remove(self, node: Node, key: Key) -> Slot:
        """Forget a block, which is not an eviction: the clock stays."""
        shelf = self._shelf(node)
        if key in shelf.busy:
            shelf.busy.discard(key)
        else:
            self._end_idle(node, shelf, key)
        self._parts[node.share].blocks -= 1
        return self.slots.pop(key)

    def evict(
        self, at_most: int, share: Share | None = None
    ) -> tuple[Node, list[tuple[Key, Slot]]] | None:
        """Free blocks of the leaf of a share that goes first, its last block first.

        The clock rises to the leaf's priority (RAGCache §5.1, formula 2).

        Args:
            at_most: How many blocks to free; fewer where the leaf has fewer.
            share: Whose leaf.

        Returns:
            The leaf and its blocks that went; ``None`` where nothing may be evicted.
        """
        node = self._lowest(share)
        if node is None:
            return None
        part, shelf = self._parts[node.share], self._shelf(node)
        part.clock = max(part.clock, shelf.priority)
        keys = list(itertools.islice(shelf.idle, at_most))
        for key in keys:
            self._end_idle(node, shelf, key)
        part.blocks -= len(keys)
        return node, [(key, self.slots.pop(key)) for key in keys]

    def clear(self) -> None:
        """Forget everything, the clock included. The nodes' shelves are the caller's."""
        self.slots.clear()
        self.idle = 0
        self._parts.clear()

    def _lowest(self, share: Share | None) -> Node | None:
        heap = self._parts[share].heap
        while heap:
            urgency, needed, nearness, _, stamp, node = heap[0]
            shelf = self._shelf(node)
            if shelf.stamp != stamp or not shelf.idle or shelf.idle_below:
                heapq.heappop(heap)
            elif (urgency, needed, nearness) < (node.urgency, node.requests > 0, node.nearness):
                # A request or a hint came after the entry was made.
                heapq.heapreplace(heap, _entry(node, shelf))
            else:
                return node
        return None

    def _make_idle(self, node: Node, key: Key) -> None:
        shelf = self._shelf(node)
        first = not shelf.idle
        shelf.idle[key] = None
        self.idle += 1
        if not first:
            return
        self._parts[node.share].candidates += 1
        if not shelf.idle_below:
            self._tell_ancestors(node, 1)
            self._push(node, shelf)

    def _end_idle(self, node: Node, shelf: Shelf, key: Key) -> None:
        del shelf.idle[key]
        self.idle -= 1
        if shelf.idle:
            return
        self._parts[node.share].candidates -= 1
        if not shelf.idle_below:
            self._tell_ancestors(node, -1)

    def _tell_ancestors(self, node: Node, change: int) -> None:
        """A subtree got its first idle block, or lost its last one."""
        parent = node.parent
        while parent is not None:
            shelf = self._shelf(parent)
            before = bool(shelf.idle_below)
            shelf.idle_below += change
            if shelf.idle:
                if not shelf.idle_below:
                    self._push(parent, shelf)  # it has become a leaf
                return
            if bool(shelf.idle_below) == before:
                return
            parent = parent.parent

    def _push(self, node: Node, shelf: Shelf) -> None:
        part = self._parts[node.share]
        shelf.stamp = next(self._stamps)
        heapq.heappush(part.heap, _entry(node, shelf))
        if len(part.heap) > 2 * part.candidates + HEAP_SLACK:
            part.heap = [
                entry
                for entry in part.heap
                if (shelf := self._shelf(entry[-1])).stamp == entry[-2]
                and shelf.idle
                and not shelf.idle_below
            ]
            heapq.heapify(part.heap)


def _entry(node: Node, shelf: Shelf) -> tuple[float, bool, float, float, int, Node]:
    """What a leaf goes by, and its stamp."""
    needed = node.requests > 0
    return node.urgency, needed, node.nearness, shelf.priority, shelf.stamp, node


class Windows:
    """Which blocks of a document are kept, where some layers see only a part of the prompt.

    Layers that do have blocks of their own, in groups. A prompt that continues after a document
    needs of such a group the last blocks before the document's end, and no others. The tail that a
    document's followers need of it is never longer than its own: it is enough to look at each
    document's end.

    Args:
        windows: For each group, how many blocks before a place a prompt needs to continue there;
            ``None`` for all.
    """

    def __init__(self, windows: Sequence[int | None] = (None,)) -> None:
        self._windows = tuple(windows)
        self._longest = max((blocks for blocks in windows if blocks is not None), default=0)
        self._behind: dict[Key, int] = {}  # in its document, of those in the longest window

    def __len__(self) -> int:
        """Number of groups."""
        return len(self._windows)

    @property
    def whole(self) -> bool:
        """Whether there is one group, and it needs everything."""
        return self._windows == (None,)

    def enter(self, keys: Sequence[Key]) -> None:
        """Take in a document's blocks."""
        if self._longest:
            self._behind.update(zip(reversed(keys[-self._longest :]), itertools.count()))

    def leave(self, keys: Sequence[Key]) -> None:
        """Forget a document's blocks."""
        if self._longest:
            for key in keys[-self._longest :]:
                del self._behind[key]

    def clear(self) -> None:
        """Forget all documents."""
        self._behind.clear()

    def keep(self, key: Key, group: int) -> bool:
        """Whether anything after its document needs a block of a group."""
        window = self._windows[group]
        return window is None or self._behind.get(key, window) < window

    def size(self, blocks: int) -> int:
        """Blocks of all groups that are kept of a document with a number of keys."""
        return sum(blocks if window is None else min(blocks, window) for window in self._windows)

    def first(self, group: int, start: int, end: int) -> int:
        """The first block from ``start`` on that a group needs to continue at ``end``."""
        window = self._windows[group]
        return start if window is None else max(start, end - window)

    def furthest(self, keys: Sequence[Key], start: int, there: Callable[[Key], bool]) -> int:
        """The last place at which a prompt can continue with blocks of some tier.

        Args:
            keys: The prompt's blocks.
            start: Up to where every group has what it needs without the tier.
            there: Whether the tier has a block, by its name in the tier.

        Returns:
            A number of blocks, ``start`` where the tier is of no use.
        """
        furthest = start
        gaps = [start] * len(self)  # where each group's latest run of blocks begins
        for at in range(start, len(keys)):
            for group, window in enumerate(self._windows):
                if not there(in_group(keys[at], group)):
                    if window is None:
                        return furthest
                    gaps[group] = at + 1
            if all(gap <= self.first(group, start, at + 1) for group, gap in enumerate(gaps)):
                furthest = at + 1
        return furthest
