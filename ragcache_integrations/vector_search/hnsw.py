"""Searching an HNSW graph in slices, with the heaps kept between them (RAGCache §6)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.vector_search.kernels import graph_kernels
from ragcache_integrations.vector_search.plan import Pace, StagePlan
from ragcache_integrations.vector_search.searches import Part, Vectors, whole_search
from ragcache_integrations.vector_search.selection import Selection, faiss

__all__ = ["HNSWSearch"]

_MOST_MARKS = 65_000  # then an array of marks is cleared
_KEPT_MARKS = 4
_ALL = np.empty(0, np.uint8)

_Marks = tuple[NDArray[np.uint16], int]
"""One number per vector, and the one that stands there for the vectors that were seen."""


@dataclass(frozen=True)
class _Graph:
    """FAISS's own arrays; not copied, so good only until vectors are added.

    Attributes:
        vectors: Shape (n, d).
        neighbours: Those of all vectors and levels, one after the other, -1 for none.
        offsets: Where those of each vector begin, shape (n + 1,).
        widths: Where those of each level begin among a vector's.
        entry: The vector to begin with.
        top: The highest level.
        inner: Whether the largest inner products are wanted.
    """

    vectors: Vectors
    neighbours: NDArray[np.int32]
    offsets: NDArray[np.int64]
    widths: NDArray[np.int64]
    entry: int
    top: int
    inner: bool


class _Walk:
    """One search, from its beginning.

    Attributes:
        hops: How many vectors have been expanded.
        over: Whether the search is over.
    """

    def __init__(
        self,
        kernels: ModuleType,
        graph: _Graph,
        query: Vectors,
        k: int,
        efsearch: int,
        allowed: NDArray[np.uint8],
        marks: _Marks,
    ) -> None:
        breadth = max(efsearch, k)
        self._kernels = kernels
        self._found = np.empty(k, np.float32), np.empty(k, np.int64)
        self.hops = 0
        self.over = False
        shared = query, graph.vectors, graph.neighbours, graph.offsets
        heaps = np.empty(breadth, np.float32), np.empty(breadth, np.int64)
        best = np.empty(k, np.float32), np.empty(k, np.int64)
        own = allowed, *marks, *heaps, *best, np.empty(kernels.COUNTERS, np.int64)
        kernels.start(*shared, graph.widths, graph.entry, graph.top, graph.inner, *own)
        # Kept, since the packed form has but their addresses.
        self._arrays = *shared, int(graph.widths[1]), graph.inner, *own, efsearch, *self._found
        self._packed = kernels.pack(*self._arrays)

    def resume(self, hops: int) -> Part:
        """Go on until so many vectors have been expanded, or the search is over.

        Returns:
            What was found so far; good until the next call.
        """
        self.hops, over = self._kernels.advance(self._packed, hops)
        self.over = over != 0
        return self._found


class HNSWSearch:
    """Best-first search over FAISS's own graph, resumable; work is counted in expanded vectors.

    Where numba is missing, or the index is set to search by other rules than FAISS's default ones
    (``search_bounded_queue`` or ``check_relative_distance`` switched off), the search is FAISS's
    own and has a single stage.

    Args:
        index: A ``faiss.IndexHNSWFlat``.
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        self._pace = Pace()
        self._marks: list[_Marks] = []
        self._graph: _Graph | None = None
        self._kernels = _ready_kernels()

    def changed(self) -> None:
        """Note that vectors were added."""
        self._graph = None
        self._marks = []

    def whole(self, query: Vectors, k: int, selection: Selection | None) -> Part:
        """Search as FAISS does."""
        if selection is None:
            return whole_search(self._index, query, k, None)
        hnsw = self._index.hnsw
        parameters = faiss().SearchParametersHNSW(
            sel=selection.selector,
            efSearch=hnsw.efSearch,
            check_relative_distance=hnsw.check_relative_distance,
            bounded_queue=hnsw.search_bounded_queue,
        )
        return whole_search(self._index, query, k, parameters)

    def stages(
        self, query: Vectors, k: int, plan: StagePlan, selection: Selection | None
    ) -> Iterator[tuple[Part, bool]]:
        """Search in slices."""
        hnsw = self._index.hnsw
        ordinary = hnsw.search_bounded_queue and hnsw.check_relative_distance
        if self._kernels is None or not ordinary or hnsw.entry_point < 0:
            yield self.whole(query, k, selection), True
            return
        graph = self._graph or self._read()
        efsearch = hnsw.efSearch  # about so many vectors are expanded
        expected = efsearch * (self._pace.whole or 1.0)
        allowed = _ALL if selection is None else selection.mask
        marks = self._take_marks(len(graph.vectors))
        try:
            began = time.perf_counter()
            walk = _Walk(self._kernels, graph, query[0], k, efsearch, allowed, marks)
            stage, before = 0, 0
            while True:
                stage += 1
                until = plan.until(stage, before, expected, self._pace)
                hops = 2**62 if until == math.inf else max(before + 1, math.ceil(until))
                found = walk.resume(hops)
                self._pace.note(walk.hops - before, time.perf_counter() - began)
                before, over = walk.hops, walk.over
                if over:
                    self._pace.note_whole(before / efsearch)
                yield found, over
                if over:
                    return
                began = time.perf_counter()
        finally:
            if len(self._marks) < _KEPT_MARKS and self._graph is graph:
                self._marks.append(marks)

    def _take_marks(self, size: int) -> _Marks:
        """Return an array in which nothing is marked with the number that comes with it."""
        try:
            marks, mark = self._marks.pop()
        except IndexError:
            return np.zeros(size, np.uint16), 1
        if mark >= _MOST_MARKS:
            marks[:] = 0
            mark = 0
        return marks, mark + 1

    def _read(self) -> _Graph:
        view = faiss().rev_swig_ptr
        hnsw = self._index.hnsw
        storage = faiss().downcast_index(self._index.storage)
        offsets = view(hnsw.offsets.data(), hnsw.offsets.size())
        graph = _Graph(
            view(storage.get_xb(), storage.ntotal * storage.d).reshape(-1, storage.d),
            view(hnsw.neighbors.data(), hnsw.neighbors.size()),
            offsets.view(np.int64),
            faiss().vector_to_array(hnsw.cum_nneighbor_per_level).astype(np.int64),
            int(hnsw.entry_point),
            int(hnsw.max_level),
            self._index.metric_type == faiss().METRIC_INNER_PRODUCT,
        )
        self._graph = graph
        return graph


@cache
def _ready_kernels() -> ModuleType | None:
    """Load the kernels, which numba compiles first on a new machine, before a search waits."""
    kernels = graph_kernels()
    if kernels is not None:
        vector = np.ones((1, 1), np.float32)
        neighbours = np.full(2, -1, np.int32)
        offsets = np.array([0, 2], np.int64)
        graph = _Graph(vector, neighbours, offsets, offsets, entry=0, top=0, inner=False)
        walk = _Walk(kernels, graph, vector[0], 1, 1, _ALL, (np.zeros(1, np.uint16), 1))
        walk.resume(1)
    return kernels
