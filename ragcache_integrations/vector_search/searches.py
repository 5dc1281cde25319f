"""What the searches of all kinds of indexes have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .plan import StagePlan
from .selection import Selection, faiss

__all__ = ["FlatSearch", "Labels", "Part", "Search", "Vectors", "whole_search"]

Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]
Part = tuple[list[float], list[int]]
"""Distances, as FAISS reports them, and numbers of the vectors, best first; -1 for none."""


class Search(Protocol):
    """Searches one index. The caller ensures that the index does not change meanwhile."""

    def changed(self) -> None:
        """Note that vectors were added or removed; searches that have begun are not resumed."""

    def whole(self, query: Vectors, k: int, selection: Selection | None) -> Part:
        """Search as FAISS does.

        Args:
            query: The query's embedding, shape (1, d).
            k: The number of results.
            selection: Which vectors count; ``None`` for all.
        """

    def stages(
        self, query: Vectors, k: int, plan: StagePlan, selection: Selection | None
    ) -> Iterator[tuple[Part, bool]]:
        """Do the same in stages.

        Args:
            query: The query's embedding, shape (1, d).
            k: The number of results.
            plan: How to cut the search into stages.
            selection: Which vectors count; ``None`` for all.

        Yields:
            What was found so far, good until the next is asked for; and whether it is final.
        """


class FlatSearch:
    """Compares a query with every vector at once: a single stage.

    Args:
        index: A ``faiss.IndexFlat``.
    """

    def __init__(self, index: Any) -> None:
        self._index = index

    def changed(self) -> None:
        """Do nothing: nothing is kept."""

    def whole(self, query: Vectors, k: int, selection: Selection | None) -> Part:
        """Search as FAISS does."""
        parameters = None
        if selection is not None:
            parameters = faiss().SearchParameters(sel=selection.selector)
        return whole_search(self._index, query, k, parameters)

    def stages(
        self, query: Vectors, k: int, plan: StagePlan, selection: Selection | None
    ) -> Iterator[tuple[Part, bool]]:
        """Search in a single stage."""
        del plan
        yield self.whole(query, k, selection), True


def whole_search(index: Any, query: Vectors, k: int, parameters: Any) -> Part:
    """Search an index for one query."""
    distances, labels = index.search(query, k, params=parameters)
    return distances[0].tolist(), labels[0].tolist()
