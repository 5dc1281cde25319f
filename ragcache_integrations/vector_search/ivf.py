"""Searching the inverted lists of an IVF index in groups (RAGCache §6)."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from .searches import Labels, Pace, Part, Selection, StagePlan, Vectors, faiss, whole_search

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
        self._quantizer = index.quantizer  # slow to get
        # Parameters by the number of clusters; nobody changes them.
        self._usual: dict[int, Any] = {}
        self._sizes: Labels | None = None

    def changed(self) -> None:
        """Note that vectors were added or removed."""
        self._sizes = None

    def whole(self, query: Vectors, k: int, selection: Selection | None) -> Part:
        """Search as FAISS does."""
        index = self._index
        parameters = None
        if selection is not None:
            parameters = self._parameters(index.nprobe, index.max_codes, selection)
        return whole_search(index, query, k, parameters)

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
