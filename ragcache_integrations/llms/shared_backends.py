"""Backends that LLM objects share if they were made from one another, by LangChain or by a copy.

LangChain makes a new object for every call with ``configurable_fields``. Without sharing, an object
with another model would start and end an engine for each call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.memo import Memo

from .backend import Backend, BackendSource

__all__ = ["SharedBackends"]

CAPACITY = 16
"""Backends that are kept for objects still to be made: a key or an address may differ with every
call, and must not pile up connections."""


class SharedBackends:
    """Keeps what the objects of one origin were answered by. Thread-safe.

    A backend that was made for one of them stays for those made later, until the first object is
    closed, or all of them are collected. Each object has a source of its own as well, so that a
    backend is never closed while one that uses it is alive.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        self._closed = False
        self._sources: weakref.WeakSet[BackendSource] = weakref.WeakSet()
        self._kept: Memo[Hashable, BackendSource] = Memo(CAPACITY)

    def source(
        self,
        backend: Backend | None = None,
        *,
        make: Callable[[], Backend] | None = None,
        key: Hashable = None,
        view: Callable[[Any], Backend] | None = None,
    ) -> BackendSource:
        """Return a source for another object; a closed one if the first object is closed.

        Args:
            backend: The user's own backend; see
                :class:`~ragcache_integrations.llms.backend.BackendSource`.
            make: Makes a backend if the user has none.
            key: Identifies the backend that ``make`` makes; equal keys share one.
            view: Wraps the shared backend for this object.
        """
        with self._lock:
            source = BackendSource(backend, make=make, key=key, view=view)
            if self._closed:
                source.close()  # it has made nothing, so that this takes no time
                return source
            self._sources.add(source)
            forgotten: list[tuple[Hashable, BackendSource]] = []
            if backend is None and key not in self._kept:
                forgotten = self._kept.put(key, BackendSource(make=make, key=key))
        for _, other in forgotten:
            other.close()
        return source

    def release(self, source: BackendSource) -> list[BackendSource]:
        """Return the sources to close when the object with this source is closed."""
        with self._lock:
            self._sources.discard(source)
            kept = self._kept.get(source.key)
            others = [other for other in self._sources if other.key == source.key]
            if kept is None or others:
                return [source]
            del self._kept[source.key]
            return [source, kept]

    def release_all(self) -> list[BackendSource]:
        """Return the sources to close when the first object is closed."""
        with self._lock:
            self._closed = True
            everything = [*self._sources, *self._kept.values()]
            self._kept.clear()
            return everything
