"""Policies of others, which keep queues of documents, over the leaves of the knowledge tree.

- S3-FIFO (Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023): a small queue
  of a tenth of the memory in front of a main queue, and a ghost queue of what went.
- W-TinyLFU (Einziger et al., TinyLFU: a highly efficient cache admission policy, 2017): a window of
  a hundredth of the memory, of which what was asked for more often than the next to go of the
  others is admitted to them. Counts are exact here, where the paper has a sketch.

Both are over objects that have nothing to do with each other. Over the tree they pass over nodes
that are no leaves, and sizes are counted in blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Iterator
from operator import attrgetter

from typing_extensions import override

from ragcache_integrations.knowledge_tree.node import Key, Node
from ragcache_integrations.knowledge_tree.policies import lru
from ragcache_integrations.knowledge_tree.shares import Share
from ragcache_integrations.knowledge_tree.tier import Tier

__all__ = ["S3FifoTier", "WTinyLfuTier"]

SMALL = 0.1
MOST = 3
TO_MAIN = 2
"""Accesses after the first with which a document leaves the small queue for the main one."""

WINDOW = 0.01
PROTECTED = 0.8
AGING = 10
"""Counts are halved once what was asked for would have filled the memory so often."""


class _Queue:
    """Nodes in order, the next to go first, and the blocks that they have together."""

    def __init__(self) -> None:
        self._nodes: OrderedDict[Node, None] = OrderedDict()
        self.blocks = 0

    def __contains__(self, node: Node) -> bool:
        return node in self._nodes

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def put(self, node: Node) -> None:
        """Place a node last, whether it is here or not."""
        if node in self._nodes:
            self._nodes.move_to_end(node)
        else:
            self._nodes[node] = None
            self.blocks += len(node.keys)

    def drop(self, node: Node) -> None:
        """Take a node out."""
        del self._nodes[node]
        self.blocks -= len(node.keys)

    def leaf(self) -> Node | None:
        """The first leaf that may be evicted."""
        return next((node for node in self._nodes if _is_leaf(node)), None)


def _is_leaf(node: Node) -> bool:
    return bool(node.gpu.idle) and not node.gpu.idle_below


class _QueuedTier(Tier[int], ABC):
    """A GPU tier whose next leaf to go is not that of the lowest priority."""

    def __init__(self, blocks: int) -> None:
        super().__init__(attrgetter("gpu"), lru)
        self._blocks = blocks

    @override
    def price(self, node: Node) -> None:
        super().price(node)
        if node.keys:
            self._access(node)

    @override
    def evict(
        self, at_most: int, share: Share | None = None
    ) -> tuple[Node, list[tuple[Key, int]]] | None:
        evicted = super().evict(at_most, share)
        if evicted is not None and evicted[0].gpu.empty:
            self._gone(evicted[0])
        return evicted

    @abstractmethod
    def _access(self, node: Node) -> None:
        """Note that a node was asked for."""

    @abstractmethod
    def _gone(self, node: Node) -> None:
        """Note that a node was evicted."""


class S3FifoTier(_QueuedTier):
    """S3-FIFO.

    Args:
        blocks: Blocks of the GPU tier.
    """

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self._small, self._main = _Queue(), _Queue()
        self._hits: Counter[Node] = Counter()
        self._ghosts: OrderedDict[Key, int] = OrderedDict()
        self._ghost_blocks = 0

    @override
    def _access(self, node: Node) -> None:
        if node in self._small or node in self._main:
            self._hits[node] = min(self._hits[node] + 1, MOST)
        elif (size := self._ghosts.pop(node.keys[-1], None)) is not None:
            self._ghost_blocks -= size
            self._main.put(node)
        else:
            self._small.put(node)

    @override
    def _lowest(self, share: Share | None) -> Node | None:
        while True:
            small, main = self._small.leaf(), self._main.leaf()
            if small is not None and (main is None or self._small.blocks > SMALL * self._blocks):
                if self._hits[small] < TO_MAIN:
                    return small
                self._small.drop(small)
                self._main.put(small)
                self._hits[small] = 0
            elif main is None or not self._hits[main]:
                return main
            else:
                self._hits[main] -= 1
                self._main.put(main)

    @override
    def _gone(self, node: Node) -> None:
        del self._hits[node]
        if node in self._main:
            self._main.drop(node)
            return
        self._small.drop(node)
        self._ghosts[node.keys[-1]] = len(node.keys)
        self._ghost_blocks += len(node.keys)
        while self._ghost_blocks > (1 - SMALL) * self._blocks:
            self._ghost_blocks -= self._ghosts.popitem(last=False)[1]


class WTinyLfuTier(_QueuedTier):
    """W-TinyLFU.

    Args:
        blocks: Blocks of the GPU tier.
    """

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self._window, self._probation, self._protected = _Queue(), _Queue(), _Queue()
        self._counts: Counter[Key] = Counter()
        self._asked = 0

    @override
    def _access(self, node: Node) -> None:
        self._count(node)
        if node in self._protected:
            self._protected.put(node)
        elif node in self._probation:
            self._probation.drop(node)
            self._protected.put(node)
            while self._protected.blocks > PROTECTED * (1 - WINDOW) * self._blocks:
                demoted = next(iter(self._protected))
                self._protected.drop(demoted)
                self._probation.put(demoted)
        else:
            self._window.put(node)
            self._fill_up()

    def _fill_up(self) -> None:
        """While the memory has room, what leaves the window is admitted without a contest."""
        while self._window.blocks > WINDOW * self._blocks and (
            self._probation.blocks + self._protected.blocks < (1 - WINDOW) * self._blocks
        ):
            admitted = next(iter(self._window))
            self._window.drop(admitted)
            self._probation.put(admitted)

    @override
    def _lowest(self, share: Share | None) -> Node | None:
        while True:
            candidate = self._window.leaf()
            victim = self._probation.leaf() or self._protected.leaf()
            if candidate is None or victim is None:
                return candidate or victim
            if self._window.blocks <= WINDOW * self._blocks:
                return victim
            counts = self._counts
            if counts[candidate.keys[-1]] <= counts[victim.keys[-1]]:
                return candidate
            self._window.drop(candidate)
            self._probation.put(candidate)
            return victim

    @override
    def _gone(self, node: Node) -> None:
        for queue in (self._window, self._probation, self._protected):
            if node in queue:
                queue.drop(node)

    def _count(self, node: Node) -> None:
        self._counts[node.keys[-1]] += 1
        self._asked += len(node.keys)
        if self._asked > AGING * self._blocks:
            self._asked = 0
            self._counts = Counter(
                {name: times // 2 for name, times in self._counts.items() if times > 1}
            )
