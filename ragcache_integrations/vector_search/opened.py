"""What kinds of FAISS indexes there are to search in stages, and what is inside wrappers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ragcache_integrations.errors import ConfigurationError

from .hnsw import HNSWSearch
from .searches import IVFSearch, Labels, Search, Vectors, cluster_labels, faiss, reader

__all__ = ["Kind", "Opened", "open_index"]

Kind = Literal["flat", "ivf", "hnsw"]

# By the exact class: others of the same family search differently.
_KINDS: dict[str, Kind] = {
    "IndexFlat": "flat",
    "IndexFlatL2": "flat",
    "IndexFlatIP": "flat",
    "IndexIVFFlat": "ivf",
    "IndexIVFPQ": "ivf",
    "IndexIVFScalarQuantizer": "ivf",
    "IndexHNSWFlat": "hnsw",
}
_SEARCHES: dict[Kind, Callable[[Any], Search]] = {
    "flat": Search,
    "ivf": IVFSearch,
    "hnsw": HNSWSearch,
}
_MAPS = {"IndexIDMap", "IndexIDMap2"}


@dataclass(frozen=True)
class Opened:
    """An index, looked into.

    Attributes:
        owner: The index that the caller passed, which keeps what is inside alive.
        whole: The same without an ``IndexIDMap``.
        inner: The index that searches, without its wrappers.
        transforms: What is done to vectors before they reach it.
        kind: Kind of the inner index.
        search: Searches the inner index.
        outer_ids: Numbers that an ``IndexIDMap`` gives its vectors, in order, if there is one.
    """

    owner: Any
    whole: Any
    inner: Any
    transforms: tuple[Any, ...]
    kind: Kind
    search: Search
    outer_ids: Labels | None

    @cached_property
    def count(self) -> Callable[[], int]:
        """A function that returns how many vectors the inner index has."""
        return reader(self.inner, "ntotal")

    def transform(self, vectors: Vectors) -> Vectors:
        """Bring vectors, shape (n, d), into the form that the inner index takes."""
        for transform in self.transforms:
            vectors = transform.apply(vectors)
        return vectors

    def prepare(self, vectors: Vectors) -> Vectors:
        """Transform vectors that are to be added.

        FAISS puts a vector into no cluster whose distance to every centre is infinite or NaN. It
        counts the vector all the same, and crashes when the vector is removed.

        Args:
            vectors: Finite vectors, shape (n, d).

        Raises:
            ConfigurationError: A vector is too large to be compared with others.
        """
        rows = np.ascontiguousarray(self.transform(vectors))
        comparable = bool(np.isfinite(rows).all())
        if comparable and self.kind == "ivf" and len(rows):
            _, clusters = self.inner.quantizer.search(rows, 1)
            comparable = bool((clusters >= 0).all())
        if not comparable:
            msg = "vectors must be small enough that distances to them are finite"
            raise ConfigurationError(msg)
        return rows

    def transform_back(self, vectors: Vectors) -> Vectors:
        """Bring vectors back into the form that the caller passed.

        Raises:
            RuntimeError: A transform cannot be reversed.
        """
        for transform in reversed(self.transforms):
            vectors = transform.reverse_transform(vectors)
        return vectors

    def replaced(self, inner: Any) -> Opened:
        """Return a copy around another index of the same kind."""
        whole = inner
        for transform in reversed(self.transforms):
            whole = faiss().IndexPreTransform(transform, whole)
        search = _SEARCHES[self.kind](inner)
        owner = self.owner, whole  # the first owns the transforms
        return Opened(owner, whole, inner, self.transforms, self.kind, search, self.outer_ids)

    def labels(self) -> Labels:
        """Return the numbers by which the inner index knows its vectors."""
        if self.kind != "ivf":
            return np.arange(self.inner.ntotal)
        some = [labels.copy() for labels in cluster_labels(self.inner)]
        return np.sort(np.concatenate(some)) if some else np.empty(0, np.int64)

    @property
    def exhaustive(self) -> bool:
        """Whether a search surely goes over all vectors, as the index decodes them."""
        if self.transforms:
            return False  # it compares what the transforms left
        if self.kind != "ivf":
            return self.kind == "flat"
        inner = self.inner
        # A coarse quantiser that does not look at all clusters may leave some out.
        coarse = _KINDS.get(type(faiss().downcast_index(inner.quantizer)).__name__)
        unlimited = inner.nprobe >= inner.nlist and not inner.max_codes
        return coarse == "flat" and unlimited and not getattr(inner, "polysemous_ht", 0)


def open_index(index: Any) -> Opened:
    """Look into an index.

    Raises:
        ConfigurationError: It cannot be searched in stages, or is not trained.
    """
    if not isinstance(index, faiss().Index):
        raise ConfigurationError(f"index must be a FAISS index, got {type(index).__name__}")
    inner = faiss().downcast_index(index)
    outer_ids: Labels | None = None
    transforms: list[Any] = []
    if type(inner).__name__ in _MAPS:
        outer_ids = faiss().vector_to_array(inner.id_map)
        inner = faiss().downcast_index(inner.index)
    whole = inner
    while type(inner).__name__ == "IndexPreTransform":
        chain = inner.chain
        transforms += [
            faiss().downcast_VectorTransform(chain.at(place)) for place in range(chain.size())
        ]
        inner = faiss().downcast_index(inner.index)
    kind = _KINDS.get(type(inner).__name__)
    if kind is None:
        outer = type(faiss().downcast_index(index)).__name__
        got = outer if outer == type(inner).__name__ else f"{outer} of {type(inner).__name__}"
        kinds = ", ".join(_KINDS)
        msg = f"index must be {kinds}, or one in IndexPreTransform or IndexIDMap, got {got}"
        raise ConfigurationError(msg)
    if inner.metric_type not in {faiss().METRIC_L2, faiss().METRIC_INNER_PRODUCT}:
        msg = f"index must rank by L2 or inner product, got FAISS metric {inner.metric_type}"
        raise ConfigurationError(msg)
    if not inner.is_trained or not all(transform.is_trained for transform in transforms):
        msg = "index must be trained before it is searched, this one is not: call index.train()"
        raise ConfigurationError(msg)
    search = _SEARCHES[kind](inner)
    return Opened(index, whole, inner, tuple(transforms), kind, search, outer_ids)
