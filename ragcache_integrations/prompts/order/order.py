"""The order of retrieved documents in a prompt.

A prefix cache reuses the KV cache of a prompt's beginning, so two prompts share it only as far as
their documents are the same in the same order (RAGCache §5.1). The order of relevance hardly ever
repeats; ``cached_first`` puts first the longest path of documents that is cached already.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.errors import ConfigurationError, RAGCacheError
from ragcache_integrations.prompts.order.batch import ScheduledRequest, schedule_requests
from ragcache_integrations.prompts.order.limits import within_limit
from ragcache_integrations.prompts.order.paths import PathModel, cached_documents
from ragcache_integrations.prompts.order.settings import (
    Order,
    OrderSettings,
    TreeSource,
    Uncached,
)

__all__ = ["DocumentOrder", "OrderStats", "SharedOrders"]

logger = logging.getLogger(__name__)

MAX_COUNTED = 100_000
"""Documents of which it is known how often they were asked for."""

MAX_CACHES = 16
"""Caches of which orders that belong together know something; the latest ones."""

WAITING_WEIGHT = 10
"""A request that is known to come counts as much as so many that came before."""


@dataclass(frozen=True, slots=True)
class OrderStats:
    """What was ordered so far, and what is believed to be cached.

    Attributes:
        requests: Requests ordered by ``cached_first``.
        tokens: Tokens of their documents.
        expected_cached_tokens: Those of them that the model took to be cached. What really was is
            in the usage that an engine or a server reports.
        paths: Documents after paths that the model knows.
        path_tokens: Their tokens.
    """

    requests: int = 0
    tokens: int = 0
    expected_cached_tokens: int = 0
    paths: int = 0
    path_tokens: int = 0

    @property
    def expected_cached_share(self) -> float:
        """Share of the tokens that the model took to be cached; 0 before the first request."""
        return self.expected_cached_tokens / self.tokens if self.tokens else 0.0


class SharedOrders:
    """What is known of caches, for the orders that one object and those rebuilt from it make.

    Orders of the same engine and the same room for documents share a model of the cache, how often
    documents came, and the statistics; every other one has its own.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        self._known: OrderedDict[tuple[int, int | None], tuple[TreeSource | None, _Known]]
        self._known = OrderedDict()

    def known(self, settings: OrderSettings) -> _Known:
        """What is known of the cache that these settings are about."""
        key = id(settings.engine), settings.cache_tokens
        with self._lock:
            # With the engine, so that no other one gets its id meanwhile.
            found = self._known.setdefault(key, (settings.engine, _Known(settings.room())))
            self._known.move_to_end(key)
            if len(self._known) > MAX_CACHES:
                self._known.popitem(last=False)
        return found[1]

    def __copy__(self) -> SharedOrders:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedOrders:
        again = SharedOrders()
        with self._lock:
            for key, (engine, known) in self._known.items():
                again._known[key] = engine, known.copy()
        return again

    def __reduce__(self) -> tuple[type[SharedOrders], tuple[()]]:
        return SharedOrders, ()  # in another process there is another cache


class _Known:
    """What is known of one cache. Whoever reads or changes it holds its lock."""

    def __init__(self, room: int | None) -> None:
        self.lock = make_lock()
        self.model = PathModel(room)
        self.counts: dict[tuple[str, Hashable], int] = {}
        self.requests = self.tokens = self.expected = 0
        self.refreshing = make_lock()
        self.refreshed = 0  # the model's clock at the last look at the engine's tree
        self.next_refresh = 0.0
        self.looking = False  # a thread is on its way to the engine
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self.looking = False  # that thread is the parent's

    def copy(self) -> _Known:
        """The same knowledge, which goes on by itself."""
        again = _Known(None)
        with self.lock:
            again.model = self.model.copy()
            again.counts = dict(self.counts)
            again.requests, again.tokens = self.requests, self.tokens
            again.expected, again.refreshed = self.expected, self.refreshed
        return again


