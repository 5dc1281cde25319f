"""From requests to questions: their embeddings, their keys, and the cache for them."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Hashable
from concurrent.futures import Executor
from typing import Generic, TypeVar

import numpy as np

from ragcache_integrations.core.single_flight import Role
from ragcache_integrations.core.threads import in_executor
from ragcache_integrations.query_cache.types import Wording
from ragcache_integrations.retrievers.embedder import Embedding, QueryEmbedder, Texts
from ragcache_integrations.retrievers.keys import (
    FollowUpWarning,
    TextIdentity,
    may_share,
    normalize_text,
    question_difference,
)
from ragcache_integrations.retrievers.retrieval import Request, Source, check_question

from .knobs import CacheKnobs
from .lazy_cache import LazyCache
from .question import Question, why_private
from .store_version import StoreVersion

__all__ = ["Questions"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Questions(Generic[T]):
    """Makes questions of requests. Thread-safe.

    Args:
        source: What the answers come from.
        knobs: The settings, checked.
        caches: The cache.
        version: The store's version, which is read before each question where it has one.
        embedder: Embeds the texts.
        executor: Runs what would block a coroutine.
    """

    def __init__(
        self,
        source: Source[T],
        knobs: CacheKnobs,
        caches: LazyCache[T],
        version: StoreVersion,
        embedder: QueryEmbedder,
        executor: Executor,
    ) -> None:
        self._source = source
        self._caches = caches
        self._version = version
        self._embedder = embedder
        self._executor = executor
        self._normalizes = knobs.normalize_text
        # A proof that an answer is the store's own says more than words do.
        self._guards = knobs.guard and knobs.guarantee not in ("exact", 1)
        self._identity = TextIdentity(source.window, exact=knobs.tolerance == 0, guard=self._guards)
        self._warned_of_opaque = False
        self._follow_ups = FollowUpWarning()

    def check(self, request: Request[T]) -> bool:
        """Check a request; return whether there is nothing to embed.

        Raises:
            ConfigurationError: The question is no text, or k is not a whole number of at least 1.
        """
        unread = not request.texts and request.embedding is None
        texts = ("",) if unread and request.plain is not None else request.texts
        check_question(texts, request.embedding, request.k)
        return unread

    def ask(self, request: Request[T]) -> Question[T]:
        """Embed a request that was checked.

        Raises:
            EmbeddingError: The embedding model gave something unusable.
            Exception: Any error of the embedding model, or of the function that reads the version.
        """
        if self._version.named:
            self._version.update()
        started = time.perf_counter()
        embedding, role = self.embed(request)
        return self._question(request, embedding, role, started)

    def embed(self, request: Request[T]) -> tuple[Embedding, Role]:
        """Return a question's embedding, and where it came from.

        Raises:
            EmbeddingError: The embedding model gave something unusable.
            Exception: Any error of the embedding model.
        """
        if request.embedding is None:
            around = request.embeds_around
            return self._embedder.embed(self._texts(request), request.namespace, around)
        return self._embedder.check(request.embedding, "the query"), "found"

    async def aask(self, request: Request[T]) -> Question[T]:
        """Async version of :meth:`ask`."""
        if self._version.named:
            await in_executor(self._executor, self._version.update)
        started = time.perf_counter()
        embedding, role = await self.aembed(request)
        arguments = request, embedding, role, started
        if self._caches.current is None:  # making the cache takes a while
            return await in_executor(self._executor, self._question, *arguments)
        return self._question(*arguments)

    async def aembed(self, request: Request[T]) -> tuple[Embedding, Role]:
        """Async version of :meth:`embed`."""
        if request.embedding is None:
            around = request.embeds_around
            return await self._embedder.aembed(self._texts(request), request.namespace, around)
        return self.embed(request)

    def _texts(self, request: Request[T]) -> Texts:
        # A text of white space and the like alone is a question nevertheless.
        if self._normalizes:
            return tuple(normalize_text(text) or text for text in request.texts)
        return request.texts

    def _question(
        self,
        request: Request[T],
        embedding: Embedding,
        embedded_by: Role,
        started: float,
    ) -> Question[T]:
        embedded = time.perf_counter()
        query = np.asarray(embedding, np.float32, order="C")
        cache = self._caches.for_query(query)
        wanted = request.k or self._source.k or 0
        # Which part of the text a model read is not known of an embedding from the request.
        texts = self._texts(request)
        if self._guards:
            texts += request.unembedded
        identity = self._identity.of(texts, embedded=request.embedding is None)
        wording = None
        if self._guards and texts:
            wording = Wording("\n".join(texts), may_share, question_difference, _are_kin)
        for text in request.texts:
            self._follow_ups.hear(text)
        if request.opaque and not self._warned_of_opaque:
            self._warned_of_opaque = True
            logger.warning(
                "%s is no plain data: answers found under it are not cached, since nobody knows "
                "what it lets through the next time. Name what it means with filter_key=",
                " and ".join(request.opaque),
            )
        return Question(
            request=request,
            embedding=embedding,
            query=query,
            cache=cache,
            version=cache.store_version,
            k=sys.maxsize if request.whole or not wanted else wanted,
            wanted=wanted if self._source.k else 0,
            key=request.key if identity is None else (request.key, identity),
            wording=wording,
            private=why_private(request, query, shared=self._caches.shared),
            embedded_by=embedded_by,
            started=started,
            embedded=embedded,
        )


def _are_kin(key: tuple[Hashable, Hashable], other: tuple[Hashable, Hashable]) -> bool:
    """Whether two keys of questions differ in nothing but what identifies their texts."""
    return key[0] == other[0]
