"""The query cache of a retriever, made when the first question shows the dimension.

The module also keeps it in step with its store, by changes and by the store's version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Literal, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache import Metric, QueryCache, VectorSource, VectorsPendingError
from ragcache_integrations.query_cache.certificates import UNIT_SLACK
from ragcache_integrations.query_cache.redis import DocumentSource, RedisQueryCache, shared_settings
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.retrievers.keys import Parts, marks_of, tenant_of
from ragcache_integrations.retrievers.stores import Change, StoreFacts, StoreMethods, watch

from .knobs import CacheKnobs

__all__ = ["AnyCache", "Follower", "LazyCache", "in_memory", "why_unranked", "with_chosen_vectors"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

AnyCache = QueryCache[T] | RedisQueryCache[T]

# Arguments of a cache in memory only.
_UNSHARED = (
    *("capacity", "index", "max_rerank_factor", "target_recall", "max_violation"),
    "start_tolerance",
)
# Knobs that are arguments of the cache.
_SAME = (
    *("capacity", "eviction", "num_hyperplanes", "bucket_capacity"),
    *("guarantee", "ttl", "multi_probe", "max_rerank_factor", "target_recall", "max_violation"),
    *("start_tolerance", "seed"),
)
RERANKED_TOLERANCE = 0.3
"""The tolerance of answers that are re-ranked, by default."""
UNRANKED_TOLERANCE = 0.05
"""The tolerance of answers that are not, by default."""
RERANK_FACTOR = 4
"""How many times k candidates are fetched by default, where they can be re-ranked."""

# The length of the longest vector of a store that has none yet.
_NO_LENGTH = 1e-30
# The version of a store whose version has not been read yet.
_UNREAD = object()


class LazyCache(Generic[T]):
    """Makes the cache, and makes it again when what was known of the store no longer holds.

    All vectors of unit length prove more than others, so that is looked for. It may end with a new
    document or a longer question; from then on a cache is used that does not rely on it.

    Args:
        knobs: The settings, checked.
        facts: What is known of the store.
        tag: Names embedding model and store, where ``knobs`` do not.
        documents: Reads documents by id, for a shared cache.

    Attributes:
        shared: Whether other processes use the cache, too.
        read_version: Returns the store's version, under which all answers were found; ``None`` if
            the application does not name one.

    Raises:
        ConfigurationError: The metric is not the store's, the store cannot carry the guarantee, or
            knobs do not go together.
        MissingExtraError: A shared cache is asked for, and redis-py is not installed.
    """

    def __init__(
        self,
        knobs: CacheKnobs,
        facts: StoreFacts,
        tag: str,
        documents: DocumentSource[T] | None = None,
    ) -> None:
        self._facts = facts
        self._server = knobs.cache
        self.shared = knobs.cache is not None
        self._documents = documents
        self._metric = _metric(knobs.metric, facts.metric)
        self._exact = _is_exact(knobs, facts)
        self._arguments: dict[str, Any] = {
            **{name: getattr(knobs, name) for name in _SAME},
            **_tolerances(knobs),
            "rerank_factor": _rerank_factor(knobs, facts),
            "index": knobs.cache_index,
            "metric": self._metric,
            "vectors": facts.vectors,
            "exact_search": self._exact,
            "tag": tag if knobs.tag is None else knobs.tag,
        }
        # Now, and not with the first question.
        if knobs.cache is None:
            Settings(dim=facts.dim or 1, unit_vectors=False, longest=_NO_LENGTH, **self._arguments)
        else:
            _check_shared(knobs, documents)
            for name in _UNSHARED:
                del self._arguments[name]
            shared_settings(dim=facts.dim or 1, **self._arguments | {"tag": knobs.tag})
            require("redis", feature="cache=", extra="redis")
        self._lock = make_lock()
        # The cache, and whether it relies on vectors of unit length.
        self._now: tuple[AnyCache[T], bool] | None = None
        self._may_be_unit = True
        self.read_version = knobs.version
        self._version: Hashable = _UNREAD
        self._version_lock = make_lock()

    @property
    def unranked_tolerance(self) -> float | Literal["auto"]:
        """The largest distance at which documents answer that are not re-ranked."""
        own: float | None = self._arguments["unranked_tolerance"]
        tolerance: float | Literal["auto"] = self._arguments["tolerance"]
        return tolerance if own is None else own

    @property
    def current(self) -> AnyCache[T] | None:
        """The cache, if there has been a question."""
        return None if self._now is None else self._now[0]

    def for_query(self, query: NDArray[np.float32]) -> AnyCache[T]:
        """Return the cache for a query, shape (dim,). The first call is slow."""
        now = self._now
        if now is not None and not (now[1] and _has_other_length(query)):
            return now[0]
        with self._lock:
            if self._may_be_unit and _has_other_length(query):
                self._may_be_unit = False
                if self._now is not None and self._now[1]:
                    self._drop_unit("a question's embedding has another length")
            return self._make_cache(query.size)

    def of_dimension(self, dim: int) -> AnyCache[T]:
        """Return the cache for embeddings of a dimension."""
        with self._lock:
            return self._make_cache(dim)

    def to_tell(self, dim: int | None) -> AnyCache[T] | None:
        """Return the cache that has to receive a change of the store, if there is one.

        Args:
            dim: Dimension of the embeddings, where it is known.
        """
        if self._now is None and self._server is not None:
            dim = dim or self._facts.dim
            if dim is not None:
                return self.of_dimension(dim)
            logger.warning("Other processes did not receive a change: the dimension is not known")
        return self.current

    def clear(self, *, wait: bool = False) -> None:
        """Forget every answer, and what was known of the store's vectors. Touches memory alone.

        Searches under way are not remembered any more. Embeddings of texts are kept.

        Args:
            wait: Wait until a shared cache has been cleared. Otherwise a thread clears it soon.
        """
        with self._lock:
            self._may_be_unit = True
            if self._now is not None:
                cache, unit = self._now
                if isinstance(cache, RedisQueryCache):
                    (cache.clear if wait else cache.clear_soon)()
                    return
                cache.clear()  # also for searches that are under way with it
                if unit or cache.metric == "ip":
                    self._now = None  # their lengths have to be read again

    def is_version(self, version: Hashable) -> bool:
        """Whether all answers were found under this version of the store."""
        return self._version == version

    def update_version(self) -> None:
        """Read the store's version, and follow it.

        Raises:
            ConfigurationError: It can be changed.
            Exception: Any error of the function that reads it.
        """
        assert self.read_version is not None  # noqa: S101 - not called otherwise
        version = self.read_version()
        if not isinstance(version, Hashable):  # it may be changed, and equal to itself nevertheless
            msg = f"version= must return a value that does not change, got {version!r:.100}"
            raise ConfigurationError(msg)
        self.follow_version(version, unknown=False)

    def follow_version(self, version: Hashable, *, unknown: bool = True) -> None:
        """Forget every answer if the store is of another version than they are.

        Args:
            version: The store's version.
            unknown: Whether to forget answers whose version nobody has named yet.
        """
        with self._version_lock:
            named = unknown or self._version is not _UNREAD
            if named and version != self._version:
                self.clear(wait=True)
            self._version = version

    def disagree(self, error: ConfigurationError) -> None:
        """Note that the cache refused a document's vector."""
        with self._lock:
            if self._now is not None and self._now[1]:
                self._drop_unit(str(error))

    def _drop_unit(self, why: str) -> None:
        logger.info("Answers are forgotten, as vectors are not all of unit length: %s", why)
        self._may_be_unit = False
        self._now = None

    def _make_cache(self, dim: int) -> AnyCache[T]:
        if self._now is None and self._server is not None:
            # Nobody knows what vectors another process adds: their lengths are not relied on.
            shared = RedisQueryCache[T](
                self._server,
                dim,
                documents=self._documents,
                marks=marks_of,
                **self._arguments,
            )
            self._now = (shared, False)
        if self._now is None:
            unit, longest = self._read_lengths()
            cache = QueryCache[T](
                dim, unit_vectors=unit, longest=longest, tenant_of=tenant_of, **self._arguments
            )
            self._now = (cache, unit)
        return self._now[0]

    def _read_lengths(self) -> tuple[bool, float | None]:
        """Return whether all documents have unit length, and for ``ip`` the greatest length."""
        matters = self._metric == "ip" or (self._metric == "l2" and self._may_be_unit)
        if not (matters and self._exact and self._facts.lengths is not None):
            return False, None
        try:
            lengths = self._facts.lengths()
        except LookupError as error:
            logger.warning("The lengths of the store's vectors cannot be read: %s", error)
            return False, None
        if self._metric == "ip":
            return False, max(_NO_LENGTH, lengths[1] if lengths else 0.0)
        unit = lengths is not None and not any(_is_other(length * length) for length in lengths)
        return unit, None


