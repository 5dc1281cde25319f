"""Searching the inverted lists of an IVF index in groups (RAGCache §6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.vector_search.plan import Pace, StagePlan
from ragcache_integrations.vector_search.searches import Labels, Part, Vectors, whole_search
from ragcache_integrations.vector_search.selection import Selection, faiss

__all__ = ["IVFSearch"]


class IVFSearch:
    """Probes the nearest clusters group by group; the work of a stage is counted in vectors.

    Args:
        index: A ``faiss.IndexIVF``, flat or quantised.
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        self._pace = Pace()
        self._ascending = index.metric_type == faiss().METRIC_L2
        self._sizes: NDArray[np.int64] | None = None

    def changed(self) -> None:
        """Note that vectors were added or removed."""
        self._sizes = None

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
        began = time.perf_counter()
        distances, clusters = index.quantizer.search(query, min(index.nprobe, index.nlist))
        ends = np.cumsum(np.where(clusters[0] < 0, 0, self._list_sizes()[clusters[0]]))
        most = index.max_codes or int(ends[-1])  # FAISS stops within the cluster that exceeds it
        count = int(np.searchsorted(ends, min(most, ends[-1]))) + 1
        total = float(ends[count - 1])
        best: Part | None = None
        stage, done, looked = 0, 0, 0
        while True:
            stage += 1
            target = plan.until(stage, looked, total, self._pace)
            if target <= looked < total:  # the last cluster was large enough for this stage, too
                continue
            # Up to the cluster in which the target lies.
            group = slice(done, min(int(np.searchsorted(ends, target * (1 - 1e-9))) + 1, count))
            left = most - looked if index.max_codes else 0
            found = self._probe(query, k, clusters[:, group], distances[:, group], left, selection)
            best = found if best is None else self._merge(best, found, k)
            seen = int(ends[group.stop - 1])
            self._pace.note(seen - looked, time.perf_counter() - began)
            done, looked = group.stop, seen
            yield best, done == count
            if done == count:
                return
            began = time.perf_counter()

    def _probe(
        self,
        query: Vectors,
        k: int,
        clusters: Labels,
        distances: Vectors,
        max_codes: int,
        selection: Selection | None,
    ) -> Part:
        # Not the method of the Python class: it takes neither parameters nor fewer clusters.
        clusters, distances = np.ascontiguousarray(clusters), np.ascontiguousarray(distances)
        parameters = faiss().SearchParametersIVF(
            nprobe=clusters.shape[1],
            max_codes=max_codes,
            sel=None if selection is None else selection.selector,
        )
        found = np.empty(k, np.float32), np.empty(k, np.int64)
        pointer = faiss().swig_ptr
        self._index.search_preassigned_c(
            1,
            pointer(query),
            k,
            pointer(clusters),
            pointer(distances),
            pointer(found[0]),
            pointer(found[1]),
            False,  # noqa: FBT003 - numbers of vectors, not of lists and places; no keywords there
            parameters,
        )
        return found

    def _merge(self, one: Part, other: Part, k: int) -> Part:
        distances = np.concatenate([one[0], other[0]])
        labels = np.concatenate([one[1], other[1]])
        # Where one is missing, the worst of all distances stands.
        order = np.argsort(distances if self._ascending else -distances, kind="stable")[:k]
        return distances[order], labels[order]

    def _list_sizes(self) -> NDArray[np.int64]:
        sizes = self._sizes
        if sizes is None:
            lists = self._index.invlists
            sizes = np.array([lists.list_size(one) for one in range(self._index.nlist)], np.int64)
            self._sizes = sizes
        return sizes
