"""Reads the documents' vectors, and brings vectors into the form in which they are kept."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.certificates import are_unit
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.types import VectorsPendingError
from ragcache_integrations.query_cache.validation import (
    as_query,
    check_vector,
    check_vectors,
)

__all__ = ["DocumentVectors"]

logger = logging.getLogger(__name__)

Vectors = NDArray[np.float32]


class DocumentVectors:
    """What a cache knows of its ``vectors``.

    Args:
        settings: The arguments of the cache, checked.
        kernels: The module of compiled or plain loops.
    """

    def __init__(self, settings: Settings, kernels: ModuleType) -> None:
        self._settings = settings
        self._kernels = kernels
        # Those of cosine are made unit vectors here.
        self._scales = settings.metric == "cosine"
        self._needs_unit = settings.unit and not self._scales
        self._warned = False

    def prepare_query(self, q: ArrayLike) -> Vectors:
        """Return a copy of a query as keys are kept, bit for bit as the kernels do.

        Raises:
            ConfigurationError: It is no vector, zero or not finite; or ``unit_vectors`` was
                promised, and it is none.
        """
        query = as_query(q, self._settings.dim)
        if not self._scales:
            query = query.copy()
        if self._needs_unit:
            _check_unit("an embedding", query)
        prepared: Vectors
        length, prepared = self._kernels.prepare(query, self._scales)
        if not 0.0 < length < math.inf:
            check_vector(query)  # says what is wrong with it
        return prepared

    def prepare_documents(self, vectors: Vectors) -> Vectors:
        """Return documents' vectors as they are kept, shape (n, dim). Zero vectors stay zero.

        Raises:
            ConfigurationError: ``unit_vectors`` was promised, and one is none.
        """
        if self._needs_unit:
            _check_unit("the documents' vectors", vectors)
        if self._settings.metric != "cosine":
            return vectors
        wide = vectors.astype(np.float64)
        lengths = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
        lengths[lengths == 0] = 1
        return np.asarray(wide / lengths, dtype=np.float32)

    def of_new(
        self, ids: tuple[str, ...], vectors: ArrayLike | None
    ) -> tuple[tuple[str, ...], Vectors | None]:
        """Return documents that came, and their vectors as they are kept.

        Args:
            ids: Ids of the documents.
            vectors: Their vectors, shape (len(ids), dim); ``None``: they are read.

        Returns:
            ``None`` for the vectors where they cannot be read.

        Raises:
            ConfigurationError: As :meth:`read`.
            Exception: As :meth:`read`.
        """
        if vectors is not None:
            return ids, self.check(vectors, len(ids))
        if not ids:
            return ids, np.empty((0, self._settings.dim), dtype=np.float32)
        ids = tuple(dict.fromkeys(ids))
        return ids, self.read(ids, among=ids)

    def read(
        self, ids: Sequence[str], among: Sequence[str], *, quiet: bool = False
    ) -> Vectors | None:
        """Read documents' vectors.

        Args:
            ids: Ids of the documents.
            among: Ids of all documents of the answer. An id that comes twice belongs to different
                documents, whose vectors cannot be distinguished by it.
            quiet: Log nothing where they cannot be read.

        Returns:
            Shape (len(ids), dim), as they are kept; ``None`` where one of them cannot be read, or
            is zero under ``cosine``.

        Raises:
            ConfigurationError: What was read cannot be used.
            Exception: Any error of ``vectors`` other than a ``LookupError``.
        """
        source = self._settings.vectors
        if source is None:
            return None
        if len(set(among)) < len(among):
            self._warn(f"an id is shared by documents of different content, among {among}")
            return None
        if not ids:
            return np.empty((0, self._settings.dim), dtype=np.float32)
        try:
            result = source(ids)
        except LookupError as error:
            if not quiet and not isinstance(error, VectorsPendingError):
                self._warn(error)
            return None
        return self.usable(result, len(ids))

    def usable(self, vectors: ArrayLike, count: int) -> Vectors | None:
        """Return documents' vectors as they are kept, shape (count, dim).

        Returns:
            ``None`` where one of them is zero under ``cosine``.

        Raises:
            ConfigurationError: The vectors cannot be used.
        """
        kept = self.check(vectors, count)
        if self._settings.metric == "cosine" and not kept.any(axis=1).all():
            self._warn("a zero vector, which has no direction")  # nor a chord like the others'
            return None
        return kept

    def _warn(self, reason: object) -> None:
        """Log a reason, the first time as a warning."""
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        logger.log(level, "Not re-ranked, as a document's vector cannot be read: %s", reason)

    def check(self, vectors: ArrayLike, count: int) -> Vectors:
        """Return given vectors as they are kept, shape (count, dim).

        Raises:
            ConfigurationError: The vectors cannot be used.
        """
        return self.prepare_documents(check_vectors(vectors, count, self._settings.dim))


def _check_unit(what: str, vectors: Vectors) -> None:
    wrong = np.atleast_2d(vectors)[~are_unit(vectors)]
    if wrong.size:
        length = float(np.linalg.norm(wrong[0].astype(np.float64)))
        msg = f"{what} must have length 1, as unit_vectors=True says, got {length:.6g}"
        raise ConfigurationError(msg)
