"""Searches of flat and IVF indexes, and what searches of all kinds share: plans, results.

The inverted lists of an IVF index are searched in groups (RAGCache §6).
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ragcache_integrations.core.checks import check_int, check_number
from ragcache_integrations.core.extras import require
from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "Filter",
    "Found",
    "IVFSearch",
    "Labels",
    "Pace",
    "Part",
    "Search",
    "Selection",
    "Stage",
    "StagePlan",
    "Vectors",
    "cluster_labels",
    "faiss",
    "reader",
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


class Search:
    """Searches one index, which does not change meanwhile: the caller ensures that.

    This one compares a query with every vector at once, in a single stage. Subclasses search other
    kinds of indexes.

    Args:
        index: A ``faiss.IndexFlat``; for subclasses, an index of their kind.
    """

    def __init__(self, index: Any) -> None:
        self._index = index

    def changed(self) -> None:
        """Note that vectors were added or removed; searches that have begun are not resumed."""

    def whole(self, query: Vectors, k: int, selection: Selection | None) -> Part:
        """Search as FAISS does.

        Args:
            query: The query's embedding, shape (1, d).
            k: The number of results.
            selection: Which vectors count; ``None`` for all.
        """
        parameters = None if selection is None else self._selecting(selection)
        distances, labels = self._index.search(query, k, params=parameters)
        return distances[0].tolist(), labels[0].tolist()

    def _selecting(self, selection: Selection) -> Any:
        """Return FAISS's parameters of a search of some vectors as the index is set to search."""
        return faiss().SearchParameters(sel=selection.selector)

    def stages(
        self, query: Vectors, k: int, plan: StagePlan, selection: Selection | None
    ) -> Iterator[tuple[Part, bool]]:
        """Do the same in stages.

        Args:
            query: The query's embedding, shape (1, d).
            k: The number of results.
            plan: How to cut the search.
            selection: Which vectors count; ``None`` for all.

        Yields:
            What was found so far, good until the next is asked for; and whether it is final.
        """
        del plan
        yield self.whole(query, k, selection), True


def cluster_labels(ivf: Any) -> Iterator[Labels]:
    """Yield the numbers of each cluster's vectors, unless it has none: FAISS's own arrays."""
    view, lists = faiss().rev_swig_ptr, ivf.invlists
    for cluster in range(ivf.nlist):
        size = lists.list_size(cluster)
        if size:
            yield view(lists.get_ids(cluster), size)


_DISTANCE = itemgetter(0)


