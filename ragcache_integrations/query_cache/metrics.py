"""Prometheus metrics of a query cache or a retriever, for the application to register.

``REGISTRY.register(QueryCacheCollector(retriever))`` and scrape as usual. Each scrape reads
``stats()``, which touches memory alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from ragcache_integrations.core.metric_families import MetricFamilies

from .redis import SharedCacheStats
from .tolerance import ToleranceReport
from .types import COUNTED, QueryCacheStats

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["QueryCacheCollector", "RetrieverStatsLike", "Source", "learning_metrics"]

SHARED_COUNTERS = {
    "failed": "Lookups that missed because Redis failed or did not answer in time",
    "skipped": "Lookups that missed without asking Redis, as it had failed before",
    "lost": "Insertions and deletions that did not reach Redis",
    "corrupt": "Values in Redis that are no entries",
}
CACHE_GAUGES = {
    "entries": "Entries",
    "capacity": "The most entries there can be",
    "vectors": "Document vectors kept, each once",
    "tolerance": "The largest distance at which a lookup hits",
}
LEARNING_COUNTERS = {
    "labels": "Answers compared with the store's, on misses and by shadow checks",
    "shadow_checks": "Hits checked against the store: calls of the store spent on that",
    "failures": "Shadow checks that found less recall than the target",
}
LEARNING_GAUGES = {
    "target_recall": "An answer with less recall is a violation",
    "max_violation": "The share of violations among hits stays below this",
    "confidence": "How surely it does, and how surely the violation rate's interval holds",
    "tenants": "Tenants whose questions have taught a tolerance",
}
RETRIEVER_COUNTERS = {
    "requests": "Questions asked",
    "hits": "Questions answered from the cache",
    "misses": "Questions answered by a search of their own",
    "shared": "Questions answered by the search that the same question had begun",
    "failures": "Questions that ended in an exception or were cancelled",
    "store_calls": "Searches of the store",
    "store_seconds": "Seconds spent in them",
    "lookup_seconds": "Seconds spent looking questions up in the cache",
    "embedding_calls": "Calls of the embedding model",
    "embedding_seconds": "Seconds spent in them",
    "embedding_memo_hits": "Embeddings taken from the memo instead",
    "shadow_checks": "Answers from the cache that were compared with the store's",
    "shadow_failures": "Such comparisons that could not be made",
}


class RetrieverStatsLike(Protocol):
    """What a retriever's statistics have, besides the counters above."""

    @property
    def cache(self) -> QueryCacheStats | None:
        """Those of its query cache, once there is one."""


class Source(Protocol):
    """A query cache, or a retriever with one."""

    def stats(self) -> QueryCacheStats | RetrieverStatsLike:
        """Return the counts so far."""


class QueryCacheCollector:
    """Collects the metrics of one query cache, or of one retriever and its cache, at each scrape.

    Register it once::

        prometheus_client.REGISTRY.register(QueryCacheCollector(retriever))

    Args:
        source: The cache or the retriever.
        labels: Labels for every metric, such as ``{"retriever": "faq"}``: needed where several are
            registered in one process.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """

    def __init__(self, source: Source, labels: Mapping[str, str] | None = None) -> None:
        self._source = source
        self._families = MetricFamilies(labels)

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now; called by the registry."""
        stats = self._source.stats()
        if isinstance(stats, QueryCacheStats):
            yield from self._cache(stats)
            return
        for name, meaning in RETRIEVER_COUNTERS.items():
            yield self._families.counter(f"retriever_{name}", meaning, getattr(stats, name))
        if stats.cache is not None:
            yield from self._cache(stats.cache)

    def describe(self) -> list[Metric]:
        """Nothing, so that registering does not scrape."""
        return []

    def _cache(self, stats: QueryCacheStats) -> Iterator[Metric]:
        for name, meaning in COUNTED.items():
            yield self._families.counter(f"query_cache_{name}", meaning, getattr(stats, name))
        for name, meaning in CACHE_GAUGES.items():
            yield self._families.gauge(f"query_cache_{name}", meaning, getattr(stats, name))
        if isinstance(stats, SharedCacheStats):
            for name, meaning in SHARED_COUNTERS.items():
                yield self._families.counter(
                    f"query_cache_shared_{name}", meaning, getattr(stats, name)
                )
            meaning = "Parts of the shared cache that have not received a change of the store yet"
            yield self._families.gauge("query_cache_shared_owed", meaning, stats.owed)
        if stats.learning is not None:
            yield from learning_metrics(self._families, "query_cache_learning", stats.learning)


def learning_metrics(
    families: MetricFamilies,
    prefix: str,
    report: ToleranceReport,
    counters: Mapping[str, str] = LEARNING_COUNTERS,
    gauges: Mapping[str, str] = LEARNING_GAUGES,
) -> Iterator[Metric]:
    """Yield the metrics of a tolerance that is learnt.

    Args:
        families: Makes metrics.
        prefix: Beginning of their names, after ``ragcache_``.
        report: What has been learnt.
        counters: Names of the report's counts, and what they mean.
        gauges: Names of its other values, and what they mean.
    """
    for name, meaning in counters.items():
        yield families.counter(f"{prefix}_{name}", meaning, getattr(report, name))
    for name, meaning in gauges.items():
        yield families.gauge(f"{prefix}_{name}", meaning, getattr(report, name))
    low, high = report.violation_rate
    meaning = "Interval for the share of violations among the hits that were checked"
    yield families.gauge(f"{prefix}_violation_rate", meaning, {"low": low, "high": high})
