"""Promises about paths of the tree, each for a time: pins and hints.

A pinned document stays in the GPU until it is unpinned or its time is over. A hint says what is
needed soon: steps of a workflow, and how many are before each (KVFlow).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragcache_integrations.errors import ConfigurationError

from .node import Node, in_group
from .shares import Share
from .tier import Tier, Windows

__all__ = ["HINTED", "Hints", "Pins", "chain"]


@dataclass(slots=True)
class _Pin:
    nodes: tuple[Node, ...]
    until: float


@dataclass(eq=False, kw_only=True)
class Pins:
    """The pins of a tree, each of a path.

    A pin keeps all blocks of its path in the GPU, from the beginning of the prompt to the end of
    its last document: without those before it, a block is of no use. Blocks that are not computed
    yet are kept as soon as they are. The room for all of them is set aside at once, so that a pin
    that was accepted is never broken. A tenant has no more pins than its share has blocks: those of
    documents that are shorter than a block need no room, but are remembered, too.

    Attributes:
        gpu: The tier in which they stay.
        capacity: Its blocks.
        longest: Blocks of the longest request, for which there must always be room.
        block_size: Tokens per block.
        now: Clock, in seconds.
        windows: Which blocks of a document are kept.
        blocks: How many blocks are set aside for all pins.
    """

    gpu: Tier[Any]
    capacity: int
    longest: int
    block_size: int
    now: Callable[[], float]
    windows: Windows

    def __post_init__(self) -> None:
        self._pins: dict[Node, _Pin] = {}
        self._numbers: Counter[Share | None] = Counter()  # of the pins of each share
        self._next_end = math.inf
        self.blocks = 0

    def __len__(self) -> int:
        return len(self._pins)

    def add(self, nodes: tuple[Node, ...], ttl: float | None, *, quotas: bool) -> None:
        """Pin a path; one that is pinned gets the new time.

        Args:
            nodes: Of the path, in order.
            ttl: Seconds; ``None`` for no end.
            quotas: Whether tenants have quotas, so that a tenant's pins must fit its share.

        Raises:
            ConfigurationError: There would be no room for the longest request, or the pins would
                exceed the tenant's quota, or there are too many.
        """
        until = math.inf if ttl is None else self.now() + ttl
        pin = self._pins.get(nodes[-1])
        if pin is None:
            kept = tuple(chain(nodes))
            self._check(kept, quotas=quotas)
            for node in kept:
                node.pins += 1
                if node.pins == 1:
                    self._count(node, 1)
                    for key in list(node.gpu.idle):
                        self.gpu.hold(node, key)
            pin = self._pins[nodes[-1]] = _Pin(kept, until)
            self._numbers[nodes[-1].share] += 1
        pin.until = until
        self._next_end = min(self._next_end, until)

    def remove(self, last: Node) -> tuple[Node, ...]:
        """Unpin the path that ends with a node.

        Returns:
            The nodes of the path, the last one first; none if it was not pinned.
        """
        pin = self._pins.pop(last, None)
        if pin is None:
            return ()
        self._numbers[last.share] -= 1
        for node in pin.nodes:
            node.pins -= 1
            if not node.pins:
                self._count(node, -1)
                for key in reversed(node.keys):  # the last block is the first to go
                    for group in range(len(self.windows)):
                        self.gpu.release(node, in_group(key, group))
        return pin.nodes

    def over(self) -> Iterable[Node]:
        """The last nodes of paths whose time is over."""
        now = self.now()
        if now < self._next_end:
            return ()
        over = [node for node, pin in self._pins.items() if pin.until <= now]
        self._next_end = min(
            (pin.until for pin in self._pins.values() if pin.until > now), default=math.inf
        )
        return over

    def seconds_left(self) -> Mapping[Node, float]:
        """How long each pinned node stays so, by its longest pin."""
        left: dict[Node, float] = {}
        now = self.now()
        for pin in self._pins.values():
            for node in pin.nodes:
                left[node] = max(left.get(node, 0.0), pin.until - now)
        return left

    def _check(self, kept: Sequence[Node], *, quotas: bool) -> None:
        share = kept[0].share
        most = self.capacity if share is None else share.blocks(self.capacity)
        if self._numbers[share] >= most:
            msg = f"there are {most} pins already, and may be no more than the cache has blocks"
            raise ConfigurationError(msg + " for this tenant" * quotas)
        new = [node for node in kept if not node.pins]
        blocks = sum(self.windows.size(len(node.keys)) for node in new)
        if not blocks:
            return
        most = self.capacity - self.longest
        if self.blocks + blocks > most:
            raise ConfigurationError(
                f"{self._blocks(blocks)} cannot be pinned: {self._blocks(self.blocks)} are pinned "
                f"already, and of {self.capacity} at most {max(0, most)} may be, so that there is "
                f"room for the longest request of {self._blocks(self.longest)}"
            )
        if quotas and share is not None:
            most = share.blocks(self.capacity)
            if share.pinned + blocks > most:
                raise ConfigurationError(
                    f"{self._blocks(blocks)} cannot be pinned: {self._blocks(share.pinned)} of "
                    f"this tenant are pinned already, and its quota of {share.quota:g} is "
                    f"{self._blocks(most)}"
                )

    def _blocks(self, blocks: int) -> str:
        return f"{blocks} blocks ({blocks * self.block_size} tokens)"

    def _count(self, node: Node, sign: int) -> None:
        blocks = sign * self.windows.size(len(node.keys))
        self.blocks += blocks
        if node.share is not None:
            node.share.pinned += blocks


def chain(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """The nodes of a path and all owners of blocks before theirs, the last one first."""
    seen: set[Node] = set()
    for node in reversed(nodes):
        above: Node | None = node
        while above is not None and above.parent is not None and above not in seen:
            seen.add(above)
            yield above
            above = above.parent


HINTED = 0.75
"""Largest part of a tenant's share of the GPU that hints may keep: wrong ones cost no more."""


