"""Ratios of medians, and of means, with paired-bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Ratio", "geometric_mean_ratio", "mean_ratio", "median_ratio"]

RESAMPLES = 4000


@dataclass(frozen=True)
class Ratio:
    """A ratio and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def as_list(self) -> list[float]:
        """Value, lower and upper end, rounded for JSON."""
        return [round(self.value, 4), round(self.low, 4), round(self.high, 4)]


def median_ratio(baseline: Sequence[float], ours: Sequence[float], seed: int = 0) -> Ratio:
    """Median of the baseline over ours; request by request the same work was asked of both.

    Pairs are drawn again with replacement, both sides of a pair together.
    """
    return geometric_mean_ratio([(baseline, ours)], seed)


def mean_ratio(baseline: Sequence[float], ours: Sequence[float], seed: int = 0) -> Ratio:
    """Mean of the baseline over ours, as :func:`median_ratio` does with medians."""
    return geometric_mean_ratio([(baseline, ours)], seed, np.mean)


def geometric_mean_ratio(
    points: Sequence[tuple[Sequence[float], Sequence[float]]],
    seed: int = 0,
    average: Callable[..., Any] = np.median,
) -> Ratio:
    """Geometric mean over several points of the ratio of medians; drawn again within each point."""
    rng = np.random.default_rng(seed)
    logs, drawn = 0.0, np.zeros(RESAMPLES)
    for baseline, ours in points:
        pairs = np.array([baseline, ours])
        picks = rng.integers(0, pairs.shape[1], size=(RESAMPLES, pairs.shape[1]))
        averages = average(pairs[:, picks], axis=2)
        drawn += np.log(averages[0] / averages[1])
        whole = average(pairs, axis=1)
        logs += float(np.log(whole[0] / whole[1]))
    low, high = np.exp(np.percentile(drawn / len(points), [2.5, 97.5]))
    return Ratio(float(np.exp(logs / len(points))), float(low), float(high))
