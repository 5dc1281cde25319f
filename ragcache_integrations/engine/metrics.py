"""Prometheus metrics of an engine, for the application to register.

``REGISTRY.register(EngineCollector(engine))`` and scrape as usual. Each scrape reads
:meth:`RAGCacheEngine.stats`, which returns immediately.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ragcache_integrations.core.extras import require

from .protocol import EngineStats

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from .engine import RAGCacheEngine

__all__ = ["EngineCollector", "collect_stats"]

METRICS: dict[str, dict[str, list[str]]] = tomllib.loads(
    files(__package__).joinpath("metrics.toml").read_text("utf-8")
)
"""Kind, meaning and fields of each metric, by what they are of, and their names."""
TIERS = ("gpu", "host")


class EngineCollector:
    """Collects one engine's metrics at each scrape.

    Args:
        engine: The engine whose metrics are collected.
        labels: Labels for every metric, such as ``{"engine": "main"}``; required if several
            engines are registered in one process.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """

    def __init__(self, engine: RAGCacheEngine, labels: dict[str, str] | None = None) -> None:
        require("prometheus_client", feature="Prometheus metrics", extra="vllm")
        self._engine = engine
        self._labels = dict(labels or {})

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now; called by the registry."""
        return collect_stats(self._engine.stats(), self._labels)

    def describe(self) -> list[Metric]:
        """Nothing, so that registering does not scrape."""
        return []


def collect_stats(stats: EngineStats, labels: Mapping[str, str]) -> Iterator[Metric]:
    """The metrics of an engine's counts.

    Args:
        stats: The counts.
        labels: Labels for every metric.
    """
    tree = stats.tree
    yield from _families("engine", labels, [((), stats)])
    if tree is not None:
        yield from _families("tree", labels, [((), tree)], block_bytes=stats.block_bytes)
    if tree is not None and tree.shares:
        shares = [((share.namespace,), share) for share in tree.shares]
        yield from _families("tenant", labels, shares, own=("namespace",))


def _families(
    section: str,
    labels: Mapping[str, str],
    sources: Sequence[tuple[tuple[str, ...], object]],
    *,
    own: tuple[str, ...] = (),
    block_bytes: int = 1,
) -> Iterator[Metric]:
    """The metrics of a section.

    Args:
        section: Of :data:`METRICS`.
        labels: Labels for every metric.
        sources: What they are of, with values of further labels.
        own: Names of these labels.
        block_bytes: Size of a block.
    """
    from prometheus_client import core  # noqa: PLC0415 - an extra

    kinds: dict[str, Any] = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
    for name, (kind, meaning, *others) in METRICS[section].items():
        fields = dict(zip(TIERS, others, strict=True)) if len(others) > 1 else {}
        names = [*labels, *own, *(["tier"] if fields else [])]
        family = kinds[kind](f"ragcache_{name}", meaning, labels=names)
        unit = block_bytes if name.endswith("_bytes") else 1
        for values, source in sources:
            for tier, field in (fields or {"": (others or [name])[0]}).items():
                value = getattr(source, field) * unit
                family.add_metric([*labels.values(), *values, *([tier] if tier else [])], value)
        yield family
