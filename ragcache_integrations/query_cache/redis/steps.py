"""What a shared cache does between asking Redis and hearing its answers."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.query_cache.entries.entry import check_found
from ragcache_integrations.query_cache.kernels.choice import kernels
from ragcache_integrations.query_cache.redis.debts import Debts
from ragcache_integrations.query_cache.redis.link import Link, UnreachableError
from ragcache_integrations.query_cache.redis.matching import (
    DocumentSource,
    Fetched,
    Found,
    Matching,
)
from ragcache_integrations.query_cache.redis.names import Names
from ragcache_integrations.query_cache.redis.records import (
    Record,
    decode_record,
    encode_record,
)
from ragcache_integrations.query_cache.redis.requests import Request, Requests
from ragcache_integrations.query_cache.redis.server import RedisServer
from ragcache_integrations.query_cache.redis.stats import COUNTED, SharedCacheStats
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.types import Candidate, Explanation, Hit, Metric
from ragcache_integrations.query_cache.validation import (
    as_number,
    as_query,
    check_key,
    check_whole,
)

__all__ = ["Steps"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Vectors = NDArray[np.float32]

_NO_TIME = b"0" * 16


class Steps(Generic[T]):
    """What :class:`~ragcache_integrations.query_cache.redis.cache.RedisQueryCache` does by itself.

    Args:
        server: Where Redis is.
        settings: The arguments of the cache, checked.
        documents: Reads documents.
    """

    def __init__(
        self, server: RedisServer, settings: Settings, documents: DocumentSource[T] | None
    ) -> None:
        self._settings = settings
        self._names = Names(settings, server.prefix, server.number_of_shards)
        self._link = Link(server)
        self._debts = Debts(self._link, self._names)
        self._matching = Matching[T](settings, kernels(), documents)
        self._requests = Requests(settings, self._names, kernels())
        # Whether anything but Redis is waited for.
        self._reads = settings.vectors is not None or documents is not None
        self._lock = make_lock()
        self._counts = dict.fromkeys(COUNTED, 0)
        self._warned = self._warned_of_corrupt = False

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        return self._settings.dim

    @property
    def tolerance(self) -> float:
        """The largest distance at which a lookup hits."""
        return self._matching.decisions.tolerance

    @property
    def metric(self) -> Metric:
        """How documents are ranked."""
        return self._settings.metric

    @property
    def fingerprint(self) -> str:
        """What processes have in common that share entries; a part of the names of all keys."""
        return self._names.fingerprint

    @property
    def store_version(self) -> int:
        """Number that grows with everything that this process hears of the store's changes.

        Lookups hear of them. Read it after one and before the search, hand it to :meth:`insert`.
        """
        return self._requests.shards.number

    def fetch_count(self, k: int, q: ArrayLike | None = None, key: Hashable = None) -> int:
        """Return how many candidates to fetch on a miss: rho times k. Asks nobody.

        Args:
            k: How many are wanted.
            q: Makes no difference here.
            key: Makes no difference here.
        """
        del q, key
        return k if self._settings.vectors is None else k * self._settings.rerank_factor

    def stats(self) -> SharedCacheStats:
        """Return what this process did. Touches memory alone."""
        settings = self._settings
        with self._lock:
            return SharedCacheStats(
                entries=0,
                capacity=settings.bucket_capacity << settings.num_hyperplanes,
                vectors=0,
                tolerance=self.tolerance,
                learning=None,
                owed=len(self._debts),
                **self._counts,
            )

    def clear_soon(self) -> None:
        """Have a thread drop every entry. From now on this process is answered from nothing old."""
        self._debts.add(range(self._names.shards))

    def _ask(
        self, q: ArrayLike, k: int, key: Hashable, *, noting: bool = True
    ) -> tuple[Vectors, int, list[Request]]:
        query = as_query(q, self._settings.dim).copy()  # the caller's may change meanwhile
        k = min(check_whole("k", k, 1), sys.maxsize)
        check_key(key)
        prepared = self._matching.vectors.prepare_query(query)
        return query, k, self._requests.lookups(prepared, key, noting=noting)

    def _unanswered(self, error: UnreachableError) -> None:
        self._count(lookups=1, **{"failed" if error.asked else "skipped": 1})

    def _conclude(
        self, query: Vectors, k: int, requests: list[Request], replies: list[Any]
    ) -> Hit[T] | None:
        """Answer a lookup, and count it."""
        found = self._found(query, k, requests, replies)
        if found is None:
            self._count(lookups=1, failed=1)
            return None
        for entry in (*found.corrupt, *found.ended):
            self._requests.drop(entry)
        self._note_corrupt(len(found.corrupt))
        counted = {
            "lookups": 1,
            "expired": len(found.ended),
            "invalidated": len(found.outdated),
        }
        if found.hit is not None and found.matched is not None:
            self._requests.touch(found.matched)
            counted |= {"hits": 1, "proven": int(found.hit.recall_bound == 1.0)}
        elif found.matched is not None:
            if not found.fresh:
                counted["stale"] = 1
            elif self._settings.guarantee is not None:
                counted["unproven"] = 1
        self._count(**counted)
        return found.hit

    def _found(
        self,
        query: Vectors,
        k: int,
        requests: list[Request],
        replies: list[Any],
        *,
        far: bool = False,
    ) -> Found[T] | None:
        """Return what answers a query; ``None`` where what came cannot be used."""
        taken = self._take(requests, replies)
        if taken is None:
            return None
        entries, now = taken
        try:
            return self._matching.find(query, k, entries, now, far=far)
        except Exception:  # the store's: whoever asks will search it, and hear of it then
            level = logging.DEBUG if self._warned else logging.WARNING
            self._warned = True
            logger.log(level, "A shared entry's documents could not be read", exc_info=True)
            return None

    def _take(
        self, requests: list[Request], replies: list[Any]
    ) -> tuple[list[Fetched], int] | None:
        entries: list[Fetched] = []
        now = 0
        try:
            for request, reply in zip(requests, replies, strict=True):
                taken = self._requests.take(request, reply)
                if taken is None:
                    return None
                entries += taken.entries
                now = max(now, taken.now)
                self._note_corrupt(taken.foreign)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            self._note_corrupt(1)
            return None
        return entries, now

    def _note_corrupt(self, count: int) -> None:
        """Count what is no entry or no answer, and say so the first time."""
        if not count:
            return
        self._count(corrupt=count)
        level = logging.DEBUG if self._warned_of_corrupt else logging.WARNING
        self._warned_of_corrupt = True
        logger.log(
            level,
            "The shared query cache at %s holds or answers what no process of this version wrote. "
            "It is not used: these are misses, counted as corrupt",
            self._link.server.where,
        )

    def _explained(self, found: Found[T] | None) -> Explanation:
        if found is None:
            found = Found(reason="Redis does not answer, or not in a way that can be used")
        elif found.distance is None:
            found.reason = "no entry in the buckets searched serves so many documents"
        return Explanation(
            found.hit is not None,
            found.reason,
            found.distance,
            self.tolerance,
            found.bound,
            found.served,
        )

    def _given(
        self,
        q: ArrayLike,
        candidates: Sequence[Candidate[T]],
        key: Hashable,
        k: int | None,
        store_version: int | None,
        *,
        complete: bool,
    ) -> tuple[Vectors, tuple[Candidate[T], ...], int]:
        query = self._matching.vectors.prepare_query(q)
        found = check_found(candidates, complete=complete)
        check_key(key)
        self._names.partition(key)
        if k is not None:
            check_whole("k", k, 1)
        if store_version is not None:
            check_whole("store_version", store_version, 0, self.store_version)
        return query, found, self._requests.shard_of(query)

    def _is_new(self, shard: int, store_version: int | None) -> bool:
        return store_version is None and not self._requests.shards.known(shard).generation

    def _insertion(
        self,
        query: Vectors,
        found: tuple[Candidate[T], ...],
        key: Hashable,
        shard: int,
        store_version: int | None,
        *,
        complete: bool,
    ) -> Request | None:
        """Return the request; ``None`` where nobody knows any more what changed since."""
        shards, settings = self._requests.shards, self._settings
        number = shards.number if store_version is None else store_version
        heard = shards.version_at(shard, number)
        if heard is None:
            return None
        generation, version = heard
        documents = tuple(
            (
                candidate.id,
                candidate.fingerprint,
                None if candidate.score is None else as_number(candidate.score),
            )
            for candidate in found
        )
        radius = -math.inf
        if settings.proves:
            radius = self._matching.radius(query, found, complete=complete)
        record = Record(query, documents, complete, version, radius)
        encoded = encode_record(record)
        if decode_record(_NO_TIME + encoded, settings.dim) is None:
            return None  # it is too large, for example: nobody would take it for an entry
        return self._requests.insertion(record, encoded, key, generation)

    def _inserted(self, reply: Any) -> bool:
        done, evicted = (0, 0) if reply is None else _two_numbers(reply)
        if evicted < 0:  # no answer of a script of ours
            return self._lost()
        self._count(**({"insertions": 1, "evictions": evicted} if done else {"dropped": 1}))
        return bool(done)

    def _lost(self) -> bool:
        self._count(lost=1)
        return False

    def _check_debt(self, request: Request) -> None:
        """Ask no shard whose entries are old."""
        if request.shard in self._debts:
            self._debts.add(())  # should nobody be trying, as after close()
            raise UnreachableError(asked=False)

    def _deletion(self, q: ArrayLike, key: Hashable) -> Request:
        query = self._matching.vectors.prepare_query(q)
        check_key(key)
        return self._requests.deletion(query, key)

    def _changes(
        self, removed: tuple[str, ...], added: tuple[str, ...], vectors: ArrayLike | None
    ) -> list[Request]:
        if not removed and not added:
            return []
        added, new = self._matching.vectors.of_new(added, vectors)
        if new is None:
            return self._requests.clearings()
        return self._requests.changes(removed, added, new)

    def _count(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount


def _two_numbers(reply: Any) -> tuple[int, int]:
    """Return what a script answers that answers two numbers; (0, -1) where it is something else."""
    match reply:
        case [int(first), int(second)] if min(first, second) >= 0:
            return first, second
    return 0, -1
