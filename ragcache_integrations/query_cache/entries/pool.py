"""The documents' vectors, each kept once and shared by all entries that need it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.query_cache.types import Candidate

__all__ = ["DocumentKey", "VectorPool", "document_keys"]

DocumentKey = tuple[str, str]
"""A document's id and the fingerprint of its content."""


def document_keys(candidates: Iterable[Candidate[Any]]) -> list[DocumentKey]:
    """Return the keys of the candidates' documents, in their order."""
    return [(candidate.id, candidate.fingerprint) for candidate in candidates]


class VectorPool:
    """Reference-counted rows of one array that grows as needed.

    Not thread-safe: the cache that owns it holds its lock.

    Args:
        dim: Dimension of the vectors.

    Attributes:
        vectors: The array that rows are in; a row stays as it is while its document is referenced.
    """

    def __init__(self, dim: int) -> None:
        self.vectors = np.empty((16, dim), dtype=np.float32)
        self._rows: dict[DocumentKey, int] = {}
        self._references: dict[DocumentKey, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def missing(self, keys: Iterable[DocumentKey]) -> list[DocumentKey]:
        """Return the documents that are not kept."""
        return [key for key in keys if key not in self._rows]

    def acquire(self, keys: Sequence[DocumentKey], vectors: NDArray[np.float32]) -> None:
        """Reference documents, keeping the vectors of those that are new.

        Args:
            keys: The documents, each once.
            vectors: Their vectors, shape (len(keys), dim).
        """
        for key, vector in zip(keys, vectors, strict=True):
            if key not in self._rows:
                row = self._free.pop() if self._free else len(self._rows)
                if row == len(self.vectors):
                    self.vectors = np.concatenate([self.vectors, np.empty_like(self.vectors)])
                self.vectors[row] = vector
                self._rows[key] = row
                self._references[key] = 0
            self._references[key] += 1

    def acquire_all(
        self,
        keys: Sequence[DocumentKey],
        missing: Sequence[DocumentKey],
        vectors: NDArray[np.float32],
    ) -> bool:
        """Reference documents whose missing vectors were read meanwhile.

        Args:
            keys: The documents, each once.
            missing: Those of them that :meth:`missing` returned.
            vectors: Their vectors, shape (len(missing), dim).

        Returns:
            Whether that could be; not where others are missing by now.
        """
        known = set(keys).difference(missing)
        if not self._rows.keys() >= known:
            return False
        self.acquire(missing, vectors)
        for key in known:
            self._references[key] += 1
        return True

    def release(self, keys: Iterable[DocumentKey]) -> None:
        """Give references back; a vector that nobody needs any more goes."""
        for key in keys:
            self._references[key] -= 1
            if self._references[key] == 0:
                del self._references[key]
                self._free.append(self._rows.pop(key))

    def rows(self, keys: Iterable[DocumentKey]) -> NDArray[np.int64]:
        """Return the row numbers of referenced documents."""
        return np.array(list(map(self._rows.__getitem__, keys)), dtype=np.int64)

    def contents(self) -> tuple[list[DocumentKey], NDArray[np.float32]]:
        """Return the documents and a copy of their vectors, shape (documents, dim)."""
        return list(self._rows), self.vectors[list(self._rows.values())]
