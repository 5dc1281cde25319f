from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.scores import (
    Interval,
    bootstrap_interval,
    paired_intervals,
)


def paired_difference(base: list[float], other: list[float], **arguments: Any) -> Interval:
    difference, _ = paired_intervals(base, other, **arguments)
    return difference


def paired_ratio(base: list[float], other: list[float], **arguments: Any) -> Interval | None:
    _, ratio = paired_intervals(base, other, **arguments)
    return ratio


def test_pairs_are_kept_together() -> None:
    rng = np.random.default_rng(0)
    easy = rng.uniform(0, 100, 200)  # questions differ much, systems little
    together = paired_difference(easy.tolist(), (easy + 1).tolist())
    assert together.value == pytest.approx(1)
    assert together.as_list() == pytest.approx([1, 1, 1])
    apart = paired_difference(easy.tolist(), rng.permutation(easy + 1).tolist())
    assert apart.high - apart.low > 5


def test_it_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        base = rng.normal(0, 3, 60)
        other = base + rng.normal(0.5, 1, 60)
        interval = paired_difference(base.tolist(), other.tolist(), resamples=500)
        covered += interval.low <= 0.5 <= interval.high
    assert 178 <= covered <= 200  # 95 % of 200, give or take four standard deviations


@pytest.mark.parametrize("average", [np.mean, np.median])
def test_both_intervals_are_scipys(average: Callable[..., Any]) -> None:
    base, other = np.random.default_rng(2).uniform(1, 3, (2, 50))

    def difference(first: Any, second: Any, axis: int) -> Any:
        return average(second, axis=axis) - average(first, axis=axis)

    def ratio(first: Any, second: Any, axis: int) -> Any:
        return average(first, axis=axis) / average(second, axis=axis)

    intervals = paired_intervals(base.tolist(), other.tolist(), average=average)
    for interval, statistic in zip(intervals, (difference, ratio), strict=True):
        expected = stats.bootstrap(
            (base, other), statistic, paired=True, method="percentile", rng=3
        ).confidence_interval
        assert interval is not None
        assert interval.value == pytest.approx(statistic(base, other, 0))
        # They are drawn by other seeds, and from another number of resamples.
        assert interval.low == pytest.approx(expected.low, abs=0.03)
        assert interval.high == pytest.approx(expected.high, abs=0.03)
        value, low, high = interval.as_list()
        assert str(interval) == f"{value:.3f} [{low:.3f}, {high:.3f}]"
        assert interval.as_list(2) == [round(end, 2) for end in (value, low, high)]


def test_samples_that_are_no_pairs_are_drawn_apart() -> None:
    easy = np.random.default_rng(0).uniform(0, 100, 200)

    def difference(first: Any, second: Any, axis: int) -> Any:
        return second.mean(axis=axis) - first.mean(axis=axis)

    together = bootstrap_interval(difference, [easy, easy + 1], paired=True)
    apart = bootstrap_interval(difference, [easy, easy + 1])
    assert together.as_list() == pytest.approx([1, 1, 1])
    assert apart.value == pytest.approx(1)
    assert apart.high - apart.low > 5


def test_ratio_and_medians() -> None:
    ratio = paired_ratio([2.0, 4.0, 90.0], [1.0, 2.0, 45.0], average=np.median)
    assert ratio is not None
    assert ratio.as_list() == [2.0, 2.0, 2.0]
    assert paired_difference([1.0], [3.0], average=np.median).as_list() == [2, 2, 2]


@pytest.mark.parametrize("other", [[0.0, 0.0], [0.0, 0.0, 1.0]])
def test_there_is_no_ratio_to_zero(other: list[float]) -> None:
    base = [1.0] * len(other)
    assert paired_ratio(base, other) is None
    assert paired_ratio([0.0] * len(other), base) is not None


def test_a_few_zeros_among_many_times_do_no_harm() -> None:
    ratio = paired_ratio([1.0] * 50, [0.0] + [0.5] * 49)
    assert ratio is not None
    assert 2 <= ratio.low <= ratio.value <= ratio.high < 2.2


def test_the_same_seed_gives_the_same_interval() -> None:
    base, other = np.random.default_rng(0).uniform(0, 1, (2, 30)).tolist()
    assert paired_difference(base, other, seed=1) == paired_difference(base, other, seed=1)
    assert paired_difference(base, other, seed=1) != paired_difference(base, other, seed=2)


@pytest.mark.parametrize(
    ("base", "other", "arguments", "words"),
    [
        ([], [], {}, "got 0 and 0"),
        ([1.0], [1.0, 2.0], {}, "got 1 and 2"),
        ([float("nan")], [1.0], {}, "finite"),
        ([1.0], [1.0], {"resamples": 1}, "at least 2"),
    ],
)
def test_bad_input(
    base: list[float], other: list[float], arguments: dict[str, int], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        paired_difference(base, other, **arguments)


def test_a_question_s_answers_are_drawn_together() -> None:
    base = np.random.default_rng(4).uniform(1, 3, 50)
    other = base + np.random.default_rng(5).uniform(-1, 1, 50)
    questions = [f"q{number}" for number in range(50)]
    once = paired_intervals(base.tolist(), other.tolist())
    named = paired_intervals(base.tolist(), other.tolist(), questions=questions)
    for interval, same in zip(once, named, strict=True):
        assert interval is not None
        assert same is not None
        assert same.as_list() == pytest.approx(interval.as_list())
    four = ([*base] * 4, [*other] * 4)
    again = paired_intervals(*four, questions=questions * 4)
    alone = paired_intervals(*four)
    assert again[0].as_list() == pytest.approx(once[0].as_list())  # they say nothing new
    assert alone[0].high - alone[0].low < 0.6 * (again[0].high - again[0].low)


def test_a_question_counts_as_often_as_it_comes() -> None:
    difference, ratio = paired_intervals([1, 1, 4], [2, 2, 8], questions=["a", "a", "b"])
    assert difference.value == pytest.approx(2)  # (1 + 1 + 4) / 3
    assert ratio is not None
    assert ratio.as_list() == pytest.approx([0.5, 0.5, 0.5])
