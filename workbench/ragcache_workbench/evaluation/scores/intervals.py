"""Bootstrap intervals. Two runs answered the same questions, so they are resampled in pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ragcache_integrations.errors import ConfigurationError

__all__ = [
    "FEWEST",
    "Interval",
    "bootstrap_interval",
    "paired_intervals",
    "sums_of_questions",
]

FEWEST = 100
"""Fewer different questions show no equal quality: answers that do not differ have no interval."""

RESAMPLES = 4000
BATCH = 1 << 22
"""Numbers drawn per batch."""
LARGEST = 1e300
"""Replaces a ratio whose denominator is 0, since SciPy's quantiles take no infinity."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the ends of its 95 % interval (percentile bootstrap)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def as_list(self, digits: int | None = None) -> list[float]:
        """Value, lower and upper end, for JSON.

        Args:
            digits: Decimals to round to; ``None`` for all of them.
        """
        ends = [self.value, self.low, self.high]
        return ends if digits is None else [round(end, digits) for end in ends]


def bootstrap_interval(
    statistic: Callable[..., Any],
    samples: Sequence[ArrayLike],
    *,
    paired: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """A statistic of samples with its 95 % interval, by SciPy's percentile bootstrap.

    Args:
        statistic: Takes the samples and the ``axis`` along which they lie, as ``np.median`` does.
        samples: At least one, each of at least one number.
        paired: Whether the samples are as long as each other, and the numbers at the same place
            are drawn together.
        resamples: How often the samples are drawn again, with replacement; at least 2.
        seed: The same seed gives the same interval.
    """
    value, low, high = _bootstrap(statistic, samples, paired=paired, resamples=resamples, seed=seed)
    return Interval(float(value), float(low), float(high))


def paired_intervals(
    baseline: Sequence[float],
    other: Sequence[float],
    *,
    questions: Sequence[str] | None = None,
    average: Callable[..., Any] = np.mean,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Interval, Interval | None]:
    """Compare two systems by their averages over the same questions.

    Args:
        baseline: One number per question.
        other: Those of the same questions, in the same order.
        questions: What question each pair is of. Pairs of the same question are drawn together, as
            a question's answers resemble each other: without it, a stream in which questions come
            again would have too narrow an interval. Means are compared then, by all pairs.
        average: What is compared: ``np.mean``, ``np.median`` or alike, which take an ``axis``; not
            with ``questions``.
        resamples: How often the pairs are drawn again, with replacement; at least 2.
        seed: The same seed gives the same intervals.

    Returns:
        The other's average minus the baseline's, and the baseline's over the other's (2 where the
        other takes half the time); ``None`` for a ratio that would divide by 0.

    Raises:
        ConfigurationError: There are no pairs, the lengths differ, a number is not finite, or
            there are too few resamples.
    """

    def difference_and_ratio(first: Any, second: Any) -> Any:
        return np.stack([second - first, np.where(second == 0, LARGEST, first / second)])

    def of_pairs(first: Any, second: Any, axis: int) -> Any:
        return difference_and_ratio(average(first, axis=axis), average(second, axis=axis))

    def of_questions(counts: Any, first: Any, second: Any, axis: int) -> Any:
        count = counts.sum(axis=axis)
        return difference_and_ratio(first.sum(axis=axis) / count, second.sum(axis=axis) / count)

    if len(baseline) != len(other) or not len(baseline):
        msg = f"pairs need two numbers each, got {len(baseline)} and {len(other)}"
        raise ConfigurationError(msg)
    pairs = np.array([baseline, other], dtype=np.float64)
    if not np.isfinite(pairs).all():
        raise ConfigurationError("pairs must be finite numbers")
    if resamples < 2:  # noqa: PLR2004 - SciPy takes their standard deviation
        raise ConfigurationError(f"resamples must be at least 2, got {resamples}")
    statistic: Callable[..., Any] = of_pairs
    samples = pairs
    if questions is not None:
        statistic = of_questions
        samples = sums_of_questions(zip(questions, pairs.T, strict=True))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ends = _bootstrap(statistic, list(samples), paired=True, resamples=resamples, seed=seed)
    difference, ratio = (Interval(*map(float, column)) for column in zip(*ends, strict=True))
    return difference, None if max(ratio.as_list()) == LARGEST else ratio


def sums_of_questions(values: Iterable[tuple[str, Iterable[float]]]) -> np.ndarray:
    """How often each question comes, and the sums of its numbers.

    Args:
        values: Questions, each with as many numbers as the others. One may come several times.

    Returns:
        Shape (1 + numbers, questions); (0, 0) without any.
    """
    sums: dict[str, np.ndarray] = {}
    for question, numbers in values:
        row = np.array([1.0, *numbers])
        sums[question] = sums[question] + row if question in sums else row
    return np.array(list(sums.values())).T if sums else np.empty((0, 0))


def _bootstrap(
    statistic: Callable[..., Any],
    samples: Sequence[ArrayLike],
    *,
    paired: bool,
    resamples: int,
    seed: int,
) -> tuple[Any, Any, Any]:
    """The statistic, and the ends of its interval; each may have several numbers."""
    from scipy import stats  # noqa: PLC0415 - takes a second

    # SciPy takes no sample of one number; of two that are the same all resamples are the same, too.
    data = [
        np.repeat(sample, 2) if np.size(sample) == 1 else np.asarray(sample) for sample in samples
    ]
    ends = stats.bootstrap(
        data,
        statistic,
        n_resamples=resamples,
        batch=max(1, BATCH // max(map(len, data))),
        vectorized=True,
        paired=paired,
        axis=-1,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return statistic(*data, axis=-1), ends.low, ends.high
