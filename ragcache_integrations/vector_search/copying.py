"""Copies of FAISS indexes without the vectors of deleted documents."""

from __future__ import annotations

from typing import Any

import numpy as np

from .opened import Opened, open_index
from .searches import Labels
from .selection import faiss

__all__ = ["compact_copy", "rebuilt_graph", "renumber"]


def compact_copy(opened: Opened, labels: Labels) -> Any:
    """Copy an index so that its vectors are numbered 0, 1, 2 and so on.

    Args:
        opened: The index. It is only read.
        labels: Numbers of the vectors that the copy is to hold, ascending.

    Returns:
        A FAISS index of the same kind, with the same settings and transforms.
    """
    if opened.kind == "hnsw" and len(labels) != opened.count():
        graph = rebuilt_graph(opened.inner, labels)
        # Cloned as a whole, the copy owns its transforms.
        return faiss().clone_index(opened.replaced(graph).whole)
    copy = faiss().clone_index(opened.whole)
    if opened.kind != "hnsw":
        inner = open_index(copy).inner
        gone = np.setdiff1d(opened.labels(), labels, assume_unique=True)
        if opened.kind == "ivf":
            # It would hold the old numbers; it is made again when it is needed.
            inner.set_direct_map_type(faiss().DirectMap.NoMap)
        if len(gone):
            inner.remove_ids(faiss().IDSelectorBatch(gone))
        if opened.kind == "ivf":
            renumber(inner, labels)
        copy.ntotal = inner.ntotal  # what an outer index counts for itself
    return copy


def rebuilt_graph(old: Any, labels: Labels) -> Any:
    """Build a new ``IndexHNSWFlat`` from some vectors of another, with the same settings."""
    graph = old.hnsw
    new = faiss().IndexHNSWFlat(old.d, graph.nb_neighbors(1), old.metric_type)
    new.hnsw.efConstruction = graph.efConstruction
    new.hnsw.efSearch = graph.efSearch
    new.hnsw.search_bounded_queue = graph.search_bounded_queue
    new.hnsw.check_relative_distance = graph.check_relative_distance
    if len(labels):
        new.add(old.reconstruct_batch(labels))
    return new


def renumber(ivf: Any, labels: Labels) -> None:
    """Give the vector of the n-th of ``labels``, which are ascending, the number n."""
    view = faiss().rev_swig_ptr
    for cluster in range(ivf.nlist):
        size = ivf.invlists.list_size(cluster)
        if size:
            numbers = view(ivf.invlists.get_ids(cluster), size)
            numbers[:] = np.searchsorted(labels, numbers)
