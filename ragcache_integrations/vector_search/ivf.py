"""Searching the inverted lists of an IVF index in groups (RAGCache §6)."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Any

import numpy as np

from ragcache_integrations.vector_search.plan import Pace, StagePlan
from ragcache_integrations.vector_search.searches import Labels, Part, Vectors, whole_search
from ragcache_integrations.vector_search.selection import Selection, faiss

__all__ = ["IVFSearch"]

_DISTANCE = itemgetter(0)


class IVFSearch:
    """Probes the nearest clusters group by group; the work of a stage is counted in vectors.

    Args:
        index: A ``faiss.IndexIVF``, flat or quantised.
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        self._pace = Pace()
        self._ascending = index.metric_type == faiss().METRIC_L2
        self._sizes: list[int] = []

    def changed(self) -> None:
        """Note that vectors were added or removed."""
        self._sizes = []

    def whole(self, query: Vectors, k: int, selection: Selection | None) -> Part:
        """Search as FAISS does."""
        if selection is None:
            return whole_search(self._index, query, k, None)
        parameters = faiss().SearchParametersIVF(
            nprobe=self._index.nprobe, max_codes=self._index.max_codes, sel=selection.selector
        )
        return whole_search(self._index, query, k, parameters)

    def stages(
        self, query: Vectors, k: int, plan: StagePlan, selection: Selection | None
    ) -> Iterator[tuple[Part, bool]]:
        """Search in groups of whole clusters, the nearest first; empty ones make no stage."""
        index = self._index
        distances, clusters = index.quantizer.search(query, min(index.nprobe, index.nlist))
        sizes = self._list_sizes()
        ends = list(accumulate([sizes[cluster] for cluster in clusters[0].tolist()]))
        most = index.max_codes or ends[-1]  # FAISS stops within the cluster that exceeds it
        count = _until(ends, min(most, ends[-1]))
        probe = self._probe(query, k, clusters[0], distances[0], selection)
        best: Part | None = None
        timed, done, looked = plan.seconds is not None, 0, 0
        for stop in self._stops(plan, ends[:count]):
            began = time.perf_counter() if timed else 0.0
            found = probe(done, stop, most - looked if index.max_codes else 0)
            best = found if best is None else self._merge(best, found, k)
            if timed:
                self._pace.note(ends[stop - 1] - looked, time.perf_counter() - began)
            done, looked = stop, ends[stop - 1]
            yield best, done == count

    def _stops(self, plan: StagePlan, ends: Sequence[int]) -> Iterable[int]:
        """Say how many clusters have been searched after each stage.

        Args:
            plan: How to cut the search.
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

    def _probe(
        self,
        query: Vectors,
        k: int,
        clusters: Labels,
        distances: Vectors,
        selection: Selection | None,
    ) -> Callable[[int, int, int], Part]:
        """Return what searches some of the clusters.

        A stage leaves nothing in the processor's caches of what comes between it and the next. So
        that is little, and all that can be made ready beforehand is.
        """
        pointer = faiss().swig_ptr
        found = np.empty(k, np.float32), np.empty(k, np.int64)
        parameters = faiss().SearchParametersIVF(
            sel=None if selection is None else selection.selector
        )
        given, results = pointer(query), (pointer(found[0]), pointer(found[1]))
        # Not the method of the Python class: it takes neither parameters nor fewer clusters.
        search = self._index.search_preassigned_c
        store_pairs = False  # numbers of vectors, not of lists and places

        def probe(start: int, stop: int, max_codes: int) -> Part:
            parameters.nprobe, parameters.max_codes = stop - start, max_codes
            some, apart = pointer(clusters[start:stop]), pointer(distances[start:stop])
            search(1, given, k, some, apart, *results, store_pairs, parameters)
            return found[0].tolist(), found[1].tolist()

        return probe

    def _merge(self, one: Part, other: Part, k: int) -> Part:
        # Where one is missing, the worst of all distances stands.
        best, worst = other[0][0], one[0][-1]
        if best >= worst if self._ascending else best <= worst:
            return one  # as is usual in late stages
        both = [*zip(*one, strict=True), *zip(*other, strict=True)]
        both.sort(key=_DISTANCE, reverse=not self._ascending)  # the first stays first among equals
        del both[k:]
        return [distance for distance, _ in both], [label for _, label in both]

    def _list_sizes(self) -> list[int]:
        """Vectors by cluster; the last number is that of cluster -1, which is none."""
        if not self._sizes:
            lists = self._index.invlists
            self._sizes = [*map(lists.list_size, range(self._index.nlist)), 0]
        return self._sizes


def _until(ends: Sequence[int], work: float) -> int:
    """Return the number of clusters up to the one in which so many vectors are reached."""
    return min(bisect_left(ends, work * (1 - 1e-9)) + 1, len(ends))
