"""Passes the schedulers' counts to ``/metrics``.

A scheduler runs in the engine's process, one for each data-parallel rank, and vLLM's own statistics
cannot carry our counts. So each scheduler writes its counts to a file, which is replaced
atomically, and an API process that is asked for metrics reads the files of its machine.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ragcache_integrations.engine.metrics import collect_stats
from ragcache_integrations.engine.protocol import EngineStats
from ragcache_integrations.knowledge_tree.shares import ShareStats
from ragcache_integrations.knowledge_tree.stats import TreeStats

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["CountsFile", "Refused", "metrics_text", "read_counts"]

Refused = dict[int, int]
"""Number of refused requests by HTTP status."""


class CountsFile:
    """The file of one scheduler's counts.

    Args:
        folder: Folder of all schedulers' files.
        rank: The scheduler's data-parallel rank.
        block_bytes: Size of a block of its KV cache.
    """

    def __init__(self, folder: str, rank: int, block_bytes: int) -> None:
        self._path = Path(folder) / f"{rank}.json"
        self._block_bytes = block_bytes

    def write(self, stats: TreeStats) -> None:
        """Replace the file. Errors are ignored: lost counts are better than a failed request."""
        new = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            new.write_text(json.dumps([self._block_bytes, asdict(stats)]), encoding="utf-8")
            new.replace(self._path)


def read_counts(folder: str) -> dict[str, EngineStats]:
    """The trees' counts by rank; empty if there are none."""
    counts = {}
    for path in sorted(Path(folder).glob("*.json")) if folder else ():
        with contextlib.suppress(
            OSError, ValueError, TypeError, KeyError
        ):  # it may just have been removed
            block_bytes, tree = json.loads(path.read_text(encoding="utf-8"))
            tree["shares"] = tuple(ShareStats(*share) for share in tree.pop("shares", ()))
            counts[path.stem] = EngineStats(tree=TreeStats(**tree), block_bytes=block_bytes)
    return counts


class _Merged:
    """The metrics of several engines, each metric once.

    Requests are counted here, not by the engines, and have no label.
    """

    def __init__(
        self, requests: EngineStats, trees: dict[str, EngineStats], refused: Refused
    ) -> None:
        self._requests = requests
        self._trees = trees
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 - an extra

        ours = list(collect_stats(replace(self._requests, tree=None), {}))
        yield from ours
        counted = {metric.name for metric in ours}
        families: dict[str, Metric] = {}
        for rank, stats in self._trees.items():
            for metric in collect_stats(stats, {"engine": rank}):
                if metric.name in families:
                    families[metric.name].samples += metric.samples
                elif metric.name not in counted:
                    families[metric.name] = metric
        yield from families.values()
        refused = CounterMetricFamily(
            "ragcache_refused_requests", "Requests that were refused", labels=["status"]
        )
        for status, number in sorted(self._refused.items()):
            refused.add_metric([str(status)], number)
        yield refused


def metrics_text(requests: EngineStats, folder: str, refused: Refused) -> bytes:
    """Our metrics in Prometheus's text format.

    Args:
        requests: Counts of this process's requests.
        folder: Folder of the schedulers' counts.
        refused: Requests that never reached vLLM, by HTTP status.
    """
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - an extra

    registry = CollectorRegistry()
    registry.register(_Merged(requests, read_counts(folder), refused))
    text: bytes = generate_latest(registry)
    return text
