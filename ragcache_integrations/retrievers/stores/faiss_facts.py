"""What is known of a FAISS index."""

from __future__ import annotations

from typing import Any

from .facts import StoreFacts
from .faiss_vectors import (
    FaissVectors,
    faiss_metric,
    faiss_score,
)

__all__ = ["faiss_facts"]

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
