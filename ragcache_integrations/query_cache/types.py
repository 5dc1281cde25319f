"""What goes into the query cache and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from numpy.typing import ArrayLike

__all__ = ["Candidate", "Hit", "Metric", "QueryCacheStats", "VectorSource"]

T = TypeVar("T")

Metric = Literal["l2", "cosine", "ip"]


class VectorSource(Protocol):
    """Reads the documents' own vectors, as the store holds them."""

    def __call__(self, ids: Sequence[str], /) -> ArrayLike:
        """Read the vectors of some documents.

        Args:
            ids: Ids of the documents, each once.

        Returns:
            Array of shape ``(len(ids), dim)``, in the order of ``ids``.

        Raises:
            LookupError: One of them cannot be read. The entry is then kept without vectors.
        """


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """A document that a search found.

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


@dataclass(frozen=True)
class Hit(Generic[T]):
    """An answer of the cache.

    Attributes:
        candidates: At most k, best first.
        distance: From the query to the key it matched.
        age: Seconds since the entry was inserted.
        reranked: Whether the candidates were re-ranked for this query. If not, they stand in the
            store's order for the matched key.
        scores: Where re-ranked, one number per candidate: its distance to the query (``l2``;
            ``cosine``: the chord), or its inner product with it (``ip``).
        recall_bound: Proven lower bound of the recall; ``None`` where nothing is proven.
    """

    candidates: tuple[Candidate[T], ...]
    distance: float
    age: float
    reranked: bool = False
    scores: tuple[float, ...] | None = None
    recall_bound: float | None = None


@dataclass(frozen=True, slots=True)
class QueryCacheStats:
    """What the cache holds, and what it did since it was made.

    Attributes:
        entries: Entries now.
        capacity: The most entries there can be.
        vectors: Document vectors kept now, each once however many entries share it.
        lookups: Lookups so far.
        hits: Lookups that found an entry.
        insertions: Entries inserted, replacements among them.
        evictions: Entries that made room for another.
        dropped: Insertions dropped because the store had changed since their search began.
    """

    entries: int
    capacity: int
    vectors: int
    lookups: int
    hits: int
    insertions: int
    evictions: int
    dropped: int

    @property
    def misses(self) -> int:
        """Lookups that found nothing."""
        return self.lookups - self.hits
