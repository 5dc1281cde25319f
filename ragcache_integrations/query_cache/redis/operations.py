"""The operations of a shared cache: their requests to Redis, and the meaning of the replies."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.checks import as_number, check_int
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.query_cache.entries import check_candidates
from ragcache_integrations.query_cache.kernels import kernels
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.types import COUNTED, Candidate, Explanation, Hit, Wording
from ragcache_integrations.query_cache.validation import as_query, check_key

from .link import UnreachableError
from .matching import (
    DocumentSource,
    Fetched,
    Matching,
    Outcome,
)
from .records import (
    Names,
    Record,
    decode_record,
    encode_record,
)
from .requests import Request, Requests
from .server import SharedCacheStats

__all__ = ["Operations", "Plan", "advance"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Vectors = NDArray[np.float32]

R = TypeVar("R")
Plan = Generator[list[Request], list[Any], R]
"""An operation. It yields the requests to send, is sent their replies or thrown an
:class:`~.link.UnreachableError`, and returns its result."""

_NO_TIME = b"0" * 16
_UNREAD = "A shared entry's documents could not be read"
_COUNTED_HERE = ("failed", "skipped", "lost", "corrupt")


def advance(resume: Callable[[], list[Request]]) -> tuple[list[Request] | None, Any]:
    """Resume a plan; return the requests that it asks for, or ``None`` and its result."""
    try:
        return resume(), None
    except StopIteration as end:  # which no future of a thread could hold
        return None, end.value


class Operations(Generic[T]):
    """Makes the requests of a shared cache's operations, and reads the replies. Does no I/O.

    Args:
        settings: The arguments of the cache, checked.
        names: Names of what is in Redis.
        documents: Reads documents; ``None``: answers have ids alone.
        where: Redis' address, for messages.
        marks: Returns the marks of a cache key.

    Attributes:
        requests: Makes requests and reads replies.
        matching: Decides what entries answer.
        reads: Whether reading a reply may wait for the store.
    """

    def __init__(
        self,
        settings: Settings,
        names: Names,
        documents: DocumentSource[T] | None,
        where: str,
        marks: Callable[[Hashable], Iterable[Hashable]] | None = None,
    ) -> None:
        self._settings = settings
        self._names = names
        self._where = where
        self.matching = Matching[T](settings, kernels(), documents)
        self.requests = Requests(settings, names, kernels(), marks)
        self.reads = settings.vectors is not None or documents is not None
        self._lock = make_lock()
        self._counts = dict.fromkeys((*COUNTED, *_COUNTED_HERE), 0)
        self._warned = self._warned_of_corrupt = False

    def stats(self, owed: int) -> SharedCacheStats:
        """Return what was counted.

        Args:
            owed: How many shards still have to receive a change.
        """
        settings = self._settings
        with self._lock:
            return SharedCacheStats(
                entries=0,
                capacity=settings.bucket_capacity << settings.num_hyperplanes,
                vectors=0,
                tolerance=self.matching.decisions.tolerance,
                learning=None,
                owed=owed,
                **self._counts,
            )

    def lookup(
        self, q: ArrayLike, k: int, key: Hashable, wording: Wording | None
    ) -> Plan[Hit[T] | None]:
        """Look a query up, and count that."""
        query, k, requests = self._ask(q, k, key)
        try:
            replies = yield requests
        except UnreachableError as error:
            self._count(lookups=1, **{"failed" if error.called else "skipped": 1})
            return None
        return self._conclude(query, k, requests, replies, wording)

    def explain(
        self, q: ArrayLike, k: int, key: Hashable, wording: Wording | None
    ) -> Plan[Explanation]:
        """Explain why a query hits or misses."""
        query, k, requests = self._ask(q, k, key, noting=False)
        try:
            replies = yield requests
        except UnreachableError:
            return self._explanation(None)
        outcome = self._find(query, k, requests, replies, wording, far=True)
        return self._explanation(outcome, by_words=wording is not None)

    def insert(
        self,
        q: ArrayLike,
        candidates: Sequence[Candidate[T]],
        key: Hashable,
        k: int | None,
        store_version: int | None,
        wording: Wording | None,
        *,
        complete: bool,
    ) -> Plan[bool]:
        """Insert an entry; returns whether it is in Redis then."""
        query = self.matching.vectors.prepare_query(q)
        checked = check_candidates(candidates, complete=complete)
        check_key(key)
        self._names.partition(key)
        if k is not None:
            check_int("k", k, 1)
        shards, shard = self.requests.shards, self.requests.shard_of(query)
        if store_version is not None:
            check_int("store_version", store_version, 0, shards.number)
        # Without a version from the caller, the one that Redis has now is asked for where none is
        # known. Otherwise nothing is sent, and the rest runs where it may wait for the store.
        asks = store_version is None and not shards.known(shard).generation
        first = [self.requests.first(shard)] if asks else []
        try:
            self._take(first, (yield first))
            number = shards.number if store_version is None else store_version
            text = "" if wording is None else wording.text
            request = self._insertion(query, checked, key, number, text, complete=complete)
            reply = None if request is None else (yield [request])[0]
        except UnreachableError:
            return self._count_lost()
        return self._count_insertion(reply)

    def delete(self, q: ArrayLike, key: Hashable) -> Plan[bool]:
        """Delete an entry; returns whether there was one."""
        query = self.matching.vectors.prepare_query(q)
        check_key(key)
        try:
            return (yield [self.requests.deletion(query, key)]) == [1]
        except UnreachableError:
            return self._count_lost()

    def count(self, q: ArrayLike, k: int, key: Hashable) -> Plan[int]:
        """Count the entries that would answer a query; 0 where Redis does not say."""
        query, k, requests = self._ask(q, k, key, noting=False)
        try:
            taken = self._take(requests, (yield requests))
        except UnreachableError:
            return 0
        if taken is None:
            return 0
        try:
            return self.matching.count(query, k, *taken)
        except Exception:  # an error of the store's; they are forgotten nevertheless
            logger.log(self._level(), _UNREAD, exc_info=True)
            return 0

    def forgetting(self, q: ArrayLike, key: Hashable) -> list[Request]:
        """Return the requests that make every shard forget what would answer a query."""
        query = self.matching.vectors.prepare_query(q)
        return self.requests.forgettings([key], near=(query, self.matching.decisions.farthest))

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
        prepared = self.matching.vectors.prepare_query(query)
        return query, k, self.requests.lookups(prepared, key, noting=noting)

    def _conclude(
        self,
        query: Vectors,
        k: int,
        requests: list[Request],
        replies: list[Any],
        wording: Wording | None,
    ) -> Hit[T] | None:
        """Answer a lookup, and count it."""
        outcome = self._find(query, k, requests, replies, wording)
        if outcome is None:
            self._count(lookups=1, failed=1)
            return None
        for entry in (*outcome.corrupt, *outcome.ended):
            self.requests.drop(entry)
        self._note_corrupt(len(outcome.corrupt))
        counted = {
            "lookups": 1,
            "expired": len(outcome.ended),
            "invalidated": len(outcome.outdated),
        }
        if outcome.hit is not None and outcome.matched is not None:
            self.requests.touch(outcome.matched)
            counted |= {"hits": 1, "proven": int(outcome.hit.recall_bound == 1.0)}
        elif outcome.matched is not None:
            if not outcome.fresh:
                counted["stale"] = 1
            elif self._settings.guarantee is not None:
                counted["unproven"] = 1
        self._count(**counted)
        return outcome.hit

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
            return self.matching.find(query, k, entries, now, wording, far=far)
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
                taken = self.requests.take(request, reply)
                if taken is None:
                    return None
                fetched, time, foreign = taken
                entries += fetched
                now = max(now, time)
                self._note_corrupt(foreign)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            self._note_corrupt(1)
            return None
        return entries, now

    def _note_corrupt(self, count: int) -> None:
        """Count values that are no entries or replies; log the first."""
        if not count:
            return
        self._count(corrupt=count)
        level = logging.DEBUG if self._warned_of_corrupt else logging.WARNING
        self._warned_of_corrupt = True
        logger.log(
            level,
            "The shared query cache at %s holds or answers what no process of this version wrote. "
            "It is not used: these are misses, counted as corrupt",
            self._where,
        )

    def _explanation(self, outcome: Outcome[T] | None, *, by_words: bool = False) -> Explanation:
        """Explain the outcome of a query in words; ``None``: Redis gave no usable reply."""
        if outcome is None:
            outcome = Outcome(reason="Redis does not answer, or not in a way that can be used")
        elif outcome.distance is None:
            outcome.reason = "no entry in the buckets searched serves this many documents"
            if by_words:
                outcome.reason += ". The guard has it look only at questions with the same marks"
        tolerance = outcome.tolerance
        return Explanation(
            outcome.hit is not None,
            outcome.reason,
            outcome.distance,
            self.matching.decisions.tolerance if tolerance is None else tolerance,
            outcome.bound,
            outcome.served,
        )

    def _insertion(
        self,
        query: Vectors,
        candidates: tuple[Candidate[T], ...],
        key: Hashable,
        number: int,
        text: str,
        *,
        complete: bool,
    ) -> Request | None:
        """Return the request that inserts; ``None`` where the entry would not be valid.

        Args:
            query: The query, prepared.
            candidates: What the search found.
            key: The cache key.
            number: :attr:`.shards.Shards.number` before the search.
            text: The words of the query, or nothing.
            complete: The store had no more documents.
        """
        state = self.requests.shards.version_at(self.requests.shard_of(query), number)
        if state is None:
            return None
        generation, version = state
        documents = tuple(
            (candidate.id, candidate.fingerprint, _score(candidate)) for candidate in candidates
        )
        radius = self.matching.radius(query, candidates, complete=complete)
        record = Record(query, documents, complete, version, radius, text)
        encoded = encode_record(record)
        if decode_record(_NO_TIME + encoded, self._settings.dim) is None:
            return None  # too large, for example: no process would accept it as an entry
        return self.requests.insertion(record, encoded, key, generation)

    def _count_insertion(self, reply: Any) -> bool:
        """Count an insertion; return whether it was done."""
        done, evicted = (0, 0) if reply is None else _two_numbers(reply)
        if evicted < 0:  # not an answer of our script
            return self._count_lost()
        self._count(**({"insertions": 1, "evictions": evicted} if done else {"dropped": 1}))
        return bool(done)

    def _count_lost(self) -> bool:
        """Count an operation that did not reach Redis; return ``False``."""
        self._count(lost=1)
        return False

    def changes(
        self, removed: tuple[str, ...], added: tuple[str, ...], vectors: ArrayLike | None
    ) -> list[Request]:
        """Return the requests that send a change of the store to every shard.

        Raises:
            ConfigurationError: ``vectors`` cannot be used.
        """
        if not removed and not added:
            return []
        added, new = self.matching.vectors.of_new(added, vectors)
        if new is None:
            return self.requests.clearings()
        return self.requests.changes(removed, added, new)

    def _count(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount


def _score(candidate: Candidate[Any]) -> float | None:
    return None if candidate.score is None else as_number(candidate.score)


def _two_numbers(reply: Any) -> tuple[int, int]:
    """Return a script's reply of two numbers; (0, -1) for any other reply."""
    match reply:
        case [int(first), int(second)] if min(first, second) >= 0:
            return first, second
    return 0, -1
