"""Saves what a retriever has cached, and loads it."""

from __future__ import annotations

import logging
import tempfile
from concurrent.futures import Executor
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

from ragcache_integrations.core.threads import in_executor
from ragcache_integrations.errors import ConfigurationError, RAGCacheError
from ragcache_integrations.retrievers.embedder import QueryEmbedder
from ragcache_integrations.retrievers.retrieval import Source

from .follower import Follower
from .lazy_cache import LazyCache
from .question import in_memory

__all__ = ["CacheFiles", "DumpedCache"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

DumpedCache = tuple[int, bytes]
"""The dimension of a cache's embeddings, and the content of the file of ``save``."""


class CacheFiles(Generic[T]):
    """Files of a retriever's cache.

    Args:
        source: How documents are encoded and decoded.
        caches: Makes the cache.
        embedder: Knows the dimension, or finds it out.
        follower: Has to know of documents without ids.
        executor: Runs for coroutines what takes a while.
    """

    def __init__(
        self,
        source: Source[T],
        caches: LazyCache[T],
        embedder: QueryEmbedder,
        follower: Follower[T],
        executor: Executor,
    ) -> None:
        self._source = source
        self._caches = caches
        self._embedder = embedder
        self._follower = follower
        self._executor = executor

    def save(self, path: str | PathLike[str], *, store_tag: str = "") -> None:
        """Write what is cached to a file.

        Args:
            path: The file.
            store_tag: Names the store's documents as they are, so that :meth:`load` can refuse what
                was found among others.

        Raises:
            ConfigurationError: There has been no question yet; an argument is wrong; or a document
                cannot be written.
            OSError: The file cannot be written. It is as it was.
        """
        cache = self._caches.current
        if cache is None:
            msg = "there is nothing to save before the first question"
            raise ConfigurationError(msg)
        in_memory(cache).save(path, encode=self._source.encode, store_tag=store_tag)

    async def asave(self, path: str | PathLike[str], *, store_tag: str = "") -> None:
        """Async version of :meth:`save`."""
        await in_executor(self._executor, partial(self.save, path, store_tag=store_tag))

    def load(self, path: str | PathLike[str], *, store_tag: str = "") -> int:
        """Replace what is cached by what :meth:`save` wrote, for the same store and model.

        The store must hold what it held then: nothing is known of changes in between.

        Args:
            path: The file.
            store_tag: As passed to :meth:`save`.

        Returns:
            How many answers there are.

        Raises:
            CacheFileError: The file is damaged, or was saved for others. The cache is empty then.
            ConfigurationError: An argument is wrong.
            OSError: The file cannot be read.
            Exception: Any error of the embedding model, which is called if neither the store nor
                a question has shown the dimension.
        """
        dim = self._embedder.dim
        if dim is None:
            dim = self._embedder.embed(("dimension",))[0].size
        return self._load(dim, path, store_tag)

    async def aload(self, path: str | PathLike[str], *, store_tag: str = "") -> int:
        """Async version of :meth:`load`."""
        dim = self._embedder.dim
        if dim is None:
            dim = (await self._embedder.aembed(("dimension",)))[0].size
        return await in_executor(self._executor, self._load, dim, path, store_tag)

    def dump(self) -> DumpedCache | None:
        """Return what is cached as :meth:`save` writes it; ``None`` where there is nothing to."""
        cache = self._caches.current
        if cache is None or self._caches.shared:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cache.npz"
            self.save(path)
            return cache.dim, path.read_bytes()

    def restore(self, dumped: DumpedCache | None) -> None:
        """Replace what is cached by what :meth:`dump` returned; cache nothing where that fails."""
        if dumped is None:
            return
        dim, content = dumped
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cache.npz"
            path.write_bytes(content)
            try:
                self._load(dim, path, "")
            except RAGCacheError as error:
                logger.warning("The pickled cache is not used: %s", error)

    def _load(self, dim: int, path: str | PathLike[str], store_tag: str) -> int:
        cache, source = in_memory(self._caches.of_dimension(dim)), self._source
        with self._follower.waiting() as note_nameless:

            def decode(saved: Any) -> T:
                document: T = saved if source.decode is None else source.decode(saved)
                if not source.identify(document)[0]:
                    note_nameless()
                return document

            return cache.load(path, decode=decode, store_tag=store_tag)
