"""Prometheus metrics: read back through the text that a scrape gets."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ragcache_integrations.engine import EngineCollector, Prompt, RAGCacheEngine, SamplingOptions
from ragcache_integrations.engine import metrics as ours
from ragcache_integrations.engine.protocol import EngineStats
from ragcache_integrations.knowledge_tree.shares import ShareStats
from ragcache_integrations.knowledge_tree.stats import TreeStats


class Engine:
    """Has :meth:`stats`, which is all that is asked of an engine."""

    def __init__(self, stats: EngineStats) -> None:
        self._stats = stats

    def stats(self) -> EngineStats:
        return self._stats


def scrape(registry: CollectorRegistry) -> dict[str, float]:
    """``name{labels}`` to value, of one scrape."""
    text = generate_latest(registry).decode()
    return {
        sample.name
        + "".join(f"[{name}={value}]" for name, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def register(engine: object, labels: dict[str, str] | None = None) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, labels))  # type: ignore[arg-type] # a stand-in
    return registry


def test_every_count_is_told_once_and_right() -> None:
    names = [field.name for field in fields(TreeStats) if field.name != "shares"]
    counts: dict[str, Any] = {name: number for number, name in enumerate(names, start=3)}
    tree = TreeStats(**counts, shares=(ShareStats("a", 0.25, 7, 8, 9),))
    scraped = scrape(register(Engine(EngineStats(requests=1, tree=tree, block_bytes=1000))))
    assert scraped["ragcache_requests_total"] == 1
    assert scraped["ragcache_document_hits_total[tier=gpu]"] == tree.documents_hit_gpu
    assert scraped["ragcache_document_hits_total[tier=host]"] == tree.documents_hit_host
    assert scraped["ragcache_evicted_blocks_total[tier=host]"] == tree.host_evicted_blocks
    assert scraped["ragcache_swap_in_bytes_total"] == 1000 * tree.swap_ins
    assert scraped["ragcache_clock[tier=gpu]"] == tree.gpu_clock
    assert scraped["ragcache_document_hit_rate"] == tree.document_hit_rate
    assert scraped["ragcache_longest_overtaking"] == tree.longest_overtaking
    names = ["quota", "gpu_blocks", "host_blocks", "pinned_blocks"]
    shares = [scraped[f"ragcache_tenant_{name}[namespace=a]"] for name in names]
    assert shares == [0.25, 7, 8, 9]


def test_no_count_is_forgotten() -> None:
    """A new field of the statistics must find its place among the metrics."""
    told = {
        section: {field for name, (_, _, *of) in metrics.items() for field in of or [name]}
        for section, metrics in ours.METRICS.items()
    }
    missing = {field.name for field in fields(TreeStats)} - told["tree"]
    # Among the engine's; settings; by namespace.
    assert missing == {"requests", "host_blocks", "gpu_blocks", "shares"}
    missing = {field.name for field in fields(EngineStats)} - told["engine"]
    assert missing == {"tree", "block_bytes"}
    assert set(ShareStats._fields) - told["tenant"] == {"namespace"}


def test_without_a_tree_there_are_the_engines_own() -> None:
    scraped = scrape(register(Engine(EngineStats(requests=2))))
    assert scraped["ragcache_requests_total"] == 2
    assert not any("hit" in name for name in scraped)


def test_two_engines_in_one_registry() -> None:
    registry = register(Engine(EngineStats(requests=1)), {"engine": "a"})
    other = Engine(EngineStats(requests=2))
    registry.register(EngineCollector(other, {"engine": "b"}))  # type: ignore[arg-type] # a stand-in
    scraped = scrape(registry)
    assert scraped["ragcache_requests_total[engine=a]"] == 1
    assert scraped["ragcache_requests_total[engine=b]"] == 2


@pytest.mark.engine
def test_the_real_engine_is_scraped(engine: RAGCacheEngine) -> None:
    registry = register(engine)
    before = scrape(registry)
    engine.generate(Prompt.rag("Why?", ["Because. " * 80]), SamplingOptions(max_tokens=1))
    after = scrape(registry)
    assert after["ragcache_requests_total"] == before["ragcache_requests_total"] + 1
    assert after["ragcache_documents_total"] == before.get("ragcache_documents_total", 0) + 1
