"""What goes into the query cache and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from numpy.typing import ArrayLike

from .tolerance import ToleranceReport

__all__ = [
    "COUNTED",
    "Candidate",
    "Eviction",
    "Explanation",
    "Hit",
    "Metric",
    "QueryCacheStats",
    "VectorSource",
    "VectorsPendingError",
    "Wording",
    "unanswered",
]

T = TypeVar("T")

Metric = Literal["l2", "cosine", "ip"]
Eviction = Literal["lru", "fifo"]

COUNTED = (
    *("lookups", "hits", "proven", "stale", "unproven"),
    *("insertions", "evictions", "expired", "invalidated", "dropped"),
)
"""The statistics that count what happened."""


class VectorSource(Protocol):
    """Reads the documents' own vectors, as the store holds them."""

    def __call__(self, ids: Sequence[str], /) -> ArrayLike:
        """Read the vectors of some documents.

        Args:
            ids: Ids of the documents, each once.

        Returns:
            Array of shape ``(len(ids), dim)``, in the order of ``ids``.

        Raises:
            LookupError: A vector cannot be read. The entry is then kept without vectors.
        """


class VectorsPendingError(LookupError):
    """Vectors cannot be read now; who inserted the entry will insert it again with them."""


class Wording(NamedTuple):
    """The words of a query, and which other words may be answered alike.

    Attributes:
        text: The words. They are kept with what is inserted.
        same: Returns whether two texts may share an answer.
        difference: Returns in words how two texts differ, for explanations; ``None`` for texts that
            may share an answer.
        kin: Returns whether two cache keys differ in nothing but what they say of the words.
    """

    text: str
    same: Callable[[str, str], bool]
    difference: Callable[[str, str], str | None] | None = None
    kin: Callable[[Any, Any], bool] | None = None

    def accepts(self, text: str) -> bool:
        """Return whether an entry with these words may answer the query."""
        return text == self.text or self.same(self.text, text)

    def apart(self, text: str) -> str | None:
        """Return in words why an entry with these words may not answer; ``None``: they allow it."""
        difference = None if self.difference is None else self.difference(self.text, text)
        if difference is not None:
            return f"the guard finds that the questions differ in {difference}"
        return None if self.accepts(text) else "it is of other words"


class Candidate(NamedTuple, Generic[T]):
    """A document that a search found. A tuple, as every search makes many, that none may change.

    Attributes:
        id: The document's id in its store.
        document: The document; returned as it is.
        fingerprint: Changes with the document's content. Two candidates of one id but different
            fingerprints are different documents.
        score: What the store said for the query it was fetched for.
    """

    id: str
    document: T
    fingerprint: str = ""
    score: float | None = None


@dataclass(slots=True)
class Hit(Generic[T]):
    """An answer of the cache. Not frozen only because that doubles the time of a lookup.

    Attributes:
        candidates: At most k, best first.
        distance: From the query to the key it matched.
        age: Seconds since the entry was inserted.
        reranked: Whether the candidates were re-ranked for this query. If not, they are in the
            store's order for the matched key.
        scores: Where re-ranked, one number per candidate: its distance to the query (``l2``;
            ``cosine``: the chord), or its inner product with it (``ip``).
        recall_bound: Proven lower bound of the recall; ``None`` where nothing can be proven.
        check: Whether ``tolerance="auto"`` wants this answer checked: search the store for the
            same query, and hand what it says to :meth:`QueryCache.report`.
    """

    candidates: tuple[Candidate[T], ...]
    distance: float
    age: float
    reranked: bool = False
    scores: tuple[float, ...] | None = None
    recall_bound: float | None = None
    check: bool = False


@dataclass(frozen=True)
class Explanation:
    """Why a query hits or misses.

    Attributes:
        hit: Whether it hits.
        reason: Why, in a sentence.
        distance: To the nearest key that could answer, however far; ``None`` where there is none.
        tolerance: The largest distance at which it may hit.
        recall_bound: What is proven of the nearest entry's answer; ``None`` where nothing can be.
        entries: How many entries of this cache key serve at least k documents.
    """

    hit: bool
    reason: str
    distance: float | None
    tolerance: float
    recall_bound: float | None = None
    entries: int = 0


def unanswered(reason: str, tolerance: float, entries: int = 0) -> Explanation:
    """Return the explanation of a miss for which there is no entry at all.

    Args:
        reason: Why it misses, in a sentence.
        tolerance: The largest distance at which it may hit.
        entries: How many entries of this cache key serve at least k documents.
    """
    return Explanation(
        hit=False, reason=reason, distance=None, tolerance=tolerance, entries=entries
    )


@dataclass(frozen=True, slots=True)
class QueryCacheStats:
    """What the cache holds, and what it did since it was made.

    Attributes:
        entries: Entries that the cache holds now.
        capacity: The most entries there can be.
        vectors: Document vectors kept now, each once however many entries share it.
        lookups: Lookups since the cache was made.
        hits: Lookups that found an entry.
        proven: Hits whose whole answer is proven to be the store's, up to ties.
        stale: Misses because of documents that came after the nearest entry.
        unproven: Misses because less was proven than ``guarantee`` asks for.
        insertions: Entries inserted, replacements among them.
        evictions: Entries that made room for another.
        expired: Entries that reached their ``ttl``.
        invalidated: Entries that ended because documents came or went.
        dropped: Insertions dropped because the store had changed since their search began.
        tolerance: The largest distance at which a lookup hits, now.
        learning: What ``tolerance="auto"`` knows; ``None`` for a fixed tolerance.
    """

    entries: int
    capacity: int
    vectors: int
    lookups: int
    hits: int
    proven: int
    stale: int
    unproven: int
    insertions: int
    evictions: int
    expired: int
    invalidated: int
    dropped: int
    tolerance: float
    learning: ToleranceReport | None

    @property
    def misses(self) -> int:
        """Lookups that found nothing."""
        return self.lookups - self.hits
