"""A node of the knowledge tree: one document after one particular path.

:class:`Path` is a request's way through the knowledge tree.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from ragcache_integrations.core.prompt import Span

from .popularity import NEVER, Trial
from .shares import Share

__all__ = ["History", "Key", "Node", "Path", "Shelf", "Span", "in_group"]


@dataclass(slots=True, eq=False)
class Path:
    """The nodes of one request.

    Attributes:
        nodes: The text before the first document, then the documents that may be cached.
        ends: For each node, how many leading blocks of the prompt end in it or before it.
        spans: All documents of the request, those beyond ``cache_depth`` included.
        accessed: Whether the access was counted; a preempted request comes twice.
        accessed_at: When it was; kept only where frequencies have a time window.
        counted_at: When it was, in the time of :class:`~.popularity.Popularity`.
        retracted: Whether it was taken back.
        closed: Whether the request has left.
    """

    nodes: tuple[Node, ...]
    ends: tuple[int, ...]
    spans: tuple[Span, ...] = field(default=())
    accessed: bool = False
    accessed_at: float = 0.0
    counted_at: float = 0.0
    retracted: bool = False
    closed: bool = False


Key = Hashable
"""Names a block by its content and by everything before it, as vLLM's block hashes do."""


def in_group(key: Key, group: int) -> Key:
    """Names a block of a group of layers in a tier; one of the first group has its own name."""
    return (key, group) if group else key


@dataclass(slots=True)
class History:
    """How often a document was asked for and what computing it cost. Survives eviction.

    Attributes:
        frequency: Accesses, within the time window where there is one.
        total_cost: Sum of the prefill times per computed token, in seconds.
        computed: Number of summands in ``total_cost``.
        times: When the accesses were; kept only where there is a time window.
        popularity: Accesses, those of long ago counting less, as a logarithm.
        trial: What the half-life is tuned by, of a document in the sample.
    """

    frequency: int = 0
    total_cost: float = 0.0
    computed: int = 0
    times: deque[float] | None = None
    popularity: float = NEVER
    trial: Trial | None = None


@dataclass(slots=True, eq=False)
class Shelf:
    """What one tier holds of one node.

    Attributes:
        idle: Blocks that may be evicted, those to go first first. A dict serves as ordered set.
        busy: Blocks that must stay.
        idle_below: Children in whose subtrees something is idle; a leaf of the tier has none.
        priority: Of the node in this tier.
        stamp: Marks the node's valid entry in the tier's heap.
    """

    idle: dict[Key, None] = field(default_factory=dict)
    busy: set[Key] = field(default_factory=set)
    idle_below: int = 0
    priority: float = NEVER
    stamp: int = -1

    @property
    def empty(self) -> bool:
        """Whether the tier holds nothing of the node."""
        return not self.idle and not self.busy


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """One document after one path; the root of a path is the text before the first document.

    Attributes:
        label: The document's id, or the namespace for the text before the first document; and the
            key of the last block that ends in it, ``None`` where none does.
        parent: Owner of the block before this node's first.
        under: The node whose ``children`` hold it; the parent, unless another path shares its
            beginning.
        keys: The blocks that belong to it, in order.
        tokens: Length of the document and of the text between it and the one before.
        children: By label.
        links: Nodes whose parent this is.
        history: Frequency and cost.
        last_access: Number of the latest access in the tree; 0 before the first.
        requests: Live requests with this node in their path, waiting or running.
        running: Those of them that were admitted, so that the node's blocks are in use.
        share: The part of the cache to which it is charged; ``None`` where nothing is.
        urgency: Of the most urgent request that had it; the least urgent nodes go first.
        pins: Pins that keep it in the GPU.
        hints: Hints that it is needed soon.
        nearness: How soon, from 0 for not to 1 for now.
        gpu, host: What the tiers hold.
    """

    label: tuple[str, Key | None]
    parent: Node | None
    under: Node | None
    keys: tuple[Key, ...]
    tokens: int = 0
    children: dict[tuple[str, Key | None], Node] = field(default_factory=dict)
    links: int = 0
    history: History = field(default_factory=History)
    last_access: int = 0
    requests: int = 0
    running: int = 0
    share: Share | None = None
    urgency: float = -math.inf
    pins: int = 0
    hints: int = 0
    nearness: float = 0.0
    gpu: Shelf = field(default_factory=Shelf)
    host: Shelf = field(default_factory=Shelf)

    @property
    def name(self) -> str:
        """The document's id, or the namespace."""
        return self.label[0]

    @property
    def frequency(self) -> int:
        """Accesses so far, within the time window where there is one."""
        return self.history.frequency

    @property
    def popularity(self) -> float:
        """Base-2 logarithm of the accesses, those of long ago counting less."""
        return self.history.popularity

    @property
    def average_cost(self) -> float:
        """Prefill seconds per computed token, averaged over the requests that missed it."""
        history = self.history
        return history.total_cost / history.computed if history.computed else 0.0

    def __repr__(self) -> str:
        return f"Node({self.name!r}, tokens={self.tokens}, blocks={len(self.keys)})"
