"""What the caches in memory and in Redis have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from numpy.typing import ArrayLike

from .settings import Settings
from .types import Metric

__all__ = ["BaseQueryCache"]

T = TypeVar("T")


class BaseQueryCache(Generic[T]):
    """A query cache, to which the changes of its store are reported."""

    _settings: Settings

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        return self._settings.dim

    @property
    def metric(self) -> Metric:
        """How documents are ranked."""
        return self._settings.metric

    def documents_added(self, ids: Sequence[str], vectors: ArrayLike | None = None) -> None:
        """Note that the store got new documents; call it when the store has them.

        Entries keep answering those queries whose answer the new documents cannot change, see
        :mod:`~ragcache_integrations.query_cache.entries.entry`.

        Args:
            ids: Ids of the new documents.
            vectors: Their vectors, shape (len(ids), dim). Where ``None``, they are read through the
                cache's ``vectors``; where that cannot be, every entry is dropped.

        Raises:
            ConfigurationError: ``vectors`` cannot be used. Every entry was dropped then.
        """
        self._change((), tuple(ids), vectors)

    def documents_removed(self, ids: Sequence[str]) -> None:
        """Note that documents are gone from the store; call it when they are.

        Args:
            ids: Ids of the documents that are gone.
        """
        self._change(tuple(ids), (), None)

    def documents_updated(self, ids: Sequence[str], vectors: ArrayLike | None = None) -> None:
        """Note that documents changed; call it when the store has the new ones.

        Args:
            ids: Ids of the documents that changed.
            vectors: Their vectors now; as for :meth:`documents_added`.

        Raises:
            ConfigurationError: As for :meth:`documents_added`.
        """
        self._change(tuple(ids), tuple(ids), vectors)

    @abstractmethod
    def _change(
        self, removed: tuple[str, ...], added: tuple[str, ...], vectors: ArrayLike | None
    ) -> None:
        """Follow a change; ``vectors`` are those of the documents added."""
