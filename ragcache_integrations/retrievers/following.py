"""Keeps a retriever's cache in step with its store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import QueryCache, VectorSource
from ragcache_integrations.retrievers.lazy_cache import LazyCache
from ragcache_integrations.retrievers.store_changes import Change, StoreMethods, watch

__all__ = ["Follower"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Follower(Generic[T]):
    """Tells the cache which documents came and went; a listener of :mod:`.store_changes`.

    Where it cannot tell, every answer is forgotten: what came has no vector to be read, nobody
    knows which documents a change was about, or the cached ones have no ids by which to know them.

    Args:
        caches: Makes the cache.
        vectors: Reads the documents' vectors, where the store can give them.
    """

    def __init__(self, caches: LazyCache[T], vectors: VectorSource | None) -> None:
        self._caches = caches
        self._vectors = vectors
        self._lock = threading.Lock()
        self._has_nameless = False

    def follow(self, store: object, methods: StoreMethods) -> None:
        """Follow what changes through an object, if it can be watched."""
        try:
            watch(store, methods, self)
        except ConfigurationError as error:
            logger.warning("%s. Call clear() after changes", error)

    def documents_changed(self, change: Change) -> None:
        """Follow a change of the store."""
        with self._lock:
            try:
                self._follow(change)
            except BaseException:
                self._caches.clear()
                raise

    @contextmanager
    def waiting(self) -> Iterator[Callable[[], None]]:
        """Let changes wait; gives what is to be called where documents without ids are loaded."""

        def note_nameless() -> None:
            self._has_nameless = True

        with self._lock:
            yield note_nameless

    def insert_nameless(
        self, cache: QueryCache[T], version: int, insert: Callable[[], object]
    ) -> None:
        """Insert documents that have no ids.

        Changes name ids. One that came since the search began cannot be caught up with, so nothing
        is inserted then; one that comes later ends all answers.

        Args:
            cache: Where to.
            version: The store's, before the search.
            insert: Does it.
        """
        with self._lock:
            self._has_nameless = True
            if version == cache.store_version:
                insert()

    def _follow(self, change: Change) -> None:
        cache = self._caches.current
        if cache is None:
            return
        updated = sorted(change.updated)
        if change.unknown or self._has_nameless or (updated and self._vectors is None):
            self._caches.clear()
            return
        cache.documents_removed(sorted(change.removed - change.updated))
        if not updated or self._vectors is None:
            return
        try:
            # Some of them may have been there before; for the others an update costs no more.
            cache.documents_updated(updated, self._vectors(updated))
        except LookupError as error:
            logger.debug("Every answer is forgotten: %s", error)
            self._caches.clear()
        except ConfigurationError as error:  # the cache has dropped everything
            self._caches.disagree(error)
