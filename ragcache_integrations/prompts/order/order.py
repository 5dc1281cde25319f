"""The order of retrieved documents in a prompt.

A prefix cache reuses the KV cache of a prompt's beginning, so two prompts share it only as far as
their documents are the same in the same order (RAGCache §5.1). The order of relevance hardly ever
repeats; ``cached_first`` begins with the longest path of documents that is cached already, and
``auto`` does so where it saves enough.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.errors import RAGCacheError

from .batch import ScheduledRequest, schedule_requests
from .paths import PathModel, cached_documents
from .settings import (
    Order,
    OrderSettings,
    TreeSource,
    cache_room,
    within_limit,
)

if TYPE_CHECKING:
    from ragcache_integrations._arguments import OrderArguments

__all__ = ["DocumentOrder", "OrderStats", "SharedOrders"]

logger = logging.getLogger(__name__)

MAX_COUNTED = 100_000
"""The most documents whose uses are counted."""

MAX_CACHES = 16
"""The most caches that are modelled, the ones that were used last."""

FIXED = ("relevance", "reverse")
"""Orders that do not depend on what is cached."""

WAITING_WEIGHT = 10
"""A request that is known to come counts as much as this many earlier ones."""


@dataclass(frozen=True, slots=True)
class OrderStats:
    """Counters of what was ordered, and of what is expected to be cached.

    Attributes:
        requests: Requests ordered by ``cached_first`` or ``auto``.
        tokens: Tokens of their documents.
        expected_cached_tokens: Tokens that the model of the cache expected to be cached. The usage
            of an engine or a server reports how many really were.
        paths: Nodes of the model's prefix tree, each a document after a path of others.
        path_tokens: Tokens of these documents.
        moved: Requests of which documents left the order of relevance.
    """

    requests: int = 0
    tokens: int = 0
    expected_cached_tokens: int = 0
    paths: int = 0
    path_tokens: int = 0
    moved: int = 0

    @property
    def expected_cached_share(self) -> float:
        """Share of tokens that were expected to be cached; 0 before the first request."""
        return self.expected_cached_tokens / self.tokens if self.tokens else 0.0


class SharedOrders:
    """Knowledge about caches that one object and its copies with other settings share.

    Orders with the same engine and the same ``cache_tokens`` share a model of the cache, the counts
    of documents and the statistics; others have separate ones.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        self._caches: Memo[tuple[int, int | None], tuple[TreeSource | None, _CacheState]]
        self._caches = Memo(MAX_CACHES)

    def cache_state(self, settings: OrderSettings) -> _CacheState:
        """Knowledge about the cache of these settings."""
        key = id(settings.engine), settings.cache_tokens
        with self._lock:
            # The engine is kept, so that no other engine gets the same id in the meantime.
            kept = settings.engine, _CacheState(cache_room(settings))
            _, state = self._caches.setdefault(key, kept)
        return state

    def __copy__(self) -> SharedOrders:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedOrders:
        duplicate = SharedOrders()
        with self._lock:
            for key, (engine, state) in self._caches.items():
                duplicate._caches[key] = engine, state.copy()
        return duplicate

    def __reduce__(self) -> tuple[type[SharedOrders], tuple[()]]:
        return SharedOrders, ()  # another process has another cache


class _CacheState:
    """Knowledge about one cache. The lock must be held to read or change it."""

    def __init__(self, room: int | None) -> None:
        self.lock = make_lock()
        self.model = PathModel(room)
        self.counts: dict[tuple[str, Hashable], int] = {}
        self.stats = OrderStats()  # without the model's own numbers
        self.refreshing = make_lock()
        self.refreshed = 0  # the model's clock at the last reading of the engine's tree
        self.next_refresh = 0.0
        self.is_refreshing = False  # whether a thread is reading the engine's tree
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self.is_refreshing = False  # the thread exists in the parent process only

    def copy(self) -> _CacheState:
        """An independent copy."""
        duplicate = _CacheState(None)
        with self.lock:
            duplicate.model = self.model.copy()
            duplicate.counts = dict(self.counts)
            duplicate.stats, duplicate.refreshed = self.stats, self.refreshed
        return duplicate


