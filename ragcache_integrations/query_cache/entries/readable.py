"""Candidates whose vectors are kept, ranked for the query that they were fetched for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.types import Candidate, Metric

from .entry import Readable
from .pool import DocumentKey
from .table import EntryTable

__all__ = ["make_readable"]

_PREPARED = False  # a query of unit length already, where it has to be


def make_readable(
    table: EntryTable[Any],
    key: NDArray[np.float32],
    candidates: Sequence[Candidate[Any]],
    documents: tuple[DocumentKey, ...],
    metric: Metric,
    kernels: ModuleType,
) -> Readable:
    """Return what is needed to re-rank candidates.

    Args:
        table: Its pool keeps their vectors already; its ``longest`` grows by theirs.
        key: The query, prepared, shape (dim,).
        candidates: Best first, as the search returned them.
        documents: What is referenced in the pool, each once.
        metric: How the cache ranks documents.
        kernels: The module of compiled or plain loops.
    """
    rows = table.pool.rows((candidate.id, candidate.fingerprint) for candidate in candidates)
    inner = metric == "ip"
    vectors = table.pool.vectors
    order, distances = kernels.rank(key, _PREPARED, vectors, rows, inner)
    if inner and len(rows):
        lengths = (vectors[rows].astype(np.float64) ** 2).sum(axis=1)
        table.longest = max(table.longest, math.sqrt(lengths.max()))
    return Readable(rows, documents, distances, rows[order])
