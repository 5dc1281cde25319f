"""Vectors of documents whose store does not give any: their own texts, embedded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.core.threads import is_ending
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Candidate, VectorsPendingError
from ragcache_integrations.retrievers.stores import StoreFacts

from .knobs import CacheKnobs

__all__ = ["DocumentEmbedder", "with_chosen_vectors"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Vectors = NDArray[np.float32]

_CAPACITY = 20_000
"""Documents whose vectors are kept: 30 MB of 384 numbers each."""


def with_chosen_vectors(facts: StoreFacts, knobs: CacheKnobs) -> StoreFacts:
    """Return the facts of a store as it is searched, with vectors from where ``vectors=`` says.

    Raises:
        ConfigurationError: The store does not rank by the distance of vectors alone.
    """
    if knobs.vectors is None:
        return facts if knobs.guarantee is None else facts.searched_exhaustively()
    if facts.by_text:
        msg = f"vectors={knobs.vectors!r} cannot re-rank what the store returns: {facts.doubt}"
        raise ConfigurationError(msg)
    return facts.with_vectors(_unread if knobs.vectors == "embed" else knobs.vectors)


def _unread(ids: Sequence[str]) -> NoReturn:
    """Read no vectors: they are computed from documents, and not known by their ids.

    Raises:
        VectorsPendingError: Always.
    """
    msg = f"the vectors of {len(ids)} documents are computed from their texts"
    raise VectorsPendingError(msg)


class DocumentEmbedder(Generic[T]):
    """Embeds documents that were retrieved, each text once, in a thread.

    Args:
        embed: Embeds texts, shape (count, dim).
        text_of: Returns the text of a document that is embedded: with metadata, in LlamaIndex.
        executor: Runs what is off the path of requests.
    """

    def __init__(
        self,
        embed: Callable[[list[str]], ArrayLike],
        text_of: Callable[[T], str],
        executor: Executor,
    ) -> None:
        self._embed = embed
        self._text_of = text_of
        self._executor = executor
        self._lock = make_lock()
        self._embedding = make_lock()  # one call at a time, so that nothing is embedded twice
        self._vectors: Memo[str, Vectors] = Memo(_CAPACITY)  # by their texts' hashes
        self._warned = False
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._vectors = Memo(_CAPACITY)  # a thread of the parent may have been changing it

    def embed(
        self, candidates: Sequence[Candidate[T]], use: Callable[[Vectors], object]
    ) -> Vectors | None:
        """Return the vectors of documents, or embed them in a thread.

        Args:
            candidates: The documents.
            use: Receives the vectors, shape (len(candidates), dim), in that thread.

        Returns:
            ``None`` where a thread embeds them.
        """
        texts = [self._text_of(candidate.document) for candidate in candidates]
        keys = list(map(content_id, texts))
        vectors = self._known(keys)
        if vectors is None:
            self._executor.submit(self._embed_missing, texts, keys, use)
        return vectors

    def _known(self, keys: Sequence[str]) -> Vectors | None:
        with self._lock:
            vectors = [self._vectors.get(key) for key in keys]
        known = [vector for vector in vectors if vector is not None]
        return np.stack(known) if known and len(known) == len(vectors) else None

    def _embed_missing(
        self, texts: Sequence[str], keys: Sequence[str], use: Callable[[Vectors], object]
    ) -> None:
        try:
            with self._embedding:
                with self._lock:
                    missing = {
                        key: text
                        for key, text in zip(keys, texts, strict=True)
                        if key not in self._vectors
                    }
                if missing:
                    rows = np.asarray(self._embed(list(missing.values())), dtype=np.float32)
                    with self._lock:
                        self._vectors.update(zip(missing, rows, strict=True))
            vectors = self._known(keys)
            if vectors is not None:  # else they are more than are kept
                use(vectors)
        except Exception as error:  # the answer is served; others are only not re-ranked
            level = logging.DEBUG if self._warned or is_ending(error) else logging.WARNING
            self._warned = True
            logger.log(level, "Documents could not be embedded to be re-ranked", exc_info=True)
