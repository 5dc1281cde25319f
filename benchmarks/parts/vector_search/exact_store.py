"""An exact vector store with the true answers to a stream, computed beforehand in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache import Candidate

__all__ = ["Answers", "ExactStore", "pad"]

# FAISS compares in 32 bits. So many more are fetched and put in order in 64 bits, that what it
# misplaces around the last one wanted is among them.
SPARE = 30
BLOCK = 64
SLACK = 1e-9


@dataclass(frozen=True)
class Answers:
    """What the store says for every query of a stream.

    Attributes:
        documents: Row numbers of the nearest documents, nearest first, shape (queries, depth).
        distances: Theirs, L2 in 64 bits, same shape.
    """

    documents: NDArray[np.int64]
    distances: NDArray[np.float64]

    def pick(self, queries: Sequence[int]) -> Answers:
        """The answers for some of the queries."""
        numbers = np.array(queries, dtype=np.intp)
        return Answers(self.documents[numbers], self.distances[numbers])


class ExactStore:
    """Documents' vectors under exhaustive L2 search.

    Args:
        vectors: Shape (documents, dim).
    """

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        self._vectors = np.ascontiguousarray(vectors)
        self._index = faiss.IndexFlatL2(vectors.shape[1])
        self._index.add(self._vectors)
        self._candidates: dict[int, Candidate[int]] = {}

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return int(self._vectors.shape[1])

    def read(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """The documents' vectors by id: the cache's ``vectors`` source."""
        return np.asarray(self._vectors[[int(one) for one in ids]])

    def candidates(self, documents: NDArray[np.int64]) -> list[Candidate[int]]:
        """Documents as the cache takes them; each is its own row number."""
        found = []
        for row in documents.tolist():
            candidate = self._candidates.get(row)
            if candidate is None:
                candidate = self._candidates[row] = Candidate(str(row), row)
            found.append(candidate)
        return found

    def answer(self, queries: NDArray[np.float32], depth: int) -> Answers:
        """Search for all queries of a stream at once.

        Args:
            queries: Shape (queries, dim).
            depth: How many documents are wanted for each; all, where there are fewer.
        """
        depth = min(depth, len(self))
        _, found = self._index.search(queries, min(depth + SPARE, len(self)))
        documents = np.empty((len(queries), depth), dtype=np.int64)
        distances = np.empty((len(queries), depth), dtype=np.float64)
        for start in range(0, len(queries), BLOCK):
            block = slice(start, start + BLOCK)
            exact = self.distances(queries[block], found[block])
            order = np.argsort(exact, axis=1, kind="stable")[:, :depth]
            documents[block] = np.take_along_axis(found[block], order, axis=1)
            distances[block] = np.take_along_axis(exact, order, axis=1)
        return Answers(documents, distances)

    def distances(
        self, queries: NDArray[np.float32], documents: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """True L2 distances from queries to documents, on differences in 64 bits.

        Args:
            queries: Shape (queries, dim).
            documents: Row numbers, shape (queries, m).

        Returns:
            Shape (queries, m).
        """
        differences = self._vectors[documents].astype(np.float64) - queries[:, None, :]
        return np.asarray(np.sqrt(np.einsum("qmd,qmd->qm", differences, differences)))

    def recall(
        self, queries: NDArray[np.float32], served: Sequence[Sequence[int]], answers: Answers
    ) -> NDArray[np.float64]:
        """The k-recall of what was served, ties counted as right.

        A document counts if it is no farther than the true k-th.

        Args:
            queries: Shape (queries, dim).
            served: Row numbers of the documents, k for each query.
            answers: The true ones for the same queries.

        Returns:
            Shape (queries,).
        """
        if not served:
            return np.empty(0)
        exact = self.distances(queries, np.array(served))
        limits = answers.distances[:, exact.shape[1] - 1]
        return np.asarray((exact <= limits[:, None] + SLACK).mean(axis=1))


def pad(vectors: NDArray[np.float32], total: int, seed: int) -> NDArray[np.float32]:
    """Add generated neighbours to real vectors, up to a number of them.

    A generated one has the cosine ``0.3 + 0.6 u**2`` with a real one, for uniform u: few are close,
    as among real passages. It lies half in the direction of another real one, half in any.

    Args:
        vectors: The real ones, of unit length, shape (n, dim).
        total: How many there are to be.
        seed: The same seed makes the same ones.

    Returns:
        Shape (total, dim), the real ones first; all of them, if there are more.
    """
    rng = np.random.default_rng(seed)
    count, dim = vectors.shape
    padded = np.empty((max(total, count), dim), dtype=np.float32)
    padded[:count] = vectors
    for start in range(count, total, 20_000):
        size = min(20_000, total - start)
        near, towards = vectors[rng.integers(count, size=(2, size))]
        away = towards + rng.standard_normal((size, dim), dtype=np.float32) / np.sqrt(dim)
        away -= (away * near).sum(axis=1, keepdims=True) * near
        away /= np.linalg.norm(away, axis=1, keepdims=True)
        cosines = 0.3 + 0.6 * rng.uniform(size=(size, 1)) ** 2
        made = cosines * near + np.sqrt(1 - cosines**2) * away
        padded[start : start + size] = made / np.linalg.norm(made, axis=1, keepdims=True)
    return padded