class DocumentOrder:
    """Decides in which order documents stand in a prompt.

    ``cached_first`` works from a model of the cache: every request that is ordered is taken to be
    sent with its documents in that order, right behind the same beginning as all others of its
    namespace. Have an object of its own for each prompt. With an engine, the model is corrected by
    the engine's own tree now and then, in a thread; without one, :meth:`report` can correct it.
    A wrong guess costs time, never an answer.

    Safe to use from any thread, and from coroutines: no method without an async twin waits.

    Args:
        order: ``relevance`` leaves documents as retrieved; ``reverse`` puts the most relevant
            last, next to the question; ``cached_first`` as above.
        max_displacement: For ``cached_first``: no document stands farther than so many places from
            where it stands by relevance; ``None`` for no limit.
        pin_top: For ``cached_first``: so many documents stay first, in order of relevance.
        uncached: For ``cached_first``: how the documents that are on no cached path follow, by
            ``relevance`` or by ``popularity``: what would save most tokens if it came again as
            often as before goes first, so that what is kept serves more requests. ``auto`` takes
            relevance while the cache holds all that was sent.
        cache_tokens: Room of the KV cache for documents, in tokens; ``None`` for more than will
            ever be sent, or for the engine's.
        engine: Tells what is cached; it stays yours to close.
        refresh_seconds: With an engine: time from one look at its tree to the next.
        shared: What is known of caches, where other orders are to know it, too.

    Raises:
        ConfigurationError: An argument is out of its range, or asks for what the order does not
            do.
    """

    def __init__(
        self,
        order: Order = "relevance",
        *,
        max_displacement: int | None = None,
        pin_top: int = 0,
        uncached: Uncached = "auto",
        cache_tokens: int | None = None,
        engine: TreeSource | None = None,
        refresh_seconds: float = 30.0,
        shared: SharedOrders | None = None,
    ) -> None:
        self._settings = OrderSettings(
            order=order,
            max_displacement=max_displacement,
            pin_top=pin_top,
            uncached=uncached,
            cache_tokens=cache_tokens,
            engine=engine,
            refresh_seconds=refresh_seconds,
        )
        self.order = order
        self._limit = max_displacement
        self._pinned = pin_top
        self._uncached = uncached
        self._engine = engine
        self._shared = SharedOrders() if shared is None else shared
        self._known = self._shared.known(self._settings)

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
                the engine is given. An id may come several times.
            tokens: Their lengths in tokens, or in any other unit if ``cache_tokens`` is ``None``;
                all the same where ``None``.
            namespace: Tenant; KV caches are shared within one and never across.

        Returns:
            Their places in ``documents``, each once, in the order in which they should stand. But
            for ``reverse``, documents of the same id keep their order.

        Raises:
            ConfigurationError: A length is below 1, or there are not as many as documents.
        """
        _check_request(documents, tokens)
        if self.order != "cached_first":
            places = range(len(documents))
            return tuple(places if self.order == "relevance" else reversed(places))
        if not documents:
            return ()
        with self._known.lock:
            order = self._arrange(documents, tokens, namespace)
            due = self._engine is not None and self._is_due()
        if due:
            self._refresh_in_background()
        return order

    def arrange_all(
        self,
        requests: Sequence[Sequence[Hashable]],
        tokens: Sequence[Sequence[int]] | None = None,
        *,
        namespace: str = "",
    ) -> list[tuple[int, ...]]:
        """Order the documents of requests that are sent together or one soon after the other.

        As :meth:`arrange`, but unless ``uncached`` is ``relevance``, documents on no cached path
        follow by what they save in the requests still to come.

        Args:
            requests: The documents of each, the most relevant first.
            tokens: The lengths of each one's documents.
            namespace: Tenant.

        Returns:
            An order for each request.
        """
        lengths = _lengths(requests, tokens)
        for documents, sizes in zip(requests, lengths, strict=True):
            _check_request(documents, sizes)
        if self.order != "cached_first":
            return [self.arrange(one) for one in requests]
        coming = Counter(document for one in requests for document in dict.fromkeys(one))
        orders = []
        for documents, sizes in zip(requests, lengths, strict=True):
            coming.subtract(dict.fromkeys(documents, 1))
            with self._known.lock:
                orders.append(self._arrange(documents, sizes, namespace, coming))
                due = self._engine is not None and self._is_due()
            if due:
                self._refresh_in_background()
        return orders

    def schedule(
        self,
        requests: Sequence[Sequence[Hashable]],
        tokens: Sequence[Sequence[int]] | None = None,
        *,
        namespace: str = "",
    ) -> list[ScheduledRequest]:
        """Order the documents of many requests, and the requests among themselves.

        For a job whose requests are all known, and wait for nobody. ``cached_first`` merges
        requests bottom-up by what they have in common
        (:func:`~ragcache_integrations.prompts.order.batch.schedule_requests`); what is cached
        already plays no part. The other orders leave documents as they are and put requests behind
        each other that begin alike.

        Args:
            requests: The documents of each, the most relevant first.
            tokens: The lengths of each one's documents.
            namespace: Tenant.

        Returns:
            Every request once, in the order in which they should be sent.

        Raises:
            ConfigurationError: A length is below 1, or there are not as many as documents.
        """
        lengths = _lengths(requests, tokens)
        for documents, sizes in zip(requests, lengths, strict=True):
            _check_request(documents, sizes)
        if self.order != "cached_first":
            return self._group(requests)
        scheduled = schedule_requests(
            requests, tokens, pin_top=self._pinned, max_displacement=self._limit
        )
        for number, order in scheduled:
            with self._known.lock:
                self._known.model.enter(namespace, requests[number], lengths[number], order)
        return scheduled

    async def aschedule(
        self,
        requests: Sequence[Sequence[Hashable]],
        tokens: Sequence[Sequence[int]] | None = None,
        *,
        namespace: str = "",
    ) -> list[ScheduledRequest]:
        """The async twin of :meth:`schedule`: it computes in a thread."""
        return await asyncio.to_thread(self.schedule, requests, tokens, namespace=namespace)

    def report(
        self, documents: Sequence[Hashable], cached_documents: int, *, namespace: str = ""
    ) -> None:
        """Tell how much of a prompt that was ordered here its usage reported as cached.

        Where the model expected more, it forgets what was used no later. For a server whose cache
        is of unknown size; an engine that was given is asked anyway.

        Args:
            documents: The prompt's documents, in the order in which they stood.
            cached_documents: How many of the first ones were cached, whole or mostly.
            namespace: Tenant.

        Raises:
            ConfigurationError: The number is below 0 or above that of the documents.
        """
        if not is_whole(cached_documents) or not 0 <= cached_documents <= len(documents):
            msg = (
                f"cached_documents must be a whole number from 0 to {len(documents)}, "
                f"got {cached_documents!r}"
            )
            raise ConfigurationError(msg)
        with self._known.lock:
            self._known.model.disprove(namespace, documents, cached_documents)

    def refresh(self) -> bool:
        """Look at the engine's tree now, and correct the model by it.

        What was ordered since the last look stays, since it may not have reached the engine yet.
        Waits for the engine's process.

        Returns:
            Whether there is an engine with a knowledge tree.

        Raises:
            EngineError: The engine is closed or does not answer.
        """
        if self._engine is None:
            return False
        with self._known.refreshing:
            with self._known.lock:
                since, self._known.refreshed = self._known.refreshed, self._known.model.clock
            snapshot = self._engine.tree()
            if snapshot is None:
                return False
            cached = cached_documents(snapshot)
            with self._known.lock:
                self._known.model.merge(cached, since)
                self._known.model.cache_tokens = self._settings.room()
        return True

    async def arefresh(self) -> bool:
        """The async twin of :meth:`refresh`."""
        return await asyncio.to_thread(self.refresh)

    def clear(self) -> None:
        """Forget what is cached, because the cache was emptied. The statistics go on."""
        with self._known.lock:
            self._known.model.clear()

    def stats(self) -> OrderStats:
        """What was ordered so far."""
        with self._known.lock:
            return OrderStats(
                self._known.requests,
                self._known.tokens,
                self._known.expected,
                len(self._known.model),
                self._known.model.tokens,
            )

    def __copy__(self) -> DocumentOrder:
        return DocumentOrder(**self._arguments(), shared=self._shared)

    def __deepcopy__(self, memo: dict[int, Any]) -> DocumentOrder:
        again = DocumentOrder(**self._arguments(), shared=copy.deepcopy(self._shared, memo))
        memo[id(self)] = again
        return again

    def __reduce__(self) -> tuple[Callable[[], DocumentOrder], tuple[()]]:
        # In another process there is another cache, of which nothing is known.
        return partial(DocumentOrder, **{**self._arguments(), "engine": None}), ()

    def _arguments(self) -> dict[str, Any]:
        return {field.name: getattr(self._settings, field.name) for field in fields(OrderSettings)}

    # Inside; with the lock held.

    def _arrange(
        self,
        documents: Sequence[Hashable],
        tokens: Sequence[int] | None,
        namespace: str,
        coming: Mapping[Hashable, int] | None = None,
    ) -> tuple[int, ...]:
        model = self._known.model
        path, found = model.longest_path(namespace, documents, self._pinned, self._limit)
        order = path
        if len(path) < len(documents):
            rest = [place for place in range(len(documents)) if place not in path]
            if len(rest) > 1 and self._by_popularity(looking_ahead=coming is not None):
                # Stable: equal ones stay by relevance.
                rest.sort(key=self._worth(namespace, documents, tokens, coming or {}), reverse=True)
            order = within_limit(rest, self._limit, path)
        model.enter(namespace, documents, tokens, order)
        if self._uncached != "relevance":
            self._count(namespace, documents)
        self._known.requests += 1
        self._known.tokens += len(documents) if tokens is None else sum(tokens)
        self._known.expected += found
        return order

    def _by_popularity(self, *, looking_ahead: bool) -> bool:
        if self._uncached == "auto":
            return looking_ahead or self._known.model.evicted > 0
        return self._uncached == "popularity"

    def _worth(
        self,
        namespace: str,
        documents: Sequence[Hashable],
        tokens: Sequence[int] | None,
        coming: Mapping[Hashable, int],
    ) -> Callable[[int], int]:
        """How much the document at a place is worth having in the cache; equal ones alike."""
        counts = self._known.counts
        lengths = {} if tokens is None else _first_lengths(documents, tokens)

        def worth(place: int) -> int:
            document = documents[place]
            times = (
                WAITING_WEIGHT * coming.get(document, 0) + counts.get((namespace, document), 0) + 1
            )
            return times * lengths.get(document, 1)

        return worth

    def _count(self, namespace: str, documents: Sequence[Hashable]) -> None:
        counts = self._known.counts
        for document in dict.fromkeys(documents):
            asked = (namespace, document)  # nobody learns what other tenants ask for
            counts[asked] = counts.get(asked, 0) + 1
        if len(counts) > MAX_COUNTED:
            while len(counts) > MAX_COUNTED // 2:
                counts = {one: count // 2 for one, count in counts.items() if count > 1}
            self._known.counts = counts

    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._known.looking or now < self._known.next_refresh:
            return False
        self._known.looking = True
        self._known.next_refresh = now + self._settings.refresh_seconds
        return True

    # Inside; without the lock.

    def _group(self, requests: Sequence[Sequence[Hashable]]) -> list[ScheduledRequest]:
        """Requests that begin alike behind each other, otherwise as they came."""
        ranks: dict[Hashable, int] = {}
        orders = [self.arrange(documents) for documents in requests]
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
            self._known.looking = False
            logger.debug("no thread to look at the engine's tree", exc_info=True)

    def _refresh_quietly(self) -> None:
        try:
            self.refresh()
        except RAGCacheError as error:
            logger.info("the order goes on from its own model of the cache: %s", error)
        finally:
            self._known.looking = False


def _check_request(documents: Sequence[Hashable], tokens: Sequence[int] | None) -> None:
    if isinstance(documents, str):
        msg = f"documents must be a sequence of ids, got the string {documents!r}"
        raise ConfigurationError(msg)
    if tokens is None:
        return
    if len(tokens) != len(documents):
        msg = f"tokens must have one length per document, got {len(tokens)} for {len(documents)}"
        raise ConfigurationError(msg)
    if tokens and min(tokens) < 1:
        msg = f"a document's tokens must be at least 1, got {min(tokens)}"
        raise ConfigurationError(msg)


def _first_lengths(documents: Sequence[Hashable], tokens: Sequence[int]) -> dict[Hashable, int]:
    """The length of each document, where it stands first."""
    return dict(zip(reversed(documents), reversed(tokens), strict=True))


def _lengths(
    requests: Sequence[Sequence[Hashable]], tokens: Sequence[Sequence[int]] | None
) -> Sequence[Sequence[int] | None]:
    """The lengths of each request's documents, as many as there are requests."""
    if tokens is None:
        return [None] * len(requests)
    if len(tokens) != len(requests):
        msg = f"tokens must have lengths for each request, got {len(tokens)} for {len(requests)}"
        raise ConfigurationError(msg)
    return tokens
