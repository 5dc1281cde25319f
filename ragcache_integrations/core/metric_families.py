"""Families of Prometheus metrics, with the labels of an application."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ragcache_integrations.errors import ConfigurationError

from .extras import require

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["MetricFamilies"]

_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
_BOUND = "bound"


class MetricFamilies:
    """Makes metrics whose names begin with ``ragcache_``.

    Args:
        labels: Labels for every metric, such as ``{"retriever": "faq"}``.

    Raises:
        ConfigurationError: Prometheus allows no such labels.
        MissingExtraError: prometheus_client is not installed.
    """

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        require("prometheus_client", feature="Prometheus metrics", extra="prometheus")
        self._labels = _checked({} if labels is None else labels)

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
        names = [*self._labels, *([_BOUND] if isinstance(values, Mapping) else [])]
        family = GaugeMetricFamily(f"ragcache_{name}", meaning, labels=names)
        for bound, value in bounds.items():
            family.add_metric([*self._labels.values(), bound][: len(names)], value)
        return family


def _checked(labels: Mapping[str, str]) -> dict[str, str]:
    """Copy labels, of which a wrong one would make every scrape fail.

    Raises:
        ConfigurationError: Prometheus allows no such labels.
    """
    if not isinstance(labels, Mapping):
        raise ConfigurationError(f"labels must be a dict of strings, or None, got {labels!r:.100}")
    for name, value in labels.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or name == _BOUND:
            raise ConfigurationError(
                "a label's name must have letters, digits and _, not begin with a digit or __, and "
                f"not be {_BOUND!r}, got {name!r:.100}"
            )
        if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):
            msg = f"the value of the label {name!r} must be a string in Unicode, got {value!r:.100}"
            raise ConfigurationError(msg)
    return dict(labels)
