"""Prometheus metrics: read back through the text that a scrape gets."""

from __future__ import annotations

import math
import sys
from dataclasses import fields, replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ragcache_integrations.errors import MissingExtraError
from ragcache_integrations.query_cache import Candidate, QueryCache, QueryCacheStats
from ragcache_integrations.query_cache import metrics as ours
from ragcache_integrations.query_cache.metrics import QueryCacheCollector, Source
from ragcache_integrations.query_cache.tolerance import ToleranceReport
from ragcache_integrations.retrievers.retrieval import RetrieverStats

COUNTS = {field.name: number for number, field in enumerate(fields(QueryCacheStats), start=3)}
CACHE = QueryCacheStats(**COUNTS | {"tolerance": math.inf, "learning": None})  # type: ignore[arg-type] # numbers
CACHE_METRICS = ours.METRICS["query_cache"]
RETRIEVER_METRICS = ours.METRICS["retriever"]["counters"]
LEARNING = ToleranceReport(0.25, 0.95, 0.01, 0.9, (0.001, 0.02), 70, 60, 50, 4, ())


class Told:
    """Has :meth:`stats`, which is all that is asked of a source."""

    def __init__(self, stats: QueryCacheStats | RetrieverStats) -> None:
        self._stats = stats

    def stats(self) -> QueryCacheStats | RetrieverStats:
        return self._stats


def registry(source: Source, labels: dict[str, str] | None = None) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(QueryCacheCollector(source, labels))
    return made


def scrape(scraped: CollectorRegistry) -> dict[str, float]:
    """``name{labels}`` to value, of one scrape."""
    return {
        sample.name
        + "".join(f"[{name}={value}]" for name, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(generate_latest(scraped).decode())
        for sample in family.samples
    }


def test_every_count_of_a_cache_is_told_once_and_right() -> None:
    scraped = scrape(registry(Told(CACHE)))
    expected = {
        f"ragcache_query_cache_{name}_total": COUNTS[name] for name in CACHE_METRICS["counters"]
    }
    expected |= {
        f"ragcache_query_cache_{name}": getattr(CACHE, name) for name in CACHE_METRICS["gauges"]
    }
    assert scraped == expected
    assert scraped["ragcache_query_cache_tolerance"] == math.inf


def test_what_was_learnt_is_told() -> None:
    scraped = scrape(registry(Told(replace(CACHE, tolerance=0.25, learning=LEARNING))))
    assert scraped["ragcache_query_cache_tolerance"] == 0.25
    assert scraped["ragcache_query_cache_learning_shadow_checks_total"] == 50
    assert scraped["ragcache_query_cache_learning_failures_total"] == 4
    assert scraped["ragcache_query_cache_learning_labels_total"] == 70
    assert scraped["ragcache_query_cache_learning_target_recall"] == 0.95
    assert scraped["ragcache_query_cache_learning_max_violation"] == 0.01
    assert scraped["ragcache_query_cache_learning_confidence"] == 0.9
    assert scraped["ragcache_query_cache_learning_violation_rate[bound=low]"] == 0.001
    assert scraped["ragcache_query_cache_learning_violation_rate[bound=high]"] == 0.02


def test_a_retriever_is_told_with_its_cache() -> None:
    stats = RetrieverStats(requests=9, store_calls=4, store_seconds=0.5, cache=CACHE)
    scraped = scrape(registry(Told(stats)))
    assert scraped["ragcache_retriever_requests_total"] == 9
    assert scraped["ragcache_retriever_store_calls_total"] == 4
    assert scraped["ragcache_retriever_store_seconds_total"] == 0.5
    assert scraped["ragcache_query_cache_hits_total"] == CACHE.hits


def test_a_retriever_that_was_not_asked_yet_has_no_cache() -> None:
    scraped = scrape(registry(Told(RetrieverStats())))
    assert scraped == {f"ragcache_retriever_{name}_total": 0 for name in RETRIEVER_METRICS}


def test_no_count_is_forgotten() -> None:
    """A new field of the statistics must find its place among the metrics."""
    cache = {field.name for field in fields(QueryCacheStats)}
    assert cache - {*CACHE_METRICS["counters"], *CACHE_METRICS["gauges"]} == {"learning"}
    report = {field.name for field in fields(ToleranceReport)}
    assert report - {*ours.LEARNING["counters"], *ours.LEARNING["gauges"]} == {
        "tolerance",  # the cache's
        "violation_rate",  # by its bounds
        "hits",  # the cache's, but for those at distance 0
        "history",  # what a scrape after the other tells
    }
    assert {field.name for field in fields(RetrieverStats)} - {*RETRIEVER_METRICS} == {
        "cache",
        "unranked",  # a sentence
    }


def test_two_in_one_registry() -> None:
    both = registry(Told(CACHE), {"cache": "a"})
    other = replace(CACHE, hits=99, learning=LEARNING)
    both.register(QueryCacheCollector(Told(other), {"cache": "b"}))
    scraped = scrape(both)
    assert scraped["ragcache_query_cache_hits_total[cache=a]"] == CACHE.hits
    assert scraped["ragcache_query_cache_hits_total[cache=b]"] == 99
    assert scraped["ragcache_query_cache_learning_violation_rate[bound=low][cache=b]"] == 0.001


def test_a_real_cache_is_scraped() -> None:
    cache = QueryCache[str](2, 10, "auto")
    scraped = registry(cache)
    cache.insert([1, 0], [Candidate("a", "text a")])
    cache.lookup([1, 0], 1)
    after = scrape(scraped)
    assert after["ragcache_query_cache_hits_total"] == 1
    assert after["ragcache_query_cache_entries"] == 1
    assert after["ragcache_query_cache_learning_violation_rate[bound=high]"] == 1


def test_what_brings_prometheus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"ragcache-integrations\[prometheus\]"):
        QueryCacheCollector(Told(CACHE))
