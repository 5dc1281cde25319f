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
        self._references: list[int] = []  # by row
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
            row = self._rows.get(key)
            self._references[self._add(key, vector) if row is None else row] += 1

    def acquire_all(
        self,
        keys: Sequence[DocumentKey],
        missing: Sequence[DocumentKey],
        vectors: NDArray[np.float32],
    ) -> NDArray[np.int64] | None:
        """Reference documents whose missing vectors were read meanwhile.

        Args:
            keys: The documents, each once.
            missing: Those of them that :meth:`missing` returned.
            vectors: Their vectors, shape (len(missing), dim).

        Returns:
            The documents' row numbers, shape (len(keys),); ``None`` where others are missing by
            now, and then nothing is referenced.
        """
        rows = self._rows
        if missing:
            if not set(self.missing(keys)).issubset(missing):
                return None
            for key, vector in zip(missing, vectors, strict=True):
                if key not in rows:
                    self._add(key, vector)
        try:
            held = [rows[key] for key in keys]
        except KeyError:
            return None
        references = self._references
        for row in held:
            references[row] += 1
        return np.array(held, dtype=np.int64)

    def _add(self, key: DocumentKey, vector: NDArray[np.float32]) -> int:
        """Keep a vector that nobody references yet; return its row."""
        if self._free:
            row = self._free.pop()
        else:
            row = len(self._references)
            self._references.append(0)
        if row == len(self.vectors):
            self.vectors = np.concatenate([self.vectors, np.empty_like(self.vectors)])
        self.vectors[row] = vector
        self._rows[key] = row
        return row

    def release(self, keys: Iterable[DocumentKey]) -> None:
        """Give references back; a vector that nobody needs any more goes."""
        for key in keys:
            row = self._rows[key]
            self._references[row] -= 1
            if not self._references[row]:
                del self._rows[key]
                self._free.append(row)

    def rows(self, keys: Iterable[DocumentKey]) -> NDArray[np.int64]:
        """Return the row numbers of referenced documents."""
        return np.array(list(map(self._rows.__getitem__, keys)), dtype=np.int64)

    def contents(self) -> tuple[list[DocumentKey], NDArray[np.float32]]:
        """Return the documents and a copy of their vectors, shape (documents, dim)."""
        return list(self._rows), self.vectors[list(self._rows.values())]
