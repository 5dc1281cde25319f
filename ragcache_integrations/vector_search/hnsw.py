"""Searching an HNSW graph in slices, with the heaps kept between them (RAGCache §6).

This needs numba, which compiles the loops.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from .searches import Pace, Part, Search, Selection, StagePlan, Vectors, faiss, reader

__all__ = ["HNSWSearch", "graph_kernels"]


logger = logging.getLogger(__name__)


@cache
def graph_kernels() -> ModuleType | None:
    """Return the module of the kernels, ``None`` without numba; imports numba the first time."""
    try:
        return import_module("ragcache_integrations.vector_search._graph")
    except (ImportError, RuntimeError) as error:  # the latter: nowhere to keep compiled code
        logger.warning(
            "HNSW searches have a single stage, as numba cannot be used: %s. "
            "pip install 'ragcache-integrations[numba]'",
            error,
        )
        return None


_MOST_MARKS = 250  # then an array of marks is cleared
_KEPT_WALKS = 4


class _Graph(NamedTuple):
    """FAISS's own arrays; not copied, so good only until vectors are added.

    Attributes:
        vectors: Shape (n, d).
        neighbours: Those of all vectors and levels, one after the other, -1 for none.
        offsets: Where those of each vector begin, shape (n + 1,).
        widths: Where those of each level begin among a vector's.
        entry: The vector to begin with.
        top: Number of the highest level.
        inner: Whether to find the largest inner products.
    """

    vectors: Vectors
    neighbours: NDArray[np.int32]
    offsets: NDArray[np.int64]
    widths: NDArray[np.int64]
    entry: int
    top: int
    inner: bool


class _Walk:
    """Searches a graph, one search after the other.

    Args:
        kernels: The module of compiled loops.
        graph: FAISS's arrays.

    Attributes:
        graph: FAISS's arrays.
        advance: Continues until a number of vectors have been expanded, or the search is over.
            Returns their number, whether the search is over, and whether results improved.
    """

    advance: Callable[[float], tuple[int, bool, bool]]

    def __init__(self, kernels: ModuleType, graph: _Graph) -> None:
        self._kernels = kernels
        # The kernels have but the addresses of these three.
        self.graph = graph
        self._allowed: NDArray[np.uint8] | None = None
        self._marks = np.zeros(len(graph.vectors), np.uint8)  # which vectors were seen
        self._mark = 0  # their value there
        self._size = 0, 0

    def begin(
        self, query: Vectors, k: int, efsearch: int, allowed: NDArray[np.uint8] | None
    ) -> None:
        """Begin a search.

        Args:
            query: Shape (1, d).
            k: The number of results.
            efsearch: The number of candidates kept.
            allowed: One number per vector, 0 for those that do not count; ``None`` if all do.
        """
        if self._size != (k, efsearch):
            self._work, self._query, *self._results = self._kernels.workspace(
                *self.graph, self._marks, k, max(k, efsearch), efsearch
            )
            self.advance = partial(self._kernels.advance, self._work)
            self._size = k, efsearch
        if self._mark >= _MOST_MARKS:
            self._marks[:] = 0
            self._mark = 0
        self._mark += 1
        self._allowed = allowed
        self._query[:] = query
        self._kernels.begin(self._work, self._mark, 0 if allowed is None else allowed.ctypes.data)

    def results(self) -> Part:
        """The results so far."""
        distances, labels = self._results
        return distances.tolist(), labels.tolist()


class HNSWSearch(Search):
    """Best-first search over FAISS's own graph, resumable; work is counted in expanded vectors.

    Where numba is missing, or the index is set to search by other rules than FAISS's default ones
    (``search_bounded_queue`` or ``check_relative_distance`` switched off), the search is FAISS's
    own and has a single stage.

    Args:
        index: A ``faiss.IndexHNSWFlat``.
    """

    def __init__(self, index: Any) -> None:
        super().__init__(index)
        self._hnsw = index.hnsw  # slow to get
        self._efsearch = reader(self._hnsw, "efSearch")
        self._bounded = reader(self._hnsw, "search_bounded_queue")
        self._relative = reader(self._hnsw, "check_relative_distance")
        self._pace = Pace()
        self._walks: list[_Walk] = []  # which no search uses
        self._graph: _Graph | None = None
        self._kernels = _ready_kernels()

    @override
    def changed(self) -> None:
        self._graph = None
        self._walks = []

    @override
    def _selecting(self, selection: Selection) -> Any:
        hnsw = self._hnsw
        return faiss().SearchParametersHNSW(
            sel=selection.selector,
            efSearch=hnsw.efSearch,
            check_relative_distance=hnsw.check_relative_distance,
            bounded_queue=hnsw.search_bounded_queue,
        )

    @override
    def stages(
        self, query: Vectors, k: int, plan: StagePlan, selection: Selection | None
    ) -> Iterator[tuple[Part, bool]]:
        """Search in slices."""
        ordinary = self._bounded() and self._relative()
        graph = self._graph or self._read()
        if self._kernels is None or graph.entry < 0 or not ordinary:
            yield self.whole(query, k, selection), True
            return
        efsearch = self._efsearch()
        pace = self._pace
        expected = efsearch * (pace.whole or 1.0)  # about this many vectors are expanded
        walk = self._walk(self._kernels, graph)
        try:
            walk.begin(query, k, efsearch, None if selection is None else selection.mask)
            timed, done = plan.seconds is not None, 0
            part: Part | None = None
            for hops in self._hops_by_time(plan, expected) if timed else plan.ends(expected):
                if hops <= done:
                    continue  # where little is expected, several stages are one
                before = done
                began = time.perf_counter() if timed else 0.0
                done, over, better = walk.advance(hops)
                if timed:
                    pace.note(done - before, time.perf_counter() - began)
                if better or part is None:
                    part = walk.results()
                if over:
                    pace.note_whole(done / efsearch)
                    yield part, True
                    return
                yield part, False
        finally:
            if len(self._walks) < _KEPT_WALKS and self._graph is graph:
                self._walks.append(walk)

    def _hops_by_time(self, plan: StagePlan, expected: float) -> Iterator[float]:
        """Yield how many vectors are to be expanded by the end of each stage."""
        hops = 0
        while True:
            hops = max(hops + 1, math.ceil(plan.until(hops, expected, self._pace)))
            yield float(hops)  # the kernel is compiled for one type

    def _walk(self, kernels: ModuleType, graph: _Graph) -> _Walk:
        """Return a walk that no other search uses. Thread-safe."""
        try:
            walk = self._walks.pop()
        except IndexError:
            return _Walk(kernels, graph)
        # Another thread may have given it back just while the graph was changed.
        return walk if walk.graph is graph else _Walk(kernels, graph)

    def _read(self) -> _Graph:
        view = faiss().rev_swig_ptr
        hnsw = self._hnsw
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
        walk = _Walk(kernels, graph)
        walk.begin(vector, 1, 1, None)
        walk.advance(1.0)
    return kernels
