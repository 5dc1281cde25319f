"""The FAISS index of either framework's store: its vectors and facts, and staged search of it.

Works on anything that looks like a FAISS index, so that ``faiss`` need not be imported here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Metric
from ragcache_integrations.vector_search import StagedIndex

from .facts import StoreFacts

__all__ = [
    "FaissVectors",
    "FaissView",
    "extreme_lengths",
    "faiss_facts",
    "faiss_metric",
    "faiss_score",
    "is_faiss_index",
]

logger = logging.getLogger(__name__)


# They compare a query with every vector, as they decode it.
_EXHAUSTIVE = {"IndexFlat", "IndexFlatL2", "IndexFlatIP", "IndexScalarQuantizer"}
_ADC = 0  # faiss.IndexPQ.ST_PQ: the query as it is, with every vector as decoded
_WRAPPERS = {"IndexIDMap", "IndexIDMap2"}


def faiss_facts(index: Any, vectors: FaissVectors, *, normalised: bool = False) -> StoreFacts:
    """Return what is known of a store that searches a FAISS index.

    Args:
        index: The FAISS index.
        vectors: Reads the index's vectors by document id.
        normalised: The store brings documents and questions to unit length.
    """
    metric = faiss_metric(index)
    if metric is None:
        doubt = "its FAISS index ranks by a metric other than L2 and inner product"
        return StoreFacts(dim=int(index.d), doubt=doubt, inexact=True)
    doubt, surely = _doubt(index)
    return StoreFacts(
        metric="cosine" if normalised else metric,
        vectors=vectors if vectors.readable() else None,
        dim=int(index.d),
        exact=not doubt,
        doubt=doubt,
        inexact=surely,
        lengths=vectors.lengths,
        score=lambda distance: faiss_score(distance, metric),
    )


def _doubt(index: Any) -> tuple[str, bool]:
    """Return why a search may miss documents, empty where it cannot, and whether it surely may."""
    import faiss  # noqa: PLC0415 - an extra; it is there where an index is

    inner: Any = faiss.downcast_index(index)
    kind = type(inner).__name__
    if kind in _WRAPPERS:
        return _doubt(inner.index)
    if kind in _EXHAUSTIVE:
        return "", False
    if kind == "IndexPQ" and inner.search_type == _ADC:
        return "", False
    if hasattr(inner, "nprobe"):
        probed = f"searches {inner.nprobe} of its {inner.nlist} clusters"
        return f"its FAISS index, an {kind}, {probed}", inner.nprobe < inner.nlist
    if "HNSW" in kind or "NSG" in kind:
        return f"its FAISS index, an {kind}, walks a graph", True
    return f"it is not known whether its FAISS index, an {kind}, searches everything", False


P = TypeVar("P")

# What stands for the position of an id that has none, or more than one.
_UNKNOWN = "no vector"
_SEVERAL = "several vectors"

# Vectors read at once. More would leave the processor's cache; from 1,000 on FAISS copies them in
# several threads, whose start costs more than the copying, above all where other programs run.
_BLOCK = 512
_TRIES = 3

# faiss.METRIC_INNER_PRODUCT and faiss.METRIC_L2
_METRICS: dict[int, Metric] = {0: "ip", 1: "l2"}


def is_faiss_index(index: object) -> bool:
    """Whether an object looks like a FAISS index."""
    return all(hasattr(index, name) for name in ("d", "ntotal", "metric_type", "reconstruct_batch"))


def faiss_metric(index: Any) -> Metric | None:
    """Return the index's metric, ``None`` for one that the query cache does not know."""
    return _METRICS.get(int(index.metric_type))


def faiss_score(score: float, metric: Metric) -> float:
    """Return what FAISS would report: the squared distance for L2, else the inner product."""
    return score * score if metric == "l2" else score


