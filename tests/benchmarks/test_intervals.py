from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parts.stats.intervals import geometric_mean_ratio, mean_ratio, median_ratio
from scipy import stats


def test_ratios_of_averages_are_scipys() -> None:
    base, ours = np.random.default_rng(0).uniform(1, 3, (2, 60))
    for function, average in ((median_ratio, np.median), (mean_ratio, np.mean)):

        def ratio(first: Any, second: Any, axis: int, average: Any = average) -> Any:
            return average(first, axis=axis) / average(second, axis=axis)

        expected = stats.bootstrap(
            (base, ours), ratio, paired=True, method="percentile", rng=5
        ).confidence_interval
        interval = function(base.tolist(), ours.tolist())
        assert interval.value == pytest.approx(average(base) / average(ours))
        assert interval.low == pytest.approx(expected.low, abs=0.03)
        assert interval.high == pytest.approx(expected.high, abs=0.03)


def test_points_of_different_lengths_count_alike() -> None:
    points = [([4.0] * 7, [1.0] * 7), ([1.0] * 30, [1.0] * 30), ([2.0], [1.0])]
    assert geometric_mean_ratio(points).as_list() == pytest.approx([2, 2, 2])


def test_pairs_are_drawn_within_their_point() -> None:
    easy = np.random.default_rng(0).uniform(1, 100, 40)
    points = [(easy.tolist(), (easy / 2).tolist()), ((3 * easy).tolist(), (3 * easy).tolist())]
    # As a pair has the same ratio everywhere, any resample of pairs has it, too.
    assert geometric_mean_ratio(points, average=np.mean).as_list() == pytest.approx([2**0.5] * 3)
