"""Paired-bootstrap intervals: two runs asked the same questions, so they are resampled in pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.errors import ConfigurationError

__all__ = ["Interval", "paired_difference", "paired_ratio"]

RESAMPLES = 4000
CHUNK = 1 << 22
"""Numbers drawn at once."""

KEPT = 64
"""Comparisons whose resamples are kept."""

Statistic = Literal["mean", "median", "p99"]

_STATISTICS: dict[str, Callable[[NDArray[np.float64]], Any]] = {
    "mean": lambda drawn: drawn.mean(axis=-1),
    "median": lambda drawn: np.median(drawn, axis=-1),
    "p99": lambda drawn: np.percentile(drawn, 99, axis=-1),
}


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the ends of its 95 % interval (percentile bootstrap)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def as_list(self) -> list[float]:
        """Value, lower and upper end, for JSON."""
        return [self.value, self.low, self.high]


def paired_difference(
    baseline: Sequence[float],
    other: Sequence[float],
    *,
    statistic: Statistic = "mean",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The other's statistic minus the baseline's.

    Args:
        baseline: One number a question.
        other: Those of the same questions, in the same order.
        statistic: ``mean``, ``median`` or ``p99``.
        resamples: How often pairs are drawn with replacement.
        seed: The same seed gives the same interval.

    Raises:
        ConfigurationError: There are no pairs, the lengths differ, a number is not finite, or an
            argument is unknown.
    """
    return _interval(baseline, other, statistic, resamples, seed, lambda a, b: b - a)


def paired_ratio(
    baseline: Sequence[float],
    other: Sequence[float],
    *,
    statistic: Statistic = "mean",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """The baseline's statistic over the other's: 2 where the other takes half the time.

    Arguments and errors as for :func:`paired_difference`.

    Returns:
        ``None`` where that would divide by zero.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        found = _interval(baseline, other, statistic, resamples, seed, lambda a, b: a / b)
    return found if np.isfinite(found.as_list()).all() else None


def _interval(
    baseline: Sequence[float],
    other: Sequence[float],
    statistic: str,
    resamples: int,
    seed: int,
    combine: Callable[[Any, Any], Any],
) -> Interval:
    if statistic not in _STATISTICS:
        msg = f"statistic must be one of {', '.join(_STATISTICS)}, got {statistic!r}"
        raise ConfigurationError(msg)
    pairs = _pairs(baseline, other)
    if resamples < 1:
        msg = f"resamples must be at least 1, got {resamples}"
        raise ConfigurationError(msg)
    average = _STATISTICS[statistic]
    drawn = combine(*_drawn(pairs.tobytes(), statistic, resamples, seed))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(float(combine(average(pairs[0]), average(pairs[1]))), float(low), float(high))


@lru_cache(maxsize=KEPT)
def _drawn(content: bytes, statistic: str, resamples: int, seed: int) -> NDArray[np.float64]:
    """The statistic of both sides for each resample; kept, as a ratio follows a difference."""
    pairs = np.frombuffer(content).reshape(2, -1)
    average = _STATISTICS[statistic]
    rng = np.random.default_rng(seed)
    length = pairs.shape[1]
    drawn = []
    step = max(1, CHUNK // length)
    for start in range(0, resamples, step):
        picks = rng.integers(0, length, size=(min(step, resamples - start), length))
        drawn.append([average(side[picks]) for side in pairs])
    return np.concatenate(drawn, axis=1)


def _pairs(baseline: Sequence[float], other: Sequence[float]) -> NDArray[np.float64]:
    if len(baseline) != len(other) or not len(baseline):
        msg = f"pairs need two numbers each, got {len(baseline)} and {len(other)}"
        raise ConfigurationError(msg)
    pairs = np.array([baseline, other], dtype=np.float64)
    if not np.isfinite(pairs).all():
        msg = "pairs must be finite numbers"
        raise ConfigurationError(msg)
    return pairs