def extreme_lengths(
    read: Callable[[Sequence[P]], NDArray[np.float32]], keys: Sequence[P]
) -> tuple[float, float] | None:
    """Return the lengths of the shortest and the longest vector; ``None`` where there are none.

    Args:
        read: Reads some vectors, shape (keys, dim).
        keys: What they are read by.
    """
    shortest, longest = math.inf, 0.0
    for begin in range(0, len(keys), _BLOCK):
        vectors = read(keys[begin : begin + _BLOCK]).astype(np.float64)
        squares = np.einsum("ij,ij->i", vectors, vectors)
        shortest = min(shortest, math.sqrt(squares.min()))
        longest = max(longest, math.sqrt(squares.max()))
    return (shortest, longest) if keys else None


class FaissVectors:
    """Reads vectors by document id: a :class:`~ragcache_integrations.query_cache.VectorSource`.

    Follows additions and deletions in the store: a position is only believed while the store's
    own mapping says the same.

    Args:
        index: The FAISS index.
        ids: Returns the store's mapping from positions in the index (numbers, or numbers written
            as strings) to document ids.
    """

    def __init__(self, index: Any, ids: Callable[[], Mapping[Any, str]]) -> None:
        self._index = index
        self._ids = ids
        self._lock = make_lock()
        self._positions: dict[str, Any] = {}
        self._mapped: Mapping[Any, str] | None = None
        self._mapped_size = 0

    def __call__(self, ids: Sequence[str], /) -> NDArray[np.float32]:
        """Read the vectors of some documents, shape (len(ids), d).

        Raises:
            LookupError: An id is unknown, stands for several vectors, or the index cannot
                reconstruct; or the index holds vectors that stand for no document, or for two;
                or documents came and went all the while.
        """
        for _ in range(_TRIES):
            mapping = self._ids()
            size = self._index.ntotal
            if size != len(mapping):
                raise LookupError(
                    f"the FAISS index holds {size} vectors for {len(mapping)} documents: which is "
                    "whose is not known"
                )
            positions = self._find(ids, mapping)
            vectors = self._read(positions)
            # Deletions move vectors. One that came between would have been read for another's.
            if self._ids() is mapping and self._index.ntotal == size == len(mapping):
                return vectors
        msg = "documents came to the FAISS index, or went, while their vectors were read"
        raise LookupError(msg)

    def readable(self) -> bool:
        """Whether the index can reconstruct; an empty one is believed to."""
        some = [int(position) for position in list(self._ids())[:1]]
        try:
            self._read(some)
        except LookupError as error:
            logger.debug("%s", error)
            return False
        return True

    def lengths(self) -> tuple[float, float] | None:
        """Read all vectors; return the L2 lengths of the shortest and the longest.

        ``None`` where there are none.

        Raises:
            LookupError: The index cannot reconstruct.
        """
        return extreme_lengths(self._read, [int(position) for position in list(self._ids())])

    def _find(self, ids: Sequence[str], mapping: Mapping[Any, str]) -> list[int]:
        with self._lock:
            self._follow(mapping)
            positions = [self._positions.get(document_id, _UNKNOWN) for document_id in ids]
            pairs = zip(ids, positions, strict=True)
            if any(
                place is not _SEVERAL and mapping.get(place) != document_id
                for document_id, place in pairs
            ):
                self._mapped = None  # something was deleted
                self._follow(mapping)
            return [self._position(document_id) for document_id in ids]

    def _read(self, positions: Sequence[int]) -> NDArray[np.float32]:
        try:
            return np.asarray(self._index.reconstruct_batch(np.array(positions, dtype=np.int64)))
        except RuntimeError as error:  # FAISS raises nothing more special
            raise LookupError(f"the FAISS index cannot reconstruct its vectors: {error}") from error

    def _follow(self, mapping: Mapping[Any, str]) -> None:
        if self._mapped is not mapping or len(mapping) < self._mapped_size:
            self._positions, self._mapped, self._mapped_size = {}, mapping, 0
        if len(mapping) == self._mapped_size:
            return
        items = list(mapping.items())  # at once: another thread may be adding
        for position, document_id in items[self._mapped_size :]:
            known = document_id in self._positions
            self._positions[document_id] = _SEVERAL if known else position
        self._mapped_size = len(items)

    def _position(self, document_id: str) -> int:
        position = self._positions.get(document_id, _UNKNOWN)
        if position in {_UNKNOWN, _SEVERAL}:
            raise LookupError(f"document {document_id!r} has {position} in the FAISS index")
        return int(position)


