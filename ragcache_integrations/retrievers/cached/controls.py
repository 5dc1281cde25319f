"""What both frameworks' cached retrievers do with their cache, apart from answering."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from ragcache_integrations.retrievers.tally import RetrieverStats

from .core import RetrieverCore

__all__ = ["CacheControls"]


class CacheControls:
    """Statistics, clearing and saving; a mixin of the cached retrievers."""

    if TYPE_CHECKING:  # set by the retriever; an annotation here would be a field for pydantic
        _core: RetrieverCore[Any]

    def stats(self) -> RetrieverStats:
        """Return what was done so far. Touches memory alone: fine in a coroutine."""
        return self._core.stats()

    def clear(self) -> None:
        """Forget every answer, after the store's documents changed. Touches memory alone."""
        self._core.clear()

    def save(self, path: str | PathLike[str], *, store_tag: str = "") -> None:
        """Write what is cached to a file, for :meth:`load`.

        Args:
            path: The file.
            store_tag: Names the store's documents as they are, such as by a version.

        Raises:
            ConfigurationError: There has been no question yet, or a document or a filter cannot be
                written.
            OSError: The file cannot be written. It is as it was.
        """
        self._core.save(path, store_tag=store_tag)

    async def asave(self, path: str | PathLike[str], *, store_tag: str = "") -> None:
        """Async version of :meth:`save`."""
        await self._core.asave(path, store_tag=store_tag)

    def load(self, path: str | PathLike[str], *, store_tag: str = "") -> int:
        """Replace what is cached by what :meth:`save` wrote; return how many answers that are.

        The store must hold what it held then: nothing is known of changes in between.

        Args:
            path: The file.
            store_tag: As passed to :meth:`save`.

        Raises:
            CacheFileError: The file is damaged, or of another model, store, ``tag`` or
                ``store_tag``. Nothing is cached then.
            ConfigurationError: An argument is wrong.
            OSError: The file cannot be read.
        """
        return self._core.load(path, store_tag=store_tag)

    async def aload(self, path: str | PathLike[str], *, store_tag: str = "") -> int:
        """Async version of :meth:`load`."""
        return await self._core.aload(path, store_tag=store_tag)
