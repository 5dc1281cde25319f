"""A query cache in Redis, shared by processes and machines.

The cache of :class:`~ragcache_integrations.query_cache.cache.QueryCache` with ``index="lsh"``, its
buckets in Redis. Kept there are the questions' embeddings, the ids, fingerprints and scores of what
was found for them, and a radius: no text. Hits are decided here, by the code that decides them for
a cache in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

from numpy.typing import ArrayLike

from ragcache_integrations.query_cache.settings import BaseQueryCache
from ragcache_integrations.query_cache.types import (
    Candidate,
    Eviction,
    Explanation,
    Hit,
    Metric,
    VectorSource,
    Wording,
)
from ragcache_integrations.query_cache.validation import check_ids

from .link import Link, UnreachableError
from .matching import DocumentSource
from .operations import Operations, Plan, advance
from .records import Names
from .requests import Request
from .server import RedisServer, SharedCacheStats, as_server, shared_settings
from .shards import Debts

__all__ = ["DocumentSource", "RedisQueryCache", "RedisServer", "SharedCacheStats"]

T = TypeVar("T")
R = TypeVar("R")


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
        settings = shared_settings(
            dim=dim,
            tolerance=tolerance,
            eviction=eviction,
            metric=metric,
            num_hyperplanes=num_hyperplanes,
            bucket_capacity=bucket_capacity,
            rerank_factor=rerank_factor,
            guarantee=guarantee,
            ttl=ttl,
            vectors=vectors,
            multi_probe=multi_probe,
            exact_search=exact_search,
            unranked_tolerance=unranked_tolerance,
            tag=tag,
            seed=seed,
        )
        server = as_server(server)
        names = Names(settings, server.prefix, server.number_of_shards)
        self._settings = settings
        self._names = names
        self._link = Link(server)
        self._operations = Operations[T](settings, names, documents, server.where, marks)
        self._debts = Debts(self._link, self._operations.requests.clearing)

    @property
    def tolerance(self) -> float:
        """The largest distance at which a lookup hits."""
        return self._operations.matching.decisions.tolerance

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
        return self._operations.requests.shards.number

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
        return self._operations.stats(len(self._debts))

    def clear_soon(self) -> None:
        """Have a thread drop every entry; from now on this process gets no older answers."""
        self._debts.add(range(self._names.shards))

    def lookup(
        self, q: ArrayLike, k: int, key: Hashable = None, *, wording: Wording | None = None
    ) -> Hit[T] | None:
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
        return self._run(self._operations.lookup(q, k, key, wording))

    async def alookup(
        self, q: ArrayLike, k: int, key: Hashable = None, *, wording: Wording | None = None
    ) -> Hit[T] | None:
        """Async version of :meth:`lookup`."""
        return await self._arun(self._operations.lookup(q, k, key, wording))

    def explain(
        self, q: ArrayLike, k: int, key: Hashable = None, *, wording: Wording | None = None
    ) -> Explanation:
        """Explain why a query hits or misses. Is not counted as a lookup.

        Args:
            q: As for :meth:`lookup`.
            k: As for :meth:`lookup`.
            key: As for :meth:`lookup`.
            wording: As for :meth:`lookup`.
        """
        return self._run(self._operations.explain(q, k, key, wording))

    async def aexplain(
        self, q: ArrayLike, k: int, key: Hashable = None, *, wording: Wording | None = None
    ) -> Explanation:
        """Async version of :meth:`explain`."""
        return await self._arun(self._operations.explain(q, k, key, wording))

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
    ) -> bool:
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
        plan = self._operations.insert(
            q, candidates, key, k, store_version, wording, complete=complete
        )
        return self._run(plan)

    async def ainsert(
        self,
        q: ArrayLike,
        candidates: Sequence[Candidate[T]],
        key: Hashable = None,
        *,
        k: int | None = None,
        complete: bool = False,
        store_version: int | None = None,
        wording: Wording | None = None,
    ) -> bool:
        """Async version of :meth:`insert`."""
        plan = self._operations.insert(
            q, candidates, key, k, store_version, wording, complete=complete
        )
        return await self._arun(plan)

    def delete(self, q: ArrayLike, key: Hashable = None) -> bool:
        """Drop the entry of exactly this embedding and key; return whether there was one."""
        return self._run(self._operations.delete(q, key))

    async def adelete(self, q: ArrayLike, key: Hashable = None) -> bool:
        """Async version of :meth:`delete`."""
        return await self._arun(self._operations.delete(q, key))

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

    def clear(self) -> None:
        """Drop every entry of all processes, of every cache key."""
        self._deliver(self._operations.requests.clearings())

    def discard(
        self,
        marks: Iterable[Hashable] = (),
        *,
        ids: Collection[str] | None = None,
        before: float | None = None,
    ) -> None:
        """Drop entries of all processes: those for which everything holds that is given.

        It is passed on as a change of the store is: one short note for each shard, which lookups
        apply to what they find. Searches that began before are not inserted any more, where their
        entries would be among these.

        Args:
            marks: Their cache key has all of these marks.
            ids: They hold one of these documents.
            before: They were inserted before this moment, in seconds since 1970.
        """
        self._deliver(self._operations.requests.forgettings(marks, ids, before))

    async def adiscard(
        self,
        marks: Iterable[Hashable] = (),
        *,
        ids: Collection[str] | None = None,
        before: float | None = None,
    ) -> None:
        """Async version of :meth:`discard`."""
        await self._adeliver(self._operations.requests.forgettings(marks, ids, before))

    def forget(self, q: ArrayLike, k: int, key: Hashable = None) -> int:
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
        count = self._run(self._operations.count(q, k, key))
        self._deliver(self._operations.forgetting(q, key))
        return count

    async def aforget(self, q: ArrayLike, k: int, key: Hashable = None) -> int:
        """Async version of :meth:`forget`."""
        count = await self._arun(self._operations.count(q, k, key))
        await self._adeliver(self._operations.forgetting(q, key))
        return count

    async def aclear(self) -> None:
        """Async version of :meth:`clear`."""
        await self._adeliver(self._operations.requests.clearings())

    def close(self) -> None:
        """Close the connections of threads, and try no more to deliver what is owed."""
        self._debts.close()
        self._link.close()

    async def aclose(self) -> None:
        """Async version of :meth:`close`, for the connections of this event loop, too."""
        await asyncio.to_thread(self._debts.close)
        await self._link.aclose()

    def _change(
        self, removed: tuple[str, ...], added: tuple[str, ...], vectors: ArrayLike | None
    ) -> None:
        check_ids((*removed, *added))
        try:
            requests = self._operations.changes(removed, added, vectors)
        except BaseException:
            self.clear()  # the store has changed in an unknown way
            raise
        self._deliver(requests)

    async def _achange(
        self, removed: tuple[str, ...], added: tuple[str, ...], vectors: ArrayLike | None
    ) -> None:
        check_ids((*removed, *added))
        try:
            requests = await asyncio.to_thread(self._operations.changes, removed, added, vectors)
        except BaseException:
            self.clear_soon()
            raise
        await self._adeliver(requests)

    def _run(self, plan: Plan[R]) -> R:
        """Do an operation."""
        requests, result = advance(partial(next, plan))
        while requests is not None:
            try:
                resume = partial(plan.send, self._send(requests))
            except UnreachableError as error:
                resume = partial(plan.throw, error)
            requests, result = advance(resume)
        done: R = result
        return done

    async def _arun(self, plan: Plan[R]) -> R:
        """Async version of :meth:`_run`. What may wait for the store runs in a thread."""
        requests, result = advance(partial(next, plan))
        while requests is not None:
            try:
                resume = partial(plan.send, await self._asend(requests))
            except UnreachableError as error:
                resume = partial(plan.throw, error)
            if self._operations.reads:
                requests, result = await asyncio.to_thread(advance, resume)
            else:
                requests, result = advance(resume)
        done: R = result
        return done

    def _check_debt(self, request: Request) -> None:
        """Ask no shard whose entries are old."""
        if request.shard in self._debts:
            self._debts.add(())  # should nobody be trying, as after close()
            raise UnreachableError(called=False)

    def _send(self, requests: list[Request]) -> list[Any]:
        """Send what belongs to one operation; return the answers."""
        budget = self._link.budget()
        for request in requests:
            self._check_debt(request)
        return [self._link.call(request, budget) for request in requests]

    async def _asend(self, requests: list[Request]) -> list[Any]:
        """Async version of :meth:`_send`."""
        budget = self._link.budget()
        for request in requests:
            self._check_debt(request)
        return await asyncio.gather(*(self._link.acall(request, budget) for request in requests))

    def _deliver(self, requests: list[Request]) -> None:
        """Send what must not get lost; a thread retries what did not arrive."""
        owed = {request.shard for request in requests}
        budget = self._link.budget(patient=True)
        try:
            for request in requests:
                self._link.call(request, budget)
                owed.discard(request.shard)
        except UnreachableError:
            pass  # the others would have to wait as long
        finally:
            self._debts.add(owed)

    async def _adeliver(self, requests: list[Request]) -> None:
        owed = {request.shard for request in requests}
        budget = self._link.budget(patient=True)

        async def tell(request: Request) -> None:
            try:
                await self._link.acall(request, budget)
            except UnreachableError:
                return
            owed.discard(request.shard)

        try:
            await asyncio.gather(*(tell(request) for request in requests))
        finally:  # also where this is cancelled
            self._debts.add(owed)