@dataclass(slots=True)
class _Hint:
    nodes: tuple[Node, ...]
    steps: int
    until: float


@dataclass(eq=False)
class Hints:
    """The hints of a tree, each of a path that a workflow needs after a number of steps.

    Nodes that are needed sooner are evicted later, and all of them after those without a hint. A
    hint keeps nothing in use: what is pinned, or another tenant's, is not touched for it.

    Attributes:
        spare: Called with a node that is needed later than before, or not at all.
        size: Blocks that are kept of a node.
        now: Clock, in seconds.
    """

    spare: Callable[[Node], None]
    size: Callable[[Node], int]
    now: Callable[[], float]

    def __post_init__(self) -> None:
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
        more = sum(self.size(node) for node in nodes if not node.hints)
        while self._blocks[share] + more > most:
            others = [key for key, hint in self._hints.items() if hint.nodes[-1].share is share]
            farthest = max(others, key=lambda key: self._hints[key].steps, default=None)
            if farthest is None or self._hints[farthest].steps <= steps:
                return False, tuple(gone)
            spared = set(self.remove(farthest))
            more += sum(self.size(node) for node in nodes if node in spared)
            gone |= spared
        self._hints[name] = _Hint(nodes, steps, self.now() + ttl)
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
                self._blocks[share] -= self.size(node)
            node.nearness = _nearness(min(steps)) if steps else 0.0
            self.spare(node)
        return tuple(node for node in hint.nodes if not node.hints)

    def expire(self) -> tuple[Node, ...]:
        """Remove the hints whose time is over, and return nodes without a hint."""
        now = self.now()
        over = [name for name, hint in self._hints.items() if hint.until <= now]
        return tuple(node for name in over for node in self.remove(name))

    def steps(self, name: Hashable) -> float:
        """How many steps are before a hint; infinite if there is none of this name."""
        hint = self._hints.get(name)
        return math.inf if hint is None else hint.steps


def _nearness(steps: int) -> float:
    return 1 / (1 + steps)
