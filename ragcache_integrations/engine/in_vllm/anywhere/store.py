"""Which documents are stored, and which goes first: the scheduler's side of the store.

The bytes are with the workers (:mod:`.paged`); what is decided here reaches them with the next
step. Priorities are those of the knowledge tree's policies (RAGCache §5.1), a document being a
tree of one node.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ragcache_integrations.core.memo import Memo
from ragcache_integrations.knowledge_tree.policies import DEFAULT_POLICY, POLICIES
from ragcache_integrations.knowledge_tree.popularity import NEVER, Popularity, Trial
from ragcache_integrations.knowledge_tree.prefill_cost import PrefillCostModel

__all__ = ["DocumentStore", "StoredDocument"]

REMEMBERED = 4096
"""Evicted documents of which it is remembered how often they were read."""

HEAP_SLACK = 256
"""Outdated entries of the heap that are tolerated before it is built again."""


@dataclass(slots=True)
class StoredDocument:
    """A document in the store.

    Attributes:
        size: Its size in bytes.
        average_cost: Seconds to compute it, for a byte of it.
        frequency: How often it was read.
        last_access: Number of the latest access.
        popularity: Times that it was read, those of long ago counting less, as a logarithm; that it
            was stored counts too.
        trial: What the half-life is tuned by.
        priority: By the policy.
        stamp: Of its valid entry in the heap.
    """

    size: int
    average_cost: float
    frequency: int = 0
    last_access: int = 0
    popularity: float = NEVER
    trial: Trial | None = None
    priority: float = 0.0
    stamp: int = -1


@dataclass(eq=False)
class DocumentStore:
    """Keys of stored documents, within a number of bytes.

    Attributes:
        capacity: How many bytes fit.
        policy: ``lrfu``, ``pgdsf``, ``gdsf``, ``lru`` or ``lfu``.
        prefill_seconds: Prefill times of the model; without them each token costs the same.
    """

    capacity: int
    policy: str = DEFAULT_POLICY
    prefill_seconds: PrefillCostModel | None = None

    def __post_init__(self) -> None:
        self.version = 0  # changes with what is stored
        self.used = 0
        self.evicted = 0
        self._policy = POLICIES[self.policy]
        self._documents: dict[bytes, StoredDocument] = {}
        self._heap: list[tuple[float, int, bytes]] = []
        self._stamps = itertools.count()
        self._accesses = itertools.count(1)
        self._clock = 0.0
        self._popularity = Popularity(self.capacity)
        self._gone: Memo[bytes, StoredDocument] = Memo(REMEMBERED)

    def __contains__(self, key: object) -> bool:
        return key in self._documents

    def __len__(self) -> int:
        return len(self._documents)

    def add(
        self, key: bytes, size: int, tokens: int, kept: Collection[bytes] = ()
    ) -> list[bytes] | None:
        """Make room for a document and take it in.

        Args:
            key: Its key.
            size: Its size in bytes.
            tokens: Its length.
            kept: Keys that must not go: they are being read.

        Returns:
            Keys of the documents that go for it; ``None`` if it doesn't fit, and nothing goes.
        """
        if key in self._documents:
            return []
        staying = sum(self._documents[name].size for name in kept if name in self._documents)
        if size + staying > self.capacity:
            return None
        gone: list[bytes] = []
        skipped: list[tuple[float, int, bytes]] = []
        while self.used + size > self.capacity:
            entry = heapq.heappop(self._heap)
            document = self._documents.get(entry[2])
            if document is None or document.stamp != entry[1]:
                continue
            if entry[2] in kept:
                skipped.append(entry)
                continue
            self._clock = max(self._clock, document.priority)
            gone.append(entry[2])
            self.discard([entry[2]])
            self._gone[entry[2]] = document
        for entry in skipped:
            heapq.heappush(self._heap, entry)
        self.evicted += len(gone)
        seconds = self.prefill_seconds.per_token(0, tokens) if self.prefill_seconds else 1.0
        cost = seconds * tokens / size
        document = self._gone.pop(key, None) or StoredDocument(size, cost)
        document.size, document.average_cost = size, cost
        self._documents[key] = document
        self.used += size
        self.version += 1
        self._count(document)
        self._price(key, document)
        return gone

    def access(self, keys: Iterable[bytes]) -> None:
        """Documents were read."""
        for key in keys:
            document = self._documents.get(key)
            if document is not None:
                document.frequency += 1
                self._count(document)
                self._price(key, document)

    def discard(self, keys: Iterable[bytes]) -> None:
        """Forget documents; unknown ones are ignored."""
        for key in keys:
            document = self._documents.pop(key, None)
            if document is not None:
                self.used -= document.size
                self.version += 1

    def clear(self) -> list[bytes]:
        """Forget all documents, and return their keys."""
        keys = list(self._documents)
        self.discard(keys)
        self._heap.clear()
        self._gone.clear()
        self._clock = 0.0
        return keys

    def _count(self, document: StoredDocument) -> None:
        self._popularity.advance(document.size)
        self._popularity.count(document, document.size)

    def _price(self, key: bytes, document: StoredDocument) -> None:
        document.last_access = next(self._accesses)
        document.priority = self._policy(document, self._clock)
        document.stamp = next(self._stamps)
        heapq.heappush(self._heap, (document.priority, document.stamp, key))
        if len(self._heap) > 2 * len(self._documents) + HEAP_SLACK:
            self._heap = [
                (known.priority, known.stamp, name) for name, known in self._documents.items()
            ]
            heapq.heapify(self._heap)
