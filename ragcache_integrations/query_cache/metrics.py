"""Prometheus metrics of a query cache or a retriever, for the application to register.

``REGISTRY.register(QueryCacheCollector(retriever))`` and scrape as usual. Each scrape reads
``stats()``, which touches memory alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from ragcache_integrations.core.metric_families import MetricFamilies

from .redis import SharedCacheStats
from .tolerance import ToleranceReport
from .types import QueryCacheStats

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["QueryCacheCollector", "RetrieverStatsLike", "Source", "learning_metrics", "metrics_of"]

METRICS: dict[str, dict[str, dict[str, str]]] = tomllib.loads(
    files(__package__).joinpath("metrics.toml").read_text("utf-8")
)
"""What metrics mean, by what they are of, their kind and their name."""
LEARNING = METRICS["query_cache_learning"]


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
        yield from self._section("retriever", stats)
        if stats.cache is not None:
            yield from self._cache(stats.cache)

    def describe(self) -> list[Metric]:
        """Nothing, so that registering does not scrape."""
        return []

    def _cache(self, stats: QueryCacheStats) -> Iterator[Metric]:
        yield from self._section("query_cache", stats)
        if isinstance(stats, SharedCacheStats):
            yield from self._section("query_cache_shared", stats)
        if stats.learning is not None:
            yield from learning_metrics(self._families, "query_cache_learning", stats.learning)

    def _section(self, section: str, source: object) -> Iterator[Metric]:
        return metrics_of(self._families, section, source, **METRICS[section])


def metrics_of(
    families: MetricFamilies,
    prefix: str,
    source: object,
    counters: Mapping[str, str] = MappingProxyType({}),
    gauges: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Metric]:
    """Yield metrics that show an object's fields.

    Args:
        families: Makes metrics.
        prefix: Beginning of their names, after ``ragcache_``.
        source: Has the fields.
        counters: Names of counts, and what they mean.
        gauges: Names of other values, and what they mean.
    """
    for name, meaning in counters.items():
        yield families.counter(f"{prefix}_{name}", meaning, getattr(source, name))
    for name, meaning in gauges.items():
        yield families.gauge(f"{prefix}_{name}", meaning, getattr(source, name))


def learning_metrics(
    families: MetricFamilies,
    prefix: str,
    report: ToleranceReport,
    counters: Mapping[str, str] = LEARNING["counters"],
    gauges: Mapping[str, str] = LEARNING["gauges"],
) -> Iterator[Metric]:
    """Yield the metrics of a tolerance that is learnt.

    Args:
        families: Makes metrics.
        prefix: Beginning of their names, after ``ragcache_``.
        report: What has been learnt.
        counters: Names of the report's counts, and what they mean.
        gauges: Names of its other values, and what they mean.
    """
    yield from metrics_of(families, prefix, report, counters, gauges)
    low, high = report.violation_rate
    meaning = "Interval for the share of violations among the hits that were checked"
    yield families.gauge(f"{prefix}_violation_rate", meaning, {"low": low, "high": high})
