"""Which version of the store all answers in the cache were found under."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.errors import ConfigurationError

from .lazy_cache import LazyCache

__all__ = ["StoreVersion"]

# Of a store whose version has not been read yet.
_UNREAD = object()


class StoreVersion:
    """Forgets every answer once the store has another version. Thread-safe.

    Args:
        caches: The cache.
        read: The knob ``version``: returns the store's version; ``None`` where nobody names it.
    """

    def __init__(self, caches: LazyCache[Any], read: Callable[[], object] | None) -> None:
        self._caches = caches
        self._read = read
        self._known: Hashable = _UNREAD
        self._lock = make_lock()

    @property
    def named(self) -> bool:
        """Whether there is a function that returns the store's version."""
        return self._read is not None

    def is_known(self, version: Hashable) -> bool:
        """Whether all answers were found under this version."""
        return self._known == version

    def update(self) -> None:
        """Read the store's version, and follow it.

        Raises:
            ConfigurationError: It can be changed.
            Exception: Any error of the function that reads it.
        """
        assert self._read is not None  # noqa: S101 - not called otherwise
        version = self._read()
        if not isinstance(version, Hashable):  # it may be changed, and equal to itself nevertheless
            msg = f"version= must return a value that does not change, got {version!r:.100}"
            raise ConfigurationError(msg)
        self.follow(version, unknown=False)

    def follow(self, version: Hashable, *, unknown: bool = True) -> None:
        """Forget every answer if the store is of another version than they are.

        Args:
            version: The store's version.
            unknown: Whether to forget answers whose version nobody has named yet.
        """
        with self._lock:
            named = unknown or self._known is not _UNREAD
            if named and version != self._known:
                self._caches.clear(wait=True)
            self._known = version