def in_memory(cache: AnyCache[T]) -> QueryCache[T]:
    """Return a cache that is this process's own.

    Raises:
        ConfigurationError: The cache is a shared one.
    """
    if isinstance(cache, QueryCache):
        return cache
    raise ConfigurationError("a shared cache is neither saved nor loaded: Redis has it")


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
    raise VectorsPendingError(f"the vectors of {len(ids)} documents are computed from their texts")


def why_unranked(facts: StoreFacts) -> str:
    """Return why cached documents are not re-ranked; nothing where they are."""
    if facts.vectors is not None:
        return ""
    return f"cached documents are not re-ranked, as {facts.doubt or 'their vectors are not known'}"


def _tolerances(knobs: CacheKnobs) -> dict[str, Any]:
    """Return the tolerances of answers that are re-ranked and that are not."""
    if knobs.tolerance is not None:  # somebody chose it
        return {"tolerance": knobs.tolerance, "unranked_tolerance": None}
    if knobs.rerank_factor == 1 and knobs.guarantee is None:
        # Of as many as are returned, re-ranking changes the order alone.
        return {"tolerance": UNRANKED_TOLERANCE, "unranked_tolerance": None}
    return {"tolerance": RERANKED_TOLERANCE, "unranked_tolerance": UNRANKED_TOLERANCE}


