"""Cached profiles of questions that were asked before, in the same or other words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import check_int, check_number
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, QueryCache

from .profile import ProfileEstimate, Profiler

__all__ = ["CachedProfiler"]

logger = logging.getLogger(__name__)


class CachedProfiler:
    """Keeps confident profiles in a query cache, by the questions' embeddings. Thread-safe.

    ::

        profiler = CachedProfiler(LLMProfiler(asker), embeddings.embed_query)
        estimate = profiler.profile(question)

    Args:
        profiler: Profiles the questions that are not close to a cached one.
        embed: Returns the embedding of a question; called from any thread.
        tolerance: The largest distance between two questions that share a profile: the chord
            ``sqrt(2 - 2 cos)`` between their embeddings; at least 0.
        capacity: The most profiles to keep; at least 1.
        min_confidence: Profiles below this confidence (0 to 1) are not kept.

    Raises:
        ConfigurationError: An argument is out of its range.
    """

    def __init__(
        self,
        profiler: Profiler,
        embed: Callable[[str], ArrayLike],
        *,
        tolerance: float = 0.2,
        capacity: int = 1000,
        min_confidence: float = 0.9,
    ) -> None:
        if not callable(embed):
            msg = f"embed must be a function of a question, got {embed!r}"
            raise ConfigurationError(msg)
        self._profiler = profiler
        self._embed = embed
        self._arguments = (
            check_int("capacity", capacity, 1),
            check_number("tolerance", tolerance, 0),
        )
        self._min_confidence = min_confidence
        self._lock = make_lock()
        self._cache: QueryCache[ProfileEstimate] | None = None

    def profile(self, question: str) -> ProfileEstimate:
        """Return the profile of a close question, or profile this one."""
        embedding = self._embedding(question)
        known = self._find(embedding)
        return known or self._keep(question, embedding, self._profiler.profile(question))

    async def aprofile(self, question: str) -> ProfileEstimate:
        """Async version of :meth:`profile`; embeds in a thread."""
        embedding = await asyncio.to_thread(self._embedding, question)
        known = self._find(embedding)
        return known or self._keep(question, embedding, await self._profiler.aprofile(question))

    def clear(self) -> None:
        """Forget all profiles."""
        if self._cache is not None:
            self._cache.clear()

    def _embedding(self, question: str) -> NDArray[np.float32] | None:
        try:
            embedding = np.asarray(self._embed(question), dtype=np.float32)
            with self._lock:
                if self._cache is None:
                    (dim,) = embedding.shape
                    capacity, tolerance = self._arguments
                    self._cache = QueryCache(dim, capacity, tolerance, metric="cosine")
        except Exception as error:  # noqa: BLE001 - a profile must not cost the user the answer
            logger.warning("profiles are not cached: %s: %s", type(error).__name__, error)
            return None
        return embedding

    def _find(self, embedding: NDArray[np.float32] | None) -> ProfileEstimate | None:
        if self._cache is None or embedding is None:
            return None
        try:
            hit = self._cache.lookup(embedding, 1)
        except ConfigurationError as error:
            logger.warning("profiles are not cached: %s", error)
            return None
        if hit is None:
            return None
        known = hit.candidates[0].document
        return ProfileEstimate(known.profile, "cache", known.confidence)

    def _keep(
        self, question: str, embedding: NDArray[np.float32] | None, estimate: ProfileEstimate
    ) -> ProfileEstimate:
        sure = estimate.confidence is None or estimate.confidence >= self._min_confidence
        if self._cache is not None and embedding is not None and estimate.profile and sure:
            try:
                self._cache.insert(embedding, [Candidate(question, estimate)])
            except ConfigurationError as error:
                logger.warning("profiles are not cached: %s", error)
        return estimate
