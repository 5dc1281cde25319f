"""Families of Prometheus metrics, with the labels of an application."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .extras import require

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["MetricFamilies"]


class MetricFamilies:
    """Makes metrics whose names begin with ``ragcache_``.

    Args:
        labels: Labels for every metric, such as ``{"retriever": "faq"}``.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        require("prometheus_client", feature="Prometheus metrics", extra="prometheus")
        self._labels = dict(labels or {})

    def counter(self, name: str, meaning: str, value: float) -> Metric:
        """Return a count that only grows."""
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 - an extra

        family = CounterMetricFamily(f"ragcache_{name}", meaning, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def gauge(self, name: str, meaning: str, values: float | Mapping[str, float]) -> Metric:
        """Return a value that may fall; by the label ``bound`` where there are several."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - an extra

        bounds = values if isinstance(values, Mapping) else {"": values}
        names = [*self._labels, *(["bound"] if isinstance(values, Mapping) else [])]
        family = GaugeMetricFamily(f"ragcache_{name}", meaning, labels=names)
        for bound, value in bounds.items():
            family.add_metric([*self._labels.values(), bound][: len(names)], value)
        return family