def _rerank_factor(knobs: CacheKnobs, facts: StoreFacts) -> int:
    if knobs.rerank_factor is None:
        return 1 if facts.vectors is None else RERANK_FACTOR
    if knobs.rerank_factor > 1 and facts.vectors is None:
        raise ConfigurationError(
            f"rerank_factor={knobs.rerank_factor} cannot be honoured: {why_unranked(facts)}. For a "
            "store that is searched by similarity, vectors='embed' embeds them"
        )
    return knobs.rerank_factor


def _check_shared(knobs: CacheKnobs, documents: object) -> None:
    """Check that a cache can be shared."""
    if documents is None:
        raise ConfigurationError(
            "cache= needs what gives its documents by id, as other processes share ids only: a "
            "LangChain store with get_by_ids, or a LlamaIndex index; not just any retriever"
        )
    if knobs.vectors == "embed":
        msg = "vectors='embed' cannot go with cache=: other processes have no vectors"
        raise ConfigurationError(msg)
    if knobs.max_rerank_factor is not None:
        msg = f"max_rerank_factor cannot go with cache=, got {knobs.max_rerank_factor!r}"
        raise ConfigurationError(msg)


def _is_other(square: float) -> bool:
    return abs(square - 1) > UNIT_SLACK / 2  # surely within what the cache allows


def _has_other_length(query: NDArray[np.float32]) -> bool:
    return _is_other(float(np.dot(query, query)))


def _metric(metric: Metric | None, store: Metric | None) -> Metric:
    if metric is not None and store is not None and metric != store:
        raise ConfigurationError(f"metric={metric!r} was given, but the store ranks by {store!r}")
    return metric or store or "l2"


def _check_noticed(knobs: CacheKnobs, facts: StoreFacts) -> None:
    """Check that the cache gets to know of every change of the store, as a guarantee needs."""
    if knobs.version is not None:
        return
    if facts.outside and not knobs.sole_writer:
        raise ConfigurationError(
            f"guarantee={knobs.guarantee!r} over a store that others can write to needs to know of "
            "it: version=, a function that returns another value once the store has changed, or "
            "sole_writer=True, if nobody else does"
        )
    if not knobs.follow_changes:
        raise ConfigurationError(
            f"guarantee={knobs.guarantee!r} with follow_changes=False needs to know of changes: "
            "version=, a function that returns another value once the store has changed (and the "
            "same one if it never does)"
        )


def _is_exact(knobs: CacheKnobs, facts: StoreFacts) -> bool:
    """Return whether the store's search is exact; see that it carries what is asked for."""
    if facts.inexact and knobs.exact_search:
        raise ConfigurationError(f"exact_search=True was given, but {facts.doubt}")
    if knobs.vectors == "embed" and knobs.guarantee is not None:
        raise ConfigurationError(
            f"guarantee={knobs.guarantee!r} needs the store's own vectors, which those of "
            "vectors='embed' need not be"
        )
    exact = facts.exact if knobs.exact_search is None else knobs.exact_search
    if knobs.guarantee is None:
        return exact
    _check_noticed(knobs, facts)
    if exact and facts.vectors is not None:
        if _metric(knobs.metric, facts.metric) == "ip" and facts.lengths is None:
            raise ConfigurationError(
                f"guarantee={knobs.guarantee!r} by inner products needs the length of the longest "
                "document vector, which this store does not report"
            )
        return exact
    doubts = [] if facts.vectors is not None else ["the documents' vectors cannot be read"]
    if knobs.exact_search is False:
        doubts.append("exact_search=False was given")
    elif not exact:
        doubts.append(facts.doubt)
    msg = (
        f"guarantee={knobs.guarantee!r} needs the documents' vectors and a search of all documents"
        f" by distance alone, but {' and '.join(doubts)}"
    )
    if not exact and not facts.inexact and facts.vectors is not None:
        msg += "; where it searches all of them, say exact_search=True"
    raise ConfigurationError(msg)


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
