"""What a retriever did, counted from any thread."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from ragcache_integrations.core.forks import make_reentrant_lock
from ragcache_integrations.query_cache import QueryCacheStats

__all__ = ["RetrieverStats", "Tally"]

_SUMS_OF_CALLS = {kind: (f"{kind}_calls", f"{kind}_seconds") for kind in ("store", "embedding")}
_OUTCOMES = ("hits", "misses", "shared", "failures")


@dataclass(frozen=True, slots=True)
class RetrieverStats:
    """What a retriever did since it was made.

    ``requests = hits + misses + shared + failures``.

    Attributes:
        requests: Questions answered, or ended by an exception.
        hits: Answered from the cache.
        misses: Answered by a new search.
        shared: Answered by the search that the same question, asked at the same time, had begun.
        failures: Ended by an exception or cancelled.
        store_calls: Searches of the store, failed ones and checks among them.
        store_seconds: Time spent searching the store.
        lookup_seconds: Time spent looking up questions that were answered, re-ranking included.
        embedding_calls: Calls of the embedding model, failed ones among them.
        embedding_seconds: Time spent in the embedding model.
        embedding_memo_hits: Embeddings that were taken from the memo instead.
        shadow_checks: Answers of the cache that ``tolerance="auto"`` had checked by a search.
        shadow_failures: Checks that ended by an exception; nothing was learnt from them.
        unranked: Why cached documents are not re-ranked for the questions that they answer; empty
            where they are.
        cache: What the query cache holds; ``None`` before the first question.
    """

    requests: int = 0
    hits: int = 0
    misses: int = 0
    shared: int = 0
    failures: int = 0
    store_calls: int = 0
    store_seconds: float = 0.0
    lookup_seconds: float = 0.0
    embedding_calls: int = 0
    embedding_seconds: float = 0.0
    embedding_memo_hits: int = 0
    shadow_checks: int = 0
    shadow_failures: int = 0
    unranked: str = ""
    cache: QueryCacheStats | None = None


class Tally:
    """The running sums of :class:`RetrieverStats`.

    Args:
        unranked: Why cached documents are not re-ranked.
    """

    def __init__(self, unranked: str = "") -> None:
        # Reentrant: a garbage collection that ends a stream in the midst of this counts it, too.
        self._lock = make_reentrant_lock()
        self._unranked = unranked
        # Any: whole numbers and seconds, as the fields say.
        self._sums: dict[str, Any] = asdict(RetrieverStats())
        del self._sums["cache"], self._sums["unranked"], self._sums["requests"]

    def add(self, **amounts: float) -> None:
        """Add to some of the sums."""
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    def add_call(self, kind: str, started: float) -> None:
        """Count a call of the ``store`` or the ``embedding`` model, and the time that it took.

        Args:
            kind: Which of them was asked.
            started: When, by ``time.perf_counter``.
        """
        calls, total = _SUMS_OF_CALLS[kind]
        with self._lock:
            self._sums[calls] += 1
            self._sums[total] += time.perf_counter() - started

    def stats(self, cache: QueryCacheStats | None) -> RetrieverStats:
        """Return the sums as they are now."""
        with self._lock:
            sums = self._sums.copy()
        requests = sum(sums[outcome] for outcome in _OUTCOMES)
        return RetrieverStats(requests=requests, **sums, unranked=self._unranked, cache=cache)