class IVFSearch(Search):
    """Probes the nearest clusters group by group; the work of a stage is counted in vectors.

    Args:
        index: A ``faiss.IndexIVF``, flat or quantised.
    """

    def __init__(self, index: Any) -> None:
        super().__init__(index)
        self._pace = Pace()
        self._ascending = index.metric_type == faiss().METRIC_L2
        self._quantizer = index.quantizer  # slow to get
        # Parameters by the number of clusters; nobody changes them.
        self._usual: dict[int, Any] = {}
        self._sizes: Labels | None = None

    @override
    def changed(self) -> None:
        self._sizes = None

    @override
    def _selecting(self, selection: Selection) -> Any:
        return self._parameters(self._index.nprobe, self._index.max_codes, selection)

    @override
    def stages(
        self, query: Vectors, k: int, plan: StagePlan, selection: Selection | None
    ) -> Iterator[tuple[Part, bool]]:
        """Search in groups of whole clusters, the nearest first; empty ones make no stage."""
        index = self._index
        sizes = self._list_sizes()
        distances, clusters = self._quantizer.search(query, min(index.nprobe, len(sizes) - 1))
        ends = sizes[clusters[0]].cumsum().tolist()
        limit = index.max_codes
        most = limit or ends[-1]  # FAISS stops within the cluster that exceeds it
        count = _until(ends, min(most, ends[-1]))
        results, prepare = self._prepare(query, k, clusters[0], distances[0], selection)
        probes = (
            (stop, prepare(start, stop, most - (ends[start - 1] if start else 0) if limit else 0))
            for start, stop in pairwise(chain([0], self._stops(plan, ends[:count])))
        )
        timed, looked = plan.seconds is not None, 0
        best: Part | None = None
        for stop, probe in probes if timed else list(probes):
            began = time.perf_counter() if timed else 0.0
            probe()
            news = results[0].tolist(), results[1].tolist()
            best = news if best is None else self._merge(best, news, k)
            if timed:
                self._pace.note(ends[stop - 1] - looked, time.perf_counter() - began)
                looked = ends[stop - 1]
            yield best, stop == count

    def _prepare(
        self,
        query: Vectors,
        k: int,
        clusters: Labels,
        distances: Vectors,
        selection: Selection | None,
    ) -> tuple[tuple[Vectors, Labels], Callable[[int, int, int], Callable[[], None]]]:
        """Prepare all that can be prepared before the first stage.

        A stage evicts the code between stages from the processor's caches, so that code is kept
        short.

        Returns:
            The arrays of the results; and a function that makes a stage from the first cluster, the
            end of the clusters, and the most vectors.
        """
        pointer = faiss().swig_ptr
        arrays = np.empty(k, np.float32), np.empty(k, np.int64)
        row, results = pointer(query), (pointer(arrays[0]), pointer(arrays[1]))
        # Not the method of the Python class: it takes neither parameters nor fewer clusters.
        search = self._index.search_preassigned_c
        store_pairs = False  # numbers of vectors, not of lists and places

        def stage(start: int, stop: int, max_codes: int) -> Callable[[], None]:
            parameters = self._parameters(stop - start, max_codes, selection)
            some, apart = pointer(clusters[start:stop]), pointer(distances[start:stop])
            return partial(search, 1, row, k, some, apart, *results, store_pairs, parameters)

        return arrays, stage

    def _stops(self, plan: StagePlan, ends: Sequence[int]) -> Iterable[int]:
        """Return how many clusters have been searched after each stage.

        Args:
            plan: How to cut the search into stages.
            ends: How many vectors there are in the first cluster, the first two, and so on.
        """
        if plan.seconds is not None:
            return self._stops_by_time(plan, ends)
        # Where a cluster is large enough for several stages, they are one.
        return dict.fromkeys([_until(ends, work) for work in plan.ends(ends[-1])])

    def _stops_by_time(self, plan: StagePlan, ends: Sequence[int]) -> Iterator[int]:
        done = looked = 0
        while done < len(ends):
            work = plan.until(looked, ends[-1], self._pace)
            done = max(_until(ends, work), done + 1)
            looked = ends[done - 1]
            yield done

    def _parameters(self, clusters: int, max_codes: int, selection: Selection | None) -> Any:
        """Return the parameters of a stage; those that many stages have are kept."""
        usual = not max_codes and selection is None
        if usual and clusters in self._usual:
            return self._usual[clusters]
        parameters = faiss().SearchParametersIVF(
            nprobe=clusters,
            max_codes=max_codes,
            sel=None if selection is None else selection.selector,
        )
        if usual:
            self._usual[clusters] = parameters
        return parameters

    def _merge(self, old: Part, new: Part, k: int) -> Part:
        # A missing result has the worst of all distances.
        best, worst = new[0][0], old[0][-1]
        if best >= worst if self._ascending else best <= worst:
            return old  # as is usual in late stages
        both = [*zip(*old, strict=True), *zip(*new, strict=True)]
        both.sort(key=_DISTANCE, reverse=not self._ascending)  # the first stays first among equals
        del both[k:]
        return [distance for distance, _ in both], [label for _, label in both]

    def _list_sizes(self) -> Labels:
        """Vectors by cluster; the last number is that of cluster -1, which is none."""
        sizes = self._sizes
        if sizes is None:
            lists = self._index.invlists
            sizes = np.array([*map(lists.list_size, range(self._index.nlist)), 0], np.int64)
            self._sizes = sizes
        return sizes


def _until(ends: Sequence[int], work: float) -> int:
    """Return the number of clusters up to the one in which ``work`` vectors are reached."""
    return min(bisect_left(ends, work * (1 - 1e-9)) + 1, len(ends))
