"""Exact probabilities, and how far they reach."""

from __future__ import annotations

import pytest
from scipy.stats import binom, binomtest

from ragcache_workbench.cache_report.replay import Count, Proof, least_hits, prove, tail


@pytest.mark.parametrize(
    ("wrong", "hits", "share"),
    [(0, 0, 0.01), (0, 299, 0.01), (7, 900, 0.01), (9, 9, 0.5), (150, 20_000, 0.01)],
)
def test_the_tail_is_the_binomial_distributions(wrong: int, hits: int, share: float) -> None:
    assert tail(wrong, hits, share) == pytest.approx(binom.cdf(wrong, hits, share), rel=1e-9)


@pytest.mark.parametrize(("count", "total"), [(0, 50), (50, 50), (3, 700), (400, 1000)])
def test_intervals_are_exact(count: int, total: int) -> None:
    expected = binomtest(count, total).proportion_ci(0.95)
    assert Count(count, total).interval() == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_nothing_has_the_widest_interval() -> None:
    assert Count(0, 0).interval() == (0, 1)
    assert Count(0, 0).share == 0


def test_hits_without_a_wrong_one_that_are_enough() -> None:
    assert least_hits(0.01) == 299
    assert tail(0, 299, 0.01) <= 0.05 < tail(0, 298, 0.01)


def test_the_test_stops_at_the_first_failure() -> None:
    good, bad = Count(0, 500), Count(5, 500)
    assert prove([good, good, bad, good], 0.01) == Proof(1, 2, None)
    assert prove([good, good], 0.01) == Proof(1, None, None)
    assert prove([bad, good], 0.01).taken is None


def test_tolerances_with_too_few_hits_for_any_proof_are_left_out() -> None:
    assert prove([Count(0, 298), Count(0, 299)], 0.01) == Proof(1, None, None)
    # Left out for the number of hits alone: how many were wrong does not matter.
    assert prove([Count(298, 298), Count(0, 299)], 0.01).taken == 1
    assert prove([Count(1, 299), Count(0, 2000)], 0.01).taken is None


@pytest.mark.parametrize("counts", [[Count(0, 0)], [Count(0, 100), Count(0, 60)]])
def test_what_is_missing_without_a_wrong_hit(counts: list[Count]) -> None:
    assert prove(counts, 0.01) == Proof(None, 0, 299 - counts[0].total)


def test_what_is_missing_where_some_are_wrong() -> None:
    proof = prove([Count(2, 400)], 0.01)
    assert proof.more_hits is not None
    total = 400 + proof.more_hits
    assert total > 900
    assert tail(-(-total // 200), total, 0.01) <= 0.05
    assert prove([Count(4, 400)], 0.01).more_hits is None
