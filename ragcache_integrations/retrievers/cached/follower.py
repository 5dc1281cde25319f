"""Keeps a retriever's cache in step with its store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import numpy as np

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import VectorSource
from ragcache_integrations.retrievers.keys import Parts
from ragcache_integrations.retrievers.stores import Change, StoreMethods, watch

from .lazy_cache import AnyCache, LazyCache

__all__ = ["Follower"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Follower(Generic[T]):
    """Passes the store's changes to the cache; a listener of :mod:`..stores.changes`.

    Every answer is forgotten if a change is not known in full: a new document's vector cannot be
    read, the documents that changed are not known, or the cached ones have no ids.

    Args:
        caches: Makes the cache.
        vectors: Reads the documents' vectors, where the store can give them.
        required: Whether answers rest on every change being noticed.
    """

    def __init__(
        self, caches: LazyCache[T], vectors: VectorSource | None, *, required: bool = False
    ) -> None:
        self._caches = caches
        self._vectors = vectors
        self._required = required
        self._lock = make_lock()
        self._has_nameless = False

    def follow(self, store: object, methods: StoreMethods) -> None:
        """Follow what changes through an object, if it can be watched.

        Raises:
            ConfigurationError: It cannot, and answers rest on it.
        """
        try:
            watch(store, methods, self)
        except ConfigurationError as error:
            if self._required:
                msg = f"{error}; a guarantee needs version= then, to know of them"
                raise ConfigurationError(msg) from error
            logger.warning("%s. Call clear() after changes", error)

    def follow_parts(
        self, parts: Parts, methods_of: Callable[[Any], StoreMethods], *, said: bool
    ) -> None:
        """Follow what a wrapped retriever's documents are in, as far as it shows that.

        Args:
            parts: The parts of the wrapped retriever.
            methods_of: Returns which methods of a vector store change documents.
            said: Whether the application knows that changes may go unnoticed.
        """
        stores = [store for store in parts.stores if _has(store, "add_texts", "add")]
        others = [part for part in parts.retrievers if _has(part, "add_documents")] + parts.others
        for store in stores:
            self.follow(store, methods_of(store))
        for other in others:
            self.follow(other, StoreMethods(base=""))
        if not (stores or others or said):
            logger.warning(
                "Changes of the documents that %s finds cannot be followed: attach() the store, "
                "call clear() after changes, or set ttl= or version=",
                " and ".join(dict.fromkeys(type(part).__name__ for part in parts.retrievers))
                or "the wrapped function",
            )

    def documents_changed(self, change: Change) -> None:
        """Follow a change of the store."""
        with self._lock:
            try:
                self._follow(change)
            except BaseException:
                self._caches.clear(wait=True)
                raise

    @contextmanager
    def waiting(self) -> Iterator[Callable[[], None]]:
        """Let changes wait; yields a function to call when documents without ids are loaded."""

        def note_nameless() -> None:
            self._has_nameless = True

        with self._lock:
            yield note_nameless

    def insert_nameless(
        self, cache: AnyCache[T], version: int, insert: Callable[[], object]
    ) -> None:
        """Insert documents that have no ids.

        Changes name ids. One that came since the search began cannot be caught up with, so nothing
        is inserted then; one that comes later ends all answers.

        Args:
            cache: The cache to insert into.
            version: The cache's ``store_version`` before the search.
            insert: Inserts the documents.
        """
        with self._lock:
            self._has_nameless = True
            if version == cache.store_version:
                insert()

    def _follow(self, change: Change) -> None:
        updated = sorted(change.updated)
        cache = self._caches.current
        if cache is None and self._caches.shared:
            cache = self._caches.to_tell(self._dim_of(updated))
        if cache is None:
            return
        if change.unknown or self._has_nameless or (updated and self._vectors is None):
            self._caches.clear(wait=True)
            return
        cache.documents_removed(sorted(change.removed - change.updated))
        if not updated or self._vectors is None:
            return
        try:
            vectors = self._vectors(updated)
        except (LookupError, ConfigurationError) as error:  # such as of a store that is mixed up
            logger.debug("Every answer is forgotten: %s", error)
            self._caches.clear(wait=True)
            return
        try:
            # Some of them may have been there before; for the others an update costs no more.
            cache.documents_updated(updated, vectors)
        except ConfigurationError as error:  # the cache has dropped everything
            self._caches.disagree(error)

    def _dim_of(self, ids: list[str]) -> int | None:
        """Return the dimension of documents' vectors, where they can be read."""
        if not ids or self._vectors is None:
            return None
        try:
            return int(np.shape(self._vectors(ids[:1]))[1])
        except (LookupError, ConfigurationError):
            return None


def _has(part: object, *methods: str) -> bool:
    return any(hasattr(type(part), name) for name in methods)
