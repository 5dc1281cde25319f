from __future__ import annotations

import numpy as np
import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.evaluation.scores.intervals import paired_difference, paired_ratio


def test_pairs_are_kept_together() -> None:
    rng = np.random.default_rng(0)
    easy = rng.uniform(0, 100, 200)  # questions differ much, systems little
    found = paired_difference(easy.tolist(), (easy + 1).tolist())
    assert found.value == pytest.approx(1)
    assert found.as_list() == pytest.approx([1, 1, 1])
    apart = paired_difference(easy.tolist(), rng.permutation(easy + 1).tolist())
    assert apart.high - apart.low > 5


def test_it_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        base = rng.normal(0, 3, 60)
        other = base + rng.normal(0.5, 1, 60)
        found = paired_difference(base.tolist(), other.tolist(), resamples=500)
        covered += found.low <= 0.5 <= found.high
    assert 178 <= covered <= 200  # 95 % of 200, give or take four standard deviations


def test_by_hand() -> None:
    found = paired_difference([1.0, 2.0, 3.0], [2.0, 2.0, 5.0], seed=3)
    # All resamples of three pairs, of which each is as likely: the differences are 1, 0 and 2.
    rng = np.random.default_rng(3)
    drawn = np.array([1.0, 0.0, 2.0])[rng.integers(0, 3, size=(4000, 3))].mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    assert found.as_list() == pytest.approx([1.0, low, high])
    assert str(found) == f"1.000 [{low:.3f}, {high:.3f}]"


def test_ratio_and_medians() -> None:
    found = paired_ratio([2.0, 4.0, 90.0], [1.0, 2.0, 45.0], statistic="median")
    assert found is not None
    assert found.as_list() == [2.0, 2.0, 2.0]
    assert paired_ratio([1.0, 2.0], [0.0, 0.0]) is None
    assert paired_difference([1.0], [3.0], statistic="p99").value == 2


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
        ([1.0], [1.0], {"statistic": "mode"}, "one of mean, median, p99"),
        ([1.0], [1.0], {"resamples": 0}, "at least 1"),
    ],
)
def test_bad_input(
    base: list[float], other: list[float], arguments: dict[str, int], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        paired_difference(base, other, **arguments)  # type: ignore[arg-type]  # that is the point