class FaissView:
    """Sees an index through the store's own mapping; made again after the store has changed.

    All additions and deletions of the store change its mapping or the number of vectors, which are
    compared at every search. Making it takes a time that grows with the number
    of documents (a second or two a million), at the first search after a change: an index of
    many documents that often change is better off as a ``StagedIndex``.

    Args:
        index: Returns the FAISS index.
        ids: Returns the store's mapping from positions in the index (numbers, or numbers written
            as strings) to document ids.
        find: Returns a document by its id, ``None`` where there is none. Called only when a filter
            is used, which reads its ``metadata``.

    Raises:
        ConfigurationError: The FAISS index cannot be searched in stages.
    """

    def __init__(
        self,
        index: Callable[[], Any],
        ids: Callable[[], dict[Any, str]],
        find: Callable[[str], Any],
    ) -> None:
        self._index = index
        self._ids = ids
        self._find = find
        self._lock = make_lock()
        self._seen: tuple[Any, ...] = ()
        self._described = False
        self._made: StagedIndex | None = None
        self()

    def __call__(self, *, described: bool = False) -> StagedIndex:
        """Return the staged index; ``described``: with metadata to filter by.

        Raises:
            ConfigurationError: The FAISS index cannot be searched in stages, or which vector is
                which document's is not known any more.
        """
        with self._lock:
            index, ids = self._index(), self._ids()
            last = next(reversed(ids.items()), None)
            seen = (index, ids, len(ids), last, index.ntotal)
            if not _are_same(seen, self._seen):
                self._seen, self._described = (), False
            made = self._made
            if made is None or not self._seen or (described and not self._described):
                names = _names(index, ids)
                metadata = None
                if described:
                    metadata = [getattr(self._find(name), "metadata", None) for name in names]
                made = self._made = _make_index(index, names, metadata)
                self._seen, self._described = seen, described
            return made


def _are_same(these: Sequence[Any], those: Sequence[Any]) -> bool:
    """Whether the same objects were seen, with the same numbers."""
    return len(these) == len(those) and all(
        this is that or (isinstance(this, int | tuple) and this == that)
        for this, that in zip(these, those, strict=True)
    )


def _names(index: Any, ids: Mapping[Any, str]) -> list[str]:
    """Return the documents' ids in the order in which the index has their vectors."""
    import faiss  # noqa: PLC0415 - an extra; it is there where an index is

    by_number = {int(position): name for position, name in list(ids.items())}
    inner: Any = faiss.downcast_index(index)
    mapped = hasattr(inner, "id_map")
    numbers = faiss.vector_to_array(inner.id_map).tolist() if mapped else range(index.ntotal)
    if len(by_number) == len(numbers) and all(number in by_number for number in numbers):
        return [by_number[number] for number in numbers]
    raise ConfigurationError(
        f"the store's FAISS index holds {index.ntotal} vectors for {len(by_number)} documents, and "
        "which is whose is not known: rebuild it"
    )


def _make_index(
    index: Any, names: Sequence[str], metadata: Sequence[Mapping[str, Any] | None] | None
) -> StagedIndex:
    try:
        return StagedIndex(index, names, metadata=metadata)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the store's FAISS index cannot be searched in stages: {error}. Where documents were "
            "deleted from an IVF index through the store, which renumbers the others as FAISS "
            "does not, rebuild it"
        ) from error