class DocumentOrder:
    """Decides on the order of documents in a prompt.

    ``cached_first`` uses a model of the cache. It assumes that every request that is ordered is
    sent, with its documents in that order after the same beginning as all others of its namespace,
    so use a separate object for each prompt. With an engine, a thread corrects the model by the
    engine's own tree from time to time; without one, :meth:`report` can correct it. A wrong model
    costs time, but cannot change answers::

        order = DocumentOrder("cached_first")
        places = order.arrange(["a", "b", "c"])

    It is safe to use from any thread. Only :meth:`refresh` waits for the engine, and only
    :meth:`schedule` may compute for long.

    Args:
        order: ``relevance`` leaves documents as retrieved; ``reverse`` puts the most relevant
            last, next to the question; ``cached_first`` as above; ``auto`` the same for requests
            in which it saves ``min_saved_share``, and relevance for the others.
        max_displacement: For ``cached_first``: the largest distance between a document's place and
            its place in the order of relevance; ``None`` for no limit.
        pin_top: For ``cached_first``: number of documents that stay first, in order of relevance.
        uncached: For ``cached_first``: order of the documents on no cached path, by ``relevance``
            or by ``popularity``, which begins with those that would save most tokens if they were
            used as often as before, so that what is kept serves more requests. ``auto`` takes
            relevance as long as the cache holds everything that was sent.
        cache_tokens: Room for documents in the KV cache, in tokens; ``None`` for the engine's, or
            for no limit.
        engine: An engine whose knowledge tree is read; you close it yourself.
        refresh_seconds: With an engine: seconds between two readings of its tree.
        min_saved_share: For ``auto``: the share of the documents' tokens, from 0 to 1, that moving
            documents has to save more than leaving them does.
        shared: Knowledge about caches that other orders share; ``None`` for none.

    Raises:
        ConfigurationError: An argument is out of range, or has no meaning for this order.
    """

    def __init__(
        self,
        order: Order = "relevance",
        *,
        shared: SharedOrders | None = None,
        **knobs: Unpack[OrderArguments],
    ) -> None:
        self._settings = OrderSettings(order=order, **knobs)
        self.order = order
        self._engine = self._settings.engine
        self._cache = (shared or SharedOrders()).cache_state(self._settings)

    def arrange(
        self,
        documents: Sequence[Hashable],
        tokens: Sequence[int] | None = None,
        *,
        namespace: str = "",
    ) -> tuple[int, ...]:
        """Order the documents of one request.

        Args:
            documents: Ids of its documents, the most relevant first; with an engine, the ids that
                the engine gets. An id may occur several times.
            tokens: Their lengths in tokens, or in any other unit if ``cache_tokens`` is ``None``;
                ``None`` for equal lengths.
            namespace: Tenant; KV caches are shared within a namespace and never across.

        Returns:
            Their indices in ``documents``, each once, in the best order. Except with ``reverse``,
            documents of the same id keep their order.
        """
        if self.order in FIXED:
            places = range(len(documents))
            return tuple(places if self.order == "relevance" else reversed(places))
        if not documents:
            return ()
        return self._arrange(documents, tokens, namespace)

    def arrange_all(
        self,
        requests: Sequence[Sequence[Hashable]],
        tokens: Sequence[Sequence[int]] | None = None,
        *,
        namespace: str = "",
    ) -> list[tuple[int, ...]]:
        """Order the documents of requests that are sent together or soon after each other.

        This works like :meth:`arrange`, but unless ``uncached`` is ``relevance``, documents on no
        cached path are ordered by what they save in the following requests.

        Args:
            requests: The documents of each request, the most relevant first.
            tokens: The lengths of each request's documents.
            namespace: Tenant of all requests.

        Returns:
            An order for each request.
        """
        lengths: Sequence[Sequence[int] | None] = tokens or [None] * len(requests)
        if self.order in FIXED:
            return [self.arrange(documents) for documents in requests]
        coming = Counter(id_ for documents in requests for id_ in dict.fromkeys(documents))
        orders = []
        for documents, sizes in zip(requests, lengths, strict=True):
            coming.subtract(dict.fromkeys(documents, 1))
            orders.append(self._arrange(documents, sizes, namespace, coming))
        return orders

    def schedule(
        self,
        requests: Sequence[Sequence[Hashable]],
        tokens: Sequence[Sequence[int]] | None = None,
        *,
        namespace: str = "",
    ) -> list[ScheduledRequest]:
        """Order the documents of many requests, and the requests among themselves.

        This is for jobs whose requests are all known in advance and not urgent. ``cached_first``
        clusters requests by the documents that they share
        (:func:`~ragcache_integrations.prompts.order.batch.schedule_requests`), regardless of what
        is cached already. The other orders arrange one request after another, and group those that
        begin with the same documents.

        Args:
            requests: The documents of each request, the most relevant first.
            tokens: The lengths of each request's documents.
            namespace: Tenant of all requests.

        Returns:
            Every request once, in the order in which to send them.
        """
        lengths: Sequence[Sequence[int] | None] = tokens or [None] * len(requests)
        if self.order != "cached_first":
            return self._group(requests, lengths, namespace)
        settings = self._settings
        scheduled = schedule_requests(
            requests, tokens, pin_top=settings.pin_top, max_displacement=settings.max_displacement
        )
        for number, order in scheduled:
            with self._cache.lock:
                self._cache.model.enter(namespace, requests[number], lengths[number], order)
        return scheduled

    def report(
        self, documents: Sequence[Hashable], cached_documents: int, *, namespace: str = ""
    ) -> None:
        """Report how much of a prompt that was ordered here was cached.

        If the model of the cache expected more, it forgets everything that was not used later. This
        is for servers whose cache has an unknown size; with an ``engine`` it is not needed.

        Args:
            documents: The prompt's documents, in the order of the prompt.
            cached_documents: How many of the first ones were cached, completely or mostly, by the
                usage that the server reported.
            namespace: Tenant of the request.

        Raises:
            ConfigurationError: The number is below 0 or above that of the documents.
        """
        cached_documents = check_int("cached_documents", cached_documents, 0, len(documents))
        with self._cache.lock:
            self._cache.model.disprove(namespace, documents, cached_documents)

    def refresh(self) -> bool:
        """Read the engine's tree now, and correct the model by it.

        Requests that were ordered since the last reading stay in the model, because they may not
        have reached the engine yet. This waits for the engine's process.

        Returns:
            Whether there is an engine with a knowledge tree.

        Raises:
            EngineError: The engine is closed or doesn't answer.
        """
        if self._engine is None:
            return False
        with self._cache.refreshing:
            with self._cache.lock:
                since, self._cache.refreshed = self._cache.refreshed, self._cache.model.clock
            snapshot = self._engine.tree()
            if snapshot is None:
                return False
            cached = cached_documents(snapshot)
            with self._cache.lock:
                self._cache.model.merge(cached, since)
                self._cache.model.cache_tokens = cache_room(self._settings)
        return True

    def clear(self) -> None:
        """Forget what is cached, because the cache was emptied. The statistics stay."""
        with self._cache.lock:
            self._cache.model.clear()

    def stats(self) -> OrderStats:
        """Counters of what was ordered."""
        with self._cache.lock:
            model = self._cache.model
            return replace(self._cache.stats, paths=len(model), path_tokens=model.tokens)

    def _arrange(
        self,
        documents: Sequence[Hashable],
        tokens: Sequence[int] | None,
        namespace: str,
        coming: Mapping[Hashable, int] | None = None,
    ) -> tuple[int, ...]:
        """Order the documents of a request by what is cached, and of what comes after it."""
        with self._cache.lock:
            order = self._by_cache(documents, tokens, namespace, coming)
            due = self._engine is not None and self._is_due()
        if due:
            self._refresh_in_background()
        return order

    # Inside; with the lock held.

    def _by_cache(
        self,
        documents: Sequence[Hashable],
        tokens: Sequence[int] | None,
        namespace: str,
        coming: Mapping[Hashable, int] | None,
    ) -> tuple[int, ...]:
        model, limit = self._cache.model, self._settings.max_displacement
        pinned = self._settings.pin_top
        total = len(documents) if tokens is None else sum(tokens)
        path, expected = model.longest_path(namespace, documents, pinned, limit)
        if self.order == "auto":
            stays, kept = model.longest_path(namespace, documents, len(documents))
            if expected - kept < self._settings.min_saved_share * total:
                path, expected = stays, kept
        order = path
        if len(path) < len(documents):
            rest = [place for place in range(len(documents)) if place not in path]
            if len(rest) > 1 and self._by_popularity(looking_ahead=coming is not None):
                # The sort is stable: documents of equal worth stay in the order of relevance.
                rest.sort(key=self._worth(namespace, documents, tokens, coming or {}), reverse=True)
            order = within_limit(rest, limit, path)
        model.enter(namespace, documents, tokens, order)
        if self._settings.uncached != "relevance":
            self._count(namespace, documents)
        stats = self._cache.stats
        self._cache.stats = replace(
            stats,
            requests=stats.requests + 1,
            tokens=stats.tokens + total,
            expected_cached_tokens=stats.expected_cached_tokens + expected,
            moved=stats.moved + (order != tuple(range(len(documents)))),
        )
        return order

    def _by_popularity(self, *, looking_ahead: bool) -> bool:
        if self._settings.uncached == "auto":
            return looking_ahead or self._cache.model.evicted > 0
        return self._settings.uncached == "popularity"

    def _worth(
        self,
        namespace: str,
        documents: Sequence[Hashable],
        tokens: Sequence[int] | None,
        coming: Mapping[Hashable, int],
    ) -> Callable[[int], int]:
        """A function that returns the value of caching the document at an index.

        It is the number of expected uses times the document's length.
        """
        counts = self._cache.counts
        lengths = {} if tokens is None else _first_lengths(documents, tokens)

        def worth(place: int) -> int:
            document = documents[place]
            times = (
                WAITING_WEIGHT * coming.get(document, 0) + counts.get((namespace, document), 0) + 1
            )
            return times * lengths.get(document, 1)

        return worth

    def _count(self, namespace: str, documents: Sequence[Hashable]) -> None:
        counts = self._cache.counts
        for document in dict.fromkeys(documents):
            key = (namespace, document)  # a tenant's order must not depend on other tenants
            counts[key] = counts.get(key, 0) + 1
        if len(counts) > MAX_COUNTED:
            while len(counts) > MAX_COUNTED // 2:
                counts = {key: count // 2 for key, count in counts.items() if count > 1}
            self._cache.counts = counts

    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._cache.is_refreshing or now < self._cache.next_refresh:
            return False
        self._cache.is_refreshing = True
        self._cache.next_refresh = now + self._settings.refresh_seconds
        return True

    # Inside; without the lock.

    def _group(
        self,
        requests: Sequence[Sequence[Hashable]],
        lengths: Sequence[Sequence[int] | None],
        namespace: str,
    ) -> list[ScheduledRequest]:
        """Group the requests that begin with the same documents, otherwise in their order."""
        ranks: dict[Hashable, int] = {}
        orders = [
            self.arrange(documents, sizes, namespace=namespace)
            for documents, sizes in zip(requests, lengths, strict=True)
        ]
        keys = [
            [ranks.setdefault(documents[place], len(ranks)) for place in order]
            for documents, order in zip(requests, orders, strict=True)
        ]
        sequence = sorted(range(len(requests)), key=keys.__getitem__)
        return [ScheduledRequest(number, orders[number]) for number in sequence]

    def _refresh_in_background(self) -> None:
        name = "ragcache-order-refresh"
        thread = threading.Thread(target=self._refresh_quietly, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, or there are too many
            self._cache.is_refreshing = False
            logger.debug("cannot start a thread to read the engine's tree", exc_info=True)

    def _refresh_quietly(self) -> None:
        try:
            self.refresh()
        except RAGCacheError as error:
            logger.info("cannot read the engine's tree, using the model of the cache: %s", error)
        finally:
            self._cache.is_refreshing = False


def _first_lengths(documents: Sequence[Hashable], tokens: Sequence[int]) -> dict[Hashable, int]:
    """The length of each document's first occurrence."""
    return dict(zip(reversed(documents), reversed(tokens), strict=True))
