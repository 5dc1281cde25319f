"""Prometheus metrics: read back through the text that a scrape gets."""

from __future__ import annotations

import math
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
from langchain_core.tools import tool
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ragcache_integrations.answers import (
    AnswerCacheCollector,
    AnswerStats,
    SharedAnswerStats,
)
from ragcache_integrations.answers.types import METRICS
from ragcache_integrations.errors import ConfigurationError, MissingExtraError
from ragcache_integrations.langchain import cached_tool
from ragcache_integrations.query_cache.tolerance import ToleranceReport

OF_CACHE, OF_SHARED, OF_LEARNING = (
    {name for names in METRICS[f"answer_cache{section}"].values() for name in names}
    for section in ("", "_shared", "_learning")
)
COUNTS = {field.name: number for number, field in enumerate(fields(AnswerStats), start=3)}
STATS = AnswerStats(**COUNTS | {"tolerance": math.inf, "learning": None})  # type: ignore[arg-type] # numbers
LEARNING = ToleranceReport(0.25, 0.95, 0.01, 0.9, (0.001, 0.02), 70, 60, 50, 4, ())


class Source:
    """Has :meth:`stats`, which is all that a source needs."""

    def __init__(self, stats: AnswerStats) -> None:
        self._stats = stats

    def stats(self) -> AnswerStats:
        return self._stats


def scrape(*collectors: AnswerCacheCollector) -> dict[str, float]:
    """``name{labels}`` to value, of one scrape."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return {
        sample.name
        + "".join(f"[{name}={value}]" for name, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_every_count_is_there_once_and_right() -> None:
    scraped = scrape(AnswerCacheCollector(Source(STATS)))
    of = METRICS["answer_cache"]
    expected = {f"ragcache_answer_cache_{name}_total": COUNTS[name] for name in of["counters"]}
    expected |= {f"ragcache_answer_cache_{name}": getattr(STATS, name) for name in of["gauges"]}
    assert scraped == expected
    assert scraped["ragcache_answer_cache_tolerance"] == math.inf


def test_what_was_learnt_is_there() -> None:
    stats = replace(STATS, tolerance=0.25, learning=LEARNING)
    scraped = scrape(AnswerCacheCollector(Source(stats)))
    prefix = "ragcache_answer_cache_learning_"
    assert {name: value for name, value in scraped.items() if name.startswith(prefix)} == {
        f"{prefix}labels_total": 70,
        f"{prefix}shadow_checks_total": 50,
        f"{prefix}failures_total": 4,
        f"{prefix}max_violation": 0.01,
        f"{prefix}confidence": 0.9,
        f"{prefix}tenants": 1,
        f"{prefix}violation_rate[bound=low]": 0.001,
        f"{prefix}violation_rate[bound=high]": 0.02,
    }


def test_what_was_shared_is_there() -> None:
    counts = {field.name: getattr(STATS, field.name) for field in fields(STATS)}
    stats = SharedAnswerStats(**counts, failed=1, skipped=2, lost=3, corrupt=4, owed=5)
    scraped = scrape(AnswerCacheCollector(Source(stats)))
    prefix = "ragcache_answer_cache_shared_"
    assert {name: value for name, value in scraped.items() if name.startswith(prefix)} == {
        f"{prefix}failed_total": 1,
        f"{prefix}skipped_total": 2,
        f"{prefix}lost_total": 3,
        f"{prefix}corrupt_total": 4,
        f"{prefix}owed": 5,
    }


def test_no_count_is_forgotten() -> None:
    """A new field of the statistics must find its place among the metrics."""
    names = {field.name for field in fields(AnswerStats)}
    assert names - OF_CACHE == {"learning"}
    shared = {field.name for field in fields(SharedAnswerStats)}
    assert shared - names == OF_SHARED
    report = {field.name for field in fields(ToleranceReport)}
    assert report - OF_LEARNING == {
        "tolerance",  # the cache's
        "target_recall",  # of documents
        "violation_rate",  # by its bounds
        "hits",  # the cache's, but for those in the same words
        "history",  # what one scrape after another shows
    }


def test_a_cached_tool_and_two_in_one_registry() -> None:
    @tool
    def search(query: str) -> str:
        """Search."""
        return query

    cached = cached_tool(search)
    for _ in range(3):
        cached.invoke({"query": "rome"})
    scraped = scrape(
        AnswerCacheCollector(cached, {"tool": "search"}),
        AnswerCacheCollector(Source(STATS), {"tool": "other"}),
    )
    assert scraped["ragcache_answer_cache_hits_total[tool=search]"] == 2
    assert scraped["ragcache_answer_cache_entries[tool=search]"] == 1
    assert scraped["ragcache_answer_cache_hits_total[tool=other]"] == STATS.hits


def test_what_brings_prometheus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"ragcache-integrations\[prometheus\]"):
        AnswerCacheCollector(Source(STATS))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"a-b": "x"}, "a label's name must have letters, digits and _, .* got 'a-b'"),
        ({"": "x"}, "got ''"),
        ({"__name": "x"}, "got '__name'"),
        ({"1st": "x"}, "got '1st'"),
        ({"bound": "x"}, "and not be 'bound', got 'bound'"),
        ({3: "x"}, "got 3"),
        ({"chain": 3}, "the value of the label 'chain' must be a string in Unicode, got 3"),
        ({"chain": "\ud800"}, "the value of the label 'chain' must be"),
        (["chain"], "labels must be a dict of strings"),
    ],
)
def test_labels_that_would_break_every_scrape_are_refused(labels: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AnswerCacheCollector(Source(STATS), labels)


def test_values_of_labels_may_have_any_characters() -> None:
    name = 'quotes " and \\ and\nlines, ü'
    scraped = scrape(AnswerCacheCollector(Source(STATS), {"chain": name}))
    assert scraped[f"ragcache_answer_cache_capacity[chain={name}]"] == COUNTS["capacity"]


def test_what_has_no_such_stats_is_refused() -> None:
    for source in (3, Source(LEARNING)):  # type: ignore[arg-type] # the point
        with pytest.raises(ConfigurationError, match="source must be an AnswerCache"):
            AnswerCacheCollector(source)  # type: ignore[arg-type] # the point
