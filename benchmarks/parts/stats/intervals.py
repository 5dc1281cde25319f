"""Ratios of medians, and of means, with paired-bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ragcache_workbench.evaluation.scores import Interval, bootstrap_interval

__all__ = ["geometric_mean_ratio", "mean_ratio", "median_ratio"]


def median_ratio(baseline: Sequence[float], ours: Sequence[float], seed: int = 0) -> Interval:
    """Median of the baseline over ours; request by request the same work was asked of both.

    Pairs are drawn again with replacement, both sides of a pair together.
    """
    return geometric_mean_ratio([(baseline, ours)], seed)


def mean_ratio(baseline: Sequence[float], ours: Sequence[float], seed: int = 0) -> Interval:
    """Mean of the baseline over ours, as :func:`median_ratio` does with medians."""
    return geometric_mean_ratio([(baseline, ours)], seed, np.mean)


def geometric_mean_ratio(
    points: Sequence[tuple[Sequence[float], Sequence[float]]],
    seed: int = 0,
    average: Callable[..., Any] = np.median,
) -> Interval:
    """Geometric mean over several points of the ratio of averages.

    Args:
        points: The baseline's numbers and ours at each point, request by request; pairs are drawn
            again within their point.
        seed: The same seed gives the same interval.
        average: ``np.median``, ``np.mean`` or alike, which take an ``axis``.
    """
    pairs = [np.array(point) for point in points]

    def ratio(*places: Any, axis: int) -> Any:
        averages = [
            average(pair[:, place], axis=axis) for pair, place in zip(pairs, places, strict=True)
        ]
        return np.exp(np.mean([np.log(base / ours) for base, ours in averages], axis=0))

    return bootstrap_interval(ratio, [np.arange(pair.shape[1]) for pair in pairs], seed=seed)
