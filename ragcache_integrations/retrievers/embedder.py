"""Embeddings: those of questions, remembered by tenant and text, and those of documents."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.flows import Call, Flow, call_once
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.core.single_flight import Role, SingleFlight
from ragcache_integrations.core.texts import content_id
from ragcache_integrations.core.threads import is_ending
from ragcache_integrations.errors import ConfigurationError, EmbeddingError
from ragcache_integrations.query_cache import Candidate
from ragcache_integrations.query_cache.validation import as_array, check_vector, is_ordinary

from .keys import Surroundings
from .retrieval import Embedding, Tally, Texts

__all__ = ["DocumentEmbedder", "QueryEmbedder"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

Vectors = NDArray[np.float32]

_MOST_CHARACTERS = 1 << 24
"""Characters of the texts whose embeddings are remembered, together."""
_CAPACITY = 20_000
"""Documents whose vectors are kept: 30 MB of 384 numbers each."""


# A namespace, what is embedded there, and what surrounds a model that may read it.
_Key = tuple[str, Texts, Hashable]


class QueryEmbedder:
    """Embeds queries through a framework's model; a tenant's repeated text is not embedded again.

    Tenants share no embeddings, although these would be equal: a question that takes less than the
    model's time would reveal to a tenant that another tenant has asked it.

    Embeddings keep the model's own precision, so that a store searched by vector is asked exactly
    what it would be asked without the cache.

    Args:
        embed: Embeds one or several texts as one vector.
        aembed: Async version of ``embed``; ``None``: ``embed`` runs in the executor.
        memo_size: The most embeddings remembered; the least recently used goes first, also if the
            texts together become too long.
        dim: Dimension they must have; ``None``: the first one's.
        executor: Runs ``embed`` for coroutines.
        tally: Counts calls and memo hits.

    Attributes:
        dim: Dimension of the embeddings, where it is known yet.
    """

    def __init__(
        self,
        embed: Callable[[Texts], ArrayLike],
        aembed: Callable[[Texts], Awaitable[ArrayLike]] | None,
        *,
        memo_size: int,
        dim: int | None,
        executor: Executor,
        tally: Tally,
    ) -> None:
        self._embed = embed
        self._aembed = aembed
        self._executor = executor
        self.dim = dim
        self._tally = tally
        self._memo: Memo[_Key, Embedding] = Memo(
            memo_size,
            max_size=_MOST_CHARACTERS,
            size=lambda key, _: sum(map(len, key[1])),
        )
        self._lock = make_lock()
        self._flights = SingleFlight[Embedding](executor)

    def embed(
        self, texts: Texts, namespace: str = "", around: Surroundings | None = None
    ) -> Flow[tuple[Embedding, Role]]:
        """Return the texts' embedding, read-only, and where it came from.

        Args:
            texts: What to embed as a whole.
            namespace: The tenant.
            around: What surrounds the call, if the model may read it.

        Raises:
            EmbeddingError: The model gave something unusable.
            Exception: Any error of the model.
        """
        key: _Key = namespace, texts, None if around is None else around.frozen.key
        landed = self._flights.landed
        remembered = self._recall(key)
        if remembered is not None:
            self._tally.add(embedding_memo_hits=1)
            return remembered, "found"
        flight: Hashable = None  # what must be equal, too, for texts to be embedded once
        if around is not None:
            flight = object() if around.alone else around.flight
        found: tuple[Embedding, Role] = yield call_once(
            self._flights,
            (key, flight),
            partial(self._recall, key),
            self._compute(key, around),
            None if self._aembed is None else self._executor,
            looked=landed,
        )
        if found[1] != "led":
            self._tally.add(embedding_memo_hits=1)
        return found

    def forget(self, namespace: str) -> None:
        """Forget the embeddings of a tenant's texts."""
        with self._lock:
            for key in [key for key in self._memo if key[0] == namespace]:
                del self._memo[key]

    def check(self, value: ArrayLike, source: str, *, zero: bool = False) -> Embedding:
        """Return an embedding as a read-only array, if it can be used.

        Args:
            value: The embedding.
            source: Name of the embedded text in messages.
            zero: Whether it may be zero.

        Raises:
            EmbeddingError: It is not one finite vector, zero where it must not be, or not of the
                dimension of the others.
        """
        try:
            array = as_array("an embedding", value, copy=True)  # the model may keep its own
            if not is_ordinary(array, self.dim):
                rounded = check_vector(array, self.dim, zero=zero)
                array = array if array.dtype.kind == "f" else rounded.copy()
        except ConfigurationError as error:
            raise EmbeddingError(f"unusable embedding of {source}: {error}") from error
        array.setflags(write=False)
        with self._lock:
            if self.dim is None:
                self.dim = array.size
            agrees = self.dim == array.size
        if agrees:
            return array
        return self.check(value, source, zero=zero)  # another thread's came first

    def _compute(self, key: _Key, around: Surroundings | None) -> Flow[Embedding]:
        texts, aembed = key[1], self._aembed
        step = Call(partial(self._embed, texts), None if aembed is None else partial(aembed, texts))
        with nullcontext() if around is None else around.watched():
            started = time.perf_counter()
            try:
                embedding = yield step
            finally:
                self._tally.add_call("embedding", started)
        return self._remember(key, embedding, around)

    def _remember(self, key: _Key, value: ArrayLike, around: Surroundings | None) -> Embedding:
        texts = key[1]
        # Models that count words see none in an empty text; from all others zero is a fault.
        empty = not "".join(texts).strip()
        embedding = self.check(value, repr(texts[0] if len(texts) == 1 else texts), zero=empty)
        if around is None or not (around.alone or around.spoilt()):
            with self._lock:
                self._memo[key] = embedding
        return embedding

    def _recall(self, key: _Key) -> Embedding | None:
        with self._lock:
            return self._memo.get(key)


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
