"""Plans, selections and results, which the searches of all kinds of indexes share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.checks import check_int, check_number
from ragcache_integrations.core.extras import require
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "Filter",
    "FlatSearch",
    "Found",
    "Labels",
    "Pace",
    "Part",
    "Search",
    "Selection",
    "Stage",
    "StagePlan",
    "Vectors",
    "faiss",
    "reader",
    "whole_search",
]


@cache
def faiss() -> Any:
    """Import FAISS.

    Raises:
        MissingExtraError: FAISS is not installed.
    """
    return require("faiss", feature="StagedIndex", extra="faiss")


def reader(owner: Any, attribute: str) -> Callable[[], Any]:
    """Return what reads an attribute of one of FAISS's objects, in half the time.

    SWIG's property looks up each time where the object is. Good as long as the object is.
    """
    return partial(getattr(type(owner), attribute).fget, owner.this)


class Selection:
    """Some of the vectors of an index.

    Args:
        mask: By number of the vector, 0 for those that do not count, shape (n,).
    """

    def __init__(self, mask: NDArray[np.uint8]) -> None:
        self.mask = mask

    @cached_property
    def selector(self) -> Any:
        """The same for FAISS."""
        return faiss().IDSelectorBitmap(np.packbits(self.mask, bitorder="little"))


Filter = Mapping[str, Any] | Callable[[Mapping[str, Any]], bool]
"""Which documents count: those whose metadata have these values (of a list: any of them), or those
for whose metadata a function is true."""


class Found(NamedTuple):
    """The nearest documents, nearest first.

    Attributes:
        ids: Ids of the documents; fewer than k where no more were found.
        distances: As FAISS reports them: squared for L2, products for inner product.
    """

    ids: tuple[str, ...]
    distances: tuple[float, ...]


class Stage(NamedTuple):
    """The nearest documents so far, nearest first.

    Attributes:
        ids: Ids of the documents, as in :class:`Found`.
        distances: Their distances, as in :class:`Found`.
        number: Number of the stage, from 1.
        elapsed: Seconds that the search has computed so far. Time in which nobody asked for the
            next stage does not count.
        final: Whether the search is over; then this is its result.
    """

    ids: tuple[str, ...]
    distances: tuple[float, ...]
    number: int
    elapsed: float
    final: bool


_MEMORY = 0.9  # weight of earlier measurements against the latest one
_FIRST_STAGES = 16  # of a search cut by time, until its speed is known


@dataclass(frozen=True, slots=True)
class StagePlan:
    """How a search is cut into stages; set exactly one of the three.

    Used with a search::

        index.stages(query, 4, plan=StagePlan(number=8))

    Attributes:
        number: The most stages, of about equal work.
        seconds: About how long each stage takes.
        share: Each stage looks at about this share of what the whole search looks at.

    A search of clusters (IVF) knows its work beforehand, and looks at whole clusters. A search of
    a graph (HNSW) does not: it is taken to be as long as recent ones were, and its last stage takes
    what is left (RAGCache §6).

    Raises:
        ConfigurationError: None or several are set, or a value is out of range.
    """

    number: int | None = None
    seconds: float | None = None
    share: float | None = None
    _ends: tuple[float, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the setting, and compute once for all searches where stages end."""
        every = {"number": self.number, "seconds": self.seconds, "share": self.share}
        cuts = {name: value for name, value in every.items() if value is not None}
        if len(cuts) != 1:
            msg = f"give exactly one of number, seconds and share, got {cuts or 'none'}"
            raise ConfigurationError(msg)
        ((name, value),) = cuts.items()
        if name == "number":
            check_int(name, value, 1)
        else:
            check_number(name, value, 0, 1 if name == "share" else math.inf, above=True)
        if self.most is not None:
            share = 1 / self.most if self.share is None else self.share
            ends = (share * stage for stage in range(1, self.most))
            object.__setattr__(self, "_ends", (*ends, math.inf))

    @property
    def most(self) -> int | None:
        """The most stages that there can be, ``None`` where they are cut by time."""
        if self.number is not None:
            return int(self.number)
        return None if self.share is None else math.ceil(1 / self.share * (1 - 1e-9))

    def ends(self, total: float) -> list[float]:
        """Return how much of the work is to be done at the end of each stage, not cut by time.

        The last one takes what is left, however much.

        Args:
            total: Work of the whole search, known or expected.
        """
        return [total * share for share in self._ends]

    def until(self, done: float, total: float, pace: Pace) -> float:
        """Return how much of the work is to be done at the end of the next stage, cut by time.

        Args:
            done: Work done before it.
            total: Work of the whole search, known or expected.
            pace: How fast work is done.
        """
        if not pace.per_second or self.seconds is None:
            return done + total / _FIRST_STAGES
        return done + self.seconds * pace.per_second


class Pace:
    """Running means over recent searches.

    Approximate on purpose where several threads note at once.

    Attributes:
        per_second: Work done in a second, 0 if not known yet.
        whole: Work of a whole search, 0 if not known yet.
    """

    def __init__(self) -> None:
        self.per_second = 0.0
        self.whole = 0.0

    def note(self, work: float, seconds: float) -> None:
        """Note how long a piece of work took."""
        if work > 0 and seconds > 0:
            self.per_second = _mean(self.per_second, work / seconds)

    def note_whole(self, work: float) -> None:
        """Note the work of a whole search."""
        self.whole = _mean(self.whole, work)


def _mean(old: float, new: float) -> float:
    return _MEMORY * old + (1 - _MEMORY) * new if old else new


Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]
Part = tuple[list[float], list[int]]
"""Distances, as FAISS reports them, and numbers of the vectors, best first; -1 for none."""


class Search(Protocol):
    """Searches one index. The caller ensures that the index does not change meanwhile."""

    def changed(self) -> None:
        """Note that vectors were added or removed; searches that have begun are not resumed."""

    def whole(self, query: Vectors, k: int, selection: Selection | None) -> Part:
        """Search as FAISS does.

        Args:
            query: The query's embedding, shape (1, d).
            k: The number of results.
            selection: Which vectors count; ``None`` for all.
        """

    def stages(
        self, query: Vectors, k: int, plan: StagePlan, selection: Selection | None
    ) -> Iterator[tuple[Part, bool]]:
        """Do the same in stages.

        Args:
            query: The query's embedding, shape (1, d).
            k: The number of results.
            plan: How to cut the search into stages.
            selection: Which vectors count; ``None`` for all.

        Yields:
            What was found so far, good until the next is asked for; and whether it is final.
        """


class FlatSearch:
    """Compares a query with every vector at once: a single stage.

    Args:
        index: A ``faiss.IndexFlat``.
    """

    def __init__(self, index: Any) -> None:
        self._index = index

    def changed(self) -> None:
        """Do nothing: nothing is kept."""

    def whole(self, query: Vectors, k: int, selection: Selection | None) -> Part:
        """Search as FAISS does."""
        parameters = None
        if selection is not None:
            parameters = faiss().SearchParameters(sel=selection.selector)
        return whole_search(self._index, query, k, parameters)

    def stages(
        self, query: Vectors, k: int, plan: StagePlan, selection: Selection | None
    ) -> Iterator[tuple[Part, bool]]:
        """Search in a single stage."""
        del plan
        yield self.whole(query, k, selection), True


def whole_search(index: Any, query: Vectors, k: int, parameters: Any) -> Part:
    """Search an index for one query."""
    distances, labels = index.search(query, k, params=parameters)
    return distances[0].tolist(), labels[0].tolist()
