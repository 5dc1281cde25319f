"""A query cache in Redis, shared by processes and machines.

The cache of :class:`~ragcache_integrations.query_cache.cache.QueryCache` with ``index="lsh"``, its
buckets in Redis. Kept there are the questions' embeddings, the ids, fingerprints and scores of what
was found for them, and a radius: no text. Hits are decided here, by the code that decides them for
a cache in memory.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Generator,
    Hashable,
    Iterable,
    Sequence,
)
from functools import partial, wraps
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import as_number, check_int
from ragcache_integrations.query_cache.entries import check_candidates
from ragcache_integrations.query_cache.kernels import kernels
from ragcache_integrations.query_cache.settings import BaseQueryCache
from ragcache_integrations.query_cache.types import (
    COUNTED,
    Candidate,
    Eviction,
    Explanation,
    Hit,
    Metric,
    VectorSource,
    Wording,
)
from ragcache_integrations.query_cache.validation import as_query, check_ids, check_key

from .link import Channel, UnreachableError
from .matching import DocumentSource, Fetched, Matching, Outcome
from .records import Names, Record, decode_record, encode_record
from .requests import Request, Requests
from .server import RedisServer, SharedCacheStats, as_server, shared_settings

__all__ = ["DocumentSource", "RedisQueryCache", "RedisServer", "SharedCacheStats"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
C = TypeVar("C", bound="RedisQueryCache[Any]")
Vectors = NDArray[np.float32]

Plan = Generator[list[Request], list[Any], R]
"""An operation. It yields the requests to send, is sent their replies or thrown an
:class:`~.link.UnreachableError`, and returns its result. It does no I/O, but may read the store."""

_NO_TIME = b"0" * 16
_UNREAD = "A shared entry's documents could not be read"


def _advance(resume: Callable[[], list[Request]]) -> tuple[list[Request] | None, Any]:
    """Resume a plan; return the requests that it asks for, or ``None`` and its result."""
    try:
        return resume(), None
    except StopIteration as end:  # which no future of a thread could hold
        return None, end.value


def _operation(plan: Callable[Concatenate[C, P], Plan[R]]) -> Callable[Concatenate[C, P], R]:
    """Return the method that carries out a plan."""

    @wraps(plan)
    def run(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        steps = plan(self, *args, **kwargs)
        requests, result = _advance(partial(next, steps))
        while requests is not None:
            try:
                resume = partial(steps.send, self._channel.send(requests))
            except UnreachableError as error:
                resume = partial(steps.throw, error)
            requests, result = _advance(resume)
        done: R = result
        return done

    signature = inspect.signature(plan)  # help() shows the result's type instead of the plan's
    returns = str(signature.return_annotation).removeprefix("Plan[").removesuffix("]")
    run.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
    return run


def _async_version(
    method: Callable[Concatenate[C, P], R],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, R]]:
    """Return the async version of an operation. What may wait for the store runs in a thread."""
    plan: Callable[..., Plan[R]] = inspect.unwrap(method)

    async def run(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        steps = plan(self, *args, **kwargs)
        requests, result = _advance(partial(next, steps))
        while requests is not None:
            try:
                resume = partial(steps.send, await self._channel.asend(requests))
            except UnreachableError as error:
                resume = partial(steps.throw, error)
            if self._reads:
                requests, result = await asyncio.to_thread(_advance, resume)
            else:
                requests, result = _advance(resume)
        done: R = result
        return done

    run.__name__, run.__qualname__ = f"a{plan.__name__}", f"RedisQueryCache.a{plan.__name__}"
    run.__doc__ = f"Async version of :meth:`{plan.__name__}`."
    run.__signature__ = inspect.signature(method)  # type: ignore[attr-defined] # which help() shows
    return run


class RedisQueryCache(BaseQueryCache[T]):
    """Remembers what was fetched for a query, for all processes that use the same Redis.

    Used as a :class:`~ragcache_integrations.query_cache.cache.QueryCache` is::

        cache = RedisQueryCache("redis://localhost:6379", 384, 0.3, tag="my-model my-store")
        hit = cache.lookup(embedding, k=4)

    What :class:`~ragcache_integrations.query_cache.cache.QueryCache` promises of hits and proofs
    holds here, too. Where Redis is slow or gone, lookups miss after ``timeout`` and insertions are
    dropped; nothing is raised. Every method may be called from any thread, and every coroutine from
    any event loop.

    Redis passes a change of the store on to every process with its next lookup. Where Redis cannot
    be reached within ``change_timeout``, this process gets no answers from entries that are out of
    date, and a thread keeps trying.

    Args:
        server: A :class:`RedisServer`, or its URL.
        dim: Dimension of the embeddings.
        tolerance: The largest distance at which a query counts as one seen before.
        eviction: Which entry of a bucket makes room: ``lru`` or ``fifo``.
        metric: How documents are ranked: ``l2``, ``cosine`` or ``ip``. Must be the store's own.
        num_hyperplanes: L random hyperplanes make ``2**L`` buckets.
        bucket_capacity: The most entries of a bucket, for each cache key.
        rerank_factor: How many times k candidates are worth fetching on a miss.
        guarantee: Serve proven hits only, as in a cache in memory; not for ``ip``.
        ttl: Seconds after which an entry ends.
        vectors: Reads the documents' vectors by id, for re-ranking and proofs.
        documents: Reads the documents themselves. Where ``None``, hits have ids alone, and
            a document that changed without a call of :meth:`documents_updated` goes unnoticed.
        multi_probe: How many of the buckets that differ in one bit are searched, too.
        exact_search: The store's search is exact, by this metric, over all of its documents.
        unranked_tolerance: The largest distance at which an entry answers whose candidates cannot
            be re-ranked; ``None``: like any other.
        marks: Returns the marks of a cache key, such as its tenant's name, by which :meth:`discard`
            forgets a part; the same in all processes.
        tag: Names embedding model and store: the same in all processes that share entries, and
            another one in all others.
        seed: Decides the hyperplanes; the same in all processes that share entries.

    Raises:
        ConfigurationError: An argument is out of its range, or lacks what it needs.
        MissingExtraError: redis-py is not installed.
    """

    immediate: ClassVar[bool] = False
    """Whether lookups touch memory alone."""

    def __init__(
        self,
        server: RedisServer | str,
        dim: int,
        tolerance: float,
        eviction: Eviction = "lru",
        metric: Metric = "l2",
        num_hyperplanes: int = 8,
        bucket_capacity: int = 20,
        rerank_factor: int = 4,
        guarantee: Literal["exact"] | float | None = None,
        ttl: float | None = None,
        vectors: VectorSource | None = None,
        *,
        tag: str,
        documents: DocumentSource[T] | None = None,
        multi_probe: int = 0,
        exact_search: bool = False,
        unranked_tolerance: float | None = None,
        marks: Callable[[Hashable], Iterable[Hashable]] | None = None,
        seed: int = 0,
    ) -> None:
        arguments = dict(locals())  # by the names of the settings
        for own in ("self", "server", "documents", "marks"):
            del arguments[own]
        self._settings = settings = shared_settings(**arguments)
        server = as_server(server)
        self._names = Names(settings, server.prefix, server.number_of_shards)
        self._matching = Matching[T](settings, kernels(), documents)
        self._requests = Requests(settings, self._names, kernels(), marks)
        self._channel = Channel(server, self._requests.clearing)
        # Whether reading a reply may wait for the store.
        self._reads = settings.vectors is not None or documents is not None
        self._warned = False

    @property
    def tolerance(self) -> float:
        """The largest distance at which a lookup hits."""
        return self._matching.decisions.tolerance

    @property
    def fingerprint(self) -> str:
        """What processes have in common that share entries; a part of the names of all keys."""
        return self._names.fingerprint

    @property
    def store_version(self) -> int:
        """Number that grows with every change of the store that this process receives.

        Lookups receive changes. Read it after a lookup and before the search, and pass it to
        :meth:`insert`.
        """
        return self._requests.number

    def fetch_count(self, k: int, q: ArrayLike | None = None, key: Hashable = None) -> int:
        """Return how many candidates to fetch on a miss: rho times k. Asks nobody.

        Args:
            k: How many are needed.
            q: Makes no difference here.
            key: Makes no difference here.
        """
        del q, key
        return k if self._settings.vectors is None else k * self._settings.rerank_factor

    def stats(self) -> SharedCacheStats:
        """Return what this process did. Touches memory alone."""
        settings = self._settings
        return SharedCacheStats(
            entries=0,
            capacity=settings.bucket_capacity << settings.num_hyperplanes,
            vectors=0,
            tolerance=self.tolerance,
            learning=None,
            **dict.fromkeys(COUNTED, 0) | self._channel.counts(),
        )

    def clear_soon(self) -> None:
        """Have a thread drop every entry; from now on this process gets no older answers."""
        self._channel.owe(range(self._names.shards))

    @_operation
    def lookup(
        self, q: ArrayLike, k: int, key: Hashable = None, *, wording: Wording | None = None
    ) -> Plan[Hit[T] | None]:
        """Find what was fetched for a query close to ``q``. One round trip.

        Of a Redis Cluster with ``multi_probe``, one to each shard that has one of the buckets.

        Args:
            q: The query's embedding, shape (dim,).
            k: How many candidates are wanted; fewer come back only where the store had no more.
            key: Namespace, filter and everything else that changes the store's answer. It consists
                of ``None``, bool, int, float, str, bytes, types, enum members, and tuples and
                frozensets of these.
            wording: The query's words. An entry whose words it does not accept never matches,
                unless all of its answer is proven to be the store's.

        Raises:
            ConfigurationError: ``q``, ``k`` or ``key`` cannot be used.
        """
        query, k, requests = self._ask(q, k, key)
        try:
            outcome = self._find(query, k, requests, (yield requests), wording)
        except UnreachableError as error:
            self._channel.count(lookups=1, **{error.counted_as: 1})
            return None
        if outcome is None:
            self._channel.count(lookups=1, failed=1)
            return None
        for entry in (*outcome.corrupt, *outcome.ended):
            self._requests.drop(entry)
        self._channel.note_corrupt(len(outcome.corrupt))
        counted = {
            "lookups": 1,
            "expired": len(outcome.ended),
            "invalidated": len(outcome.outdated),
        }
        if outcome.hit is not None and outcome.matched is not None:
            self._requests.touch(outcome.matched)
            counted |= {"hits": 1, "proven": int(outcome.hit.recall_bound == 1.0)}
        elif outcome.matched is not None:
            if not outcome.fresh:
                counted["stale"] = 1
            elif self._settings.guarantee is not None:
                counted["unproven"] = 1
        self._channel.count(**counted)
        return outcome.hit

    alookup = _async_version(lookup)

    @_operation
    def explain(
        self, q: ArrayLike, k: int, key: Hashable = None, *, wording: Wording | None = None
    ) -> Plan[Explanation]:
        """Explain why a query hits or misses. Is not counted as a lookup.

        Args:
            q: As for :meth:`lookup`.
            k: As for :meth:`lookup`.
            key: As for :meth:`lookup`.
            wording: As for :meth:`lookup`.
        """
        query, k, requests = self._ask(q, k, key, noting=False)
        try:
            outcome = self._find(query, k, requests, (yield requests), wording, far=True)
        except UnreachableError:
            outcome = None
        if outcome is None:
            outcome = Outcome(reason="Redis does not answer, or not in a way that can be used")
        elif outcome.distance is None:
            outcome.reason = "no entry in the buckets searched serves this many documents"
            if wording is not None:
                outcome.reason += ". The guard has it look only at questions with the same marks"
        tolerance = self.tolerance if outcome.tolerance is None else outcome.tolerance
        return Explanation(
            outcome.hit is not None,
            outcome.reason,
            outcome.distance,
            tolerance,
            outcome.bound,
            outcome.served,
        )

    aexplain = _async_version(explain)

    @_operation
    def insert(
        self,
        q: ArrayLike,
        candidates: Sequence[Candidate[T]],
        key: Hashable = None,
        *,
        k: int | None = None,
        complete: bool = False,
        store_version: int | None = None,
        wording: Wording | None = None,
    ) -> Plan[bool]:
        """Remember what a search found. An entry of the same embedding and key is replaced.

        Args:
            q: The query's embedding, shape (dim,).
            candidates: The results of the search, best first. Their ids, fingerprints and scores
                are kept.
            key: As for :meth:`lookup`.
            k: Makes no difference here.
            complete: The store had no more to give: the entry answers every k.
            store_version: :attr:`store_version` as it was before the search began; ``None``: the
                store has not changed since.
            wording: The query's words, for lookups that have some, too. They are kept in Redis.

        Returns:
            Whether the entry was inserted, as far as is known.

        Raises:
            ConfigurationError: An argument cannot be used, or ``vectors`` gave unusable ones.
            Exception: Any error of ``vectors`` other than a ``LookupError``.
        """
        query = self._matching.vectors.prepare_query(q)
        checked = check_candidates(candidates, complete=complete)
        check_key(key)
        self._names.partition(key)
        if k is not None:
            check_int("k", k, 1)
        requests, shard = self._requests, self._requests.shard_of(query)
        if store_version is not None:
            check_int("store_version", store_version, 0, requests.number)
        # Without a version from the caller, the one that Redis has now is asked for where none is
        # known. Otherwise nothing is sent, and the rest runs where it may wait for the store.
        asks = store_version is None and not requests.known(shard).generation
        first = [requests.first(shard)] if asks else []
        reply: Any = [0, 0]
        try:
            self._take(first, (yield first))
            state = requests.version_at(
                shard, requests.number if store_version is None else store_version
            )
            if state is not None:
                generation, version = state
                radius = self._matching.radius(query, checked, complete=complete)
                documents = tuple((one.id, one.fingerprint, _score(one)) for one in checked)
                text = "" if wording is None else wording.text
                record = Record(query, documents, complete, version, radius, text)
                encoded = encode_record(record)
                # One that is too large, for example, no process would accept as an entry.
                if decode_record(_NO_TIME + encoded, self._settings.dim) is not None:
                    (reply,) = yield [requests.insertion(record, encoded, key, generation)]
        except UnreachableError:
            return self._lose()
        match reply:
            case [int(done), int(evicted)] if min(done, evicted) >= 0:
                counted = {"insertions": 1, "evictions": evicted} if done else {"dropped": 1}
                self._channel.count(**counted)
                return bool(done)
        return self._lose()  # not an answer of our script

    ainsert = _async_version(insert)

    @_operation
    def delete(self, q: ArrayLike, key: Hashable = None) -> Plan[bool]:
        """Drop the entry of exactly this embedding and key; return whether there was one."""
        query = self._matching.vectors.prepare_query(q)
        check_key(key)
        try:
            return (yield [self._requests.deletion(query, key)]) == [1]
        except UnreachableError:
            return self._lose()

    adelete = _async_version(delete)

    async def adocuments_added(self, ids: Sequence[str], vectors: ArrayLike | None = None) -> None:
        """Async version of :meth:`documents_added`."""
        await self._achange((), tuple(ids), vectors)

    async def adocuments_removed(self, ids: Sequence[str]) -> None:
        """Async version of :meth:`documents_removed`."""
        await self._achange(tuple(ids), (), None)

    async def adocuments_updated(
        self, ids: Sequence[str], vectors: ArrayLike | None = None
    ) -> None:
        """Async version of :meth:`documents_updated`."""
        await self._achange(tuple(ids), tuple(ids), vectors)

    @_operation
    def clear(self) -> Plan[None]:
        """Drop every entry of all processes, of every cache key."""
        yield self._requests.clearings()

    aclear = _async_version(clear)

    @_operation
    def discard(
        self,
        marks: Iterable[Hashable] = (),
        *,
        ids: Collection[str] | None = None,
        before: float | None = None,
    ) -> Plan[None]:
        """Drop entries of all processes: those for which everything holds that is given.

        It is passed on as a change of the store is: one short note for each shard, which lookups
        apply to what they find. Searches that began before are not inserted any more, where their
        entries would be among these.

        Args:
            marks: Their cache key has all of these marks.
            ids: They hold one of these documents.
            before: They were inserted before this moment, in seconds since 1970.
        """
        yield self._requests.forgettings(marks, ids, before)

    adiscard = _async_version(discard)

    @_operation
    def forget(self, q: ArrayLike, k: int, key: Hashable = None) -> Plan[int]:
        """Drop the entries of all processes that would answer a query.

        It is passed on as in :meth:`discard`. Entries as near that serve fewer than k go, too.

        Args:
            q: As for :meth:`lookup`.
            k: As for :meth:`lookup`.
            key: As for :meth:`lookup`.

        Returns:
            How many there were, as far as is known.

        Raises:
            ConfigurationError: ``q``, ``k`` or ``key`` cannot be used.
        """
        query, k, requests = self._ask(q, k, key, noting=False)
        count = 0
        try:
            taken = self._take(requests, (yield requests))
            count = 0 if taken is None else self._matching.count(query, k, *taken)
        except UnreachableError:
            pass
        except Exception:  # an error of the store's; they are forgotten nevertheless
            logger.log(self._level(), _UNREAD, exc_info=True)
        near = self._matching.vectors.prepare_query(query), self._matching.decisions.farthest
        yield self._requests.forgettings([key], near=near)
        return count

    aforget = _async_version(forget)

    def close(self) -> None:
        """Close the connections of threads, and try no more to deliver what is owed."""
        self._channel.close()

    async def aclose(self) -> None:
        """Async version of :meth:`close`, for the connections of this event loop, too."""
        await self._channel.aclose()

    def _change(
        self, removed: tuple[str, ...], added: tuple[str, ...], vectors: ArrayLike | None
    ) -> None:
        check_ids((*removed, *added))
        try:
            requests = self._changes(removed, added, vectors)
        except BaseException:
            self.clear()  # the store has changed in an unknown way
            raise
        self._channel.send(requests)

    async def _achange(
        self, removed: tuple[str, ...], added: tuple[str, ...], vectors: ArrayLike | None
    ) -> None:
        check_ids((*removed, *added))
        try:
            requests = await asyncio.to_thread(self._changes, removed, added, vectors)
        except BaseException:
            self.clear_soon()
            raise
        await self._channel.asend(requests)

    def _changes(
        self, removed: tuple[str, ...], added: tuple[str, ...], vectors: ArrayLike | None
    ) -> list[Request]:
        """Return the requests that send a change of the store to every shard.

        Raises:
            ConfigurationError: ``vectors`` cannot be used.
        """
        if not removed and not added:
            return []
        added, new = self._matching.vectors.of_new(added, vectors)
        if new is None:
            return self._requests.clearings()
        return self._requests.changes(removed, added, new)

    def _ask(
        self, q: ArrayLike, k: int, key: Hashable, *, noting: bool = True
    ) -> tuple[Vectors, int, list[Request]]:
        """Return a checked query and k, and the requests that look it up; see ``lookup``.

        Args:
            q: The query's embedding, shape (dim,).
            k: How many candidates to answer with.
            key: The cache key.
            noting: Let Redis do what was postponed to the next lookup.

        Raises:
            ConfigurationError: An argument cannot be used.
        """
        query = as_query(q, self._settings.dim).copy()  # the caller's may change meanwhile
        k = min(check_int("k", k, 1), sys.maxsize)
        check_key(key)
        prepared = self._matching.vectors.prepare_query(query)
        return query, k, self._requests.lookups(prepared, key, noting=noting)

    def _find(
        self,
        query: Vectors,
        k: int,
        requests: list[Request],
        replies: list[Any],
        wording: Wording | None,
        *,
        far: bool = False,
    ) -> Outcome[T] | None:
        """Return the outcome of a query; ``None`` where the replies cannot be used."""
        taken = self._take(requests, replies)
        if taken is None:
            return None
        entries, now = taken
        try:
            return self._matching.find(query, k, entries, now, wording, far=far)
        except Exception:  # an error of the store's: the search that follows will raise it
            logger.log(self._level(), _UNREAD, exc_info=True)
            return None

    def _level(self) -> int:
        """Return the level at which an error of the store is logged: the first as a warning."""
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        return level

    def _take(
        self, requests: list[Request], replies: list[Any]
    ) -> tuple[list[Fetched], int] | None:
        """Return the entries that came, and Redis' time in microseconds.

        Returns:
            ``None`` where an answer cannot be used.
        """
        entries: list[Fetched] = []
        now = 0
        try:
            for request, reply in zip(requests, replies, strict=True):
                taken = self._requests.take(request, reply)
                if taken is None:
                    return None
                fetched, time, foreign = taken
                entries += fetched
                now = max(now, time)
                self._channel.note_corrupt(foreign)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            self._channel.note_corrupt(1)
            return None
        return entries, now

    def _lose(self) -> bool:
        """Count an operation that did not reach Redis; return ``False``."""
        self._channel.count(lost=1)
        return False


def _score(candidate: Candidate[Any]) -> float | None:
    return None if candidate.score is None else as_number(candidate.score)
