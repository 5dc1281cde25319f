"""The learnt tolerance keeps its bound, saves nearly what can be saved, and follows shifts."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.tolerance import (
    MOST_TENANTS,
    AdaptiveTolerance,
    TenantTolerances,
    _Evidence,
    _interval,
)

Floats = NDArray[np.float64]
Curve = Callable[[Floats], Floats]

QUERIES = 10_000
BOUND = 0.01


def clean(distance: Floats) -> Floats:
    return np.where(distance > 0.75, 0.95, 0.0)


def steep(distance: Floats) -> Floats:
    return 1 / (1 + np.exp(-(distance - 0.6) / 0.03))


def steep_over_a_floor(distance: Floats) -> Floats:
    return np.maximum(0.002, steep(distance))


def gradual(distance: Floats) -> Floats:
    return np.where(distance > 0.8, 0.95, 0.06 * (distance / 0.6) ** 4)


def near_duplicates(distance: Floats) -> Floats:
    """Similar questions with other answers, among the repeats themselves."""
    near = 0.08 / (1 + np.exp(-(distance - 0.3) / 0.03))
    return np.where(distance > 0.8, 0.95, near)


def always(distance: Floats) -> Floats:
    return np.ones_like(distance)


def never(distance: Floats) -> Floats:
    return np.zeros_like(distance)


@dataclass
class Stream:
    """Distances to the nearest entry, and whether its answer violates."""

    distances: Floats
    violates: NDArray[np.bool_]

    def __add__(self, other: Stream) -> Stream:
        return Stream(
            np.concatenate([self.distances, other.distances]),
            np.concatenate([self.violates, other.violates]),
        )

    def best_fixed(self, rate: float = BOUND) -> int:
        """Calls saved by the best fixed tolerance with at most that rate, chosen in hindsight."""
        violations = np.cumsum(self.violates[np.argsort(self.distances)])
        hits = np.arange(1, len(violations) + 1)
        return int(hits[violations <= rate * hits].max(initial=0))


def stream(
    curve: Curve, seed: int, queries: int = QUERIES, repeats: float = 0.3, topics: int = 500
) -> Stream:
    """Zipf's law over the topics. The first question about each has no entry nearby."""
    rng = np.random.default_rng(seed)
    popularity = np.arange(1, topics + 1) ** -0.8
    topic = rng.choice(topics, size=queries, p=popularity / popularity.sum())
    is_new = np.zeros(queries, dtype=bool)
    is_new[np.unique(topic, return_index=True)[1]] = True
    distances = np.where(
        is_new, rng.normal(1.15, 0.07, queries), np.abs(rng.normal(repeats, 0.1, queries))
    )
    return Stream(distances, rng.random(queries) < curve(distances))


@dataclass
class Outcome:
    hits: int
    violations: int
    most_over: float  # violations beyond the bound's share of the hits, at the worst time
    checks: int

    @property
    def saved(self) -> int:
        return self.hits - self.checks

    @property
    def violation_rate(self) -> float:
        return self.violations / max(self.hits, 1)


def serve(tolerance: AdaptiveTolerance, queries: Stream) -> Outcome:
    hits = violations = checks = 0
    most_over = 0.0
    for distance, violates in zip(
        queries.distances.tolist(), queries.violates.tolist(), strict=True
    ):
        if distance > tolerance.value:
            tolerance.observe(distance, violates, served=False)
            continue
        hits += 1
        violations += violates
        most_over = max(most_over, violations - BOUND * hits)
        if tolerance.wants_check(distance):
            checks += 1
            tolerance.observe(distance, violates, served=True)
    return Outcome(hits, violations, most_over, checks)


def feed(tolerance: AdaptiveTolerance, count: int, distance: float = 0.3) -> None:
    for _ in range(count):
        tolerance.observe(distance, violated=False, served=False)


def learnt(**knobs: Any) -> AdaptiveTolerance:
    """One that has learnt to serve at 0.3."""
    tolerance = AdaptiveTolerance(**knobs)
    feed(tolerance, 600)
    assert 0.3 <= tolerance.value < 0.32
    return tolerance


class TestSavings:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("start", [None, 0.01, 5.0])
    @pytest.mark.parametrize(("curve", "share"), [(clean, 0.9), (steep, 0.8)])
    def test_nearly_all_is_saved_wherever_it_starts(
        self, curve: Curve, share: float, start: float | None, seed: int
    ) -> None:
        queries = stream(curve, seed)
        outcome = serve(AdaptiveTolerance(start=start, seed=seed), queries)
        assert outcome.violation_rate < BOUND
        assert outcome.saved >= share * queries.best_fixed(outcome.violation_rate)

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize(
        ("curve", "share"), [(steep_over_a_floor, 0.7), (gradual, 0.6), (near_duplicates, 0.1)]
    )
    def test_rates_near_the_bound_take_longer(self, curve: Curve, share: float, seed: int) -> None:
        queries = stream(curve, seed)
        outcome = serve(AdaptiveTolerance(seed=seed), queries)
        assert outcome.violation_rate < BOUND
        assert outcome.saved >= share * queries.best_fixed(outcome.violation_rate)

    def test_nothing_is_served_where_everything_violates(self) -> None:
        outcome = serve(AdaptiveTolerance(), stream(always, seed=0))
        assert outcome.hits == 0

    def test_a_wrong_belief_costs_one_violation(self) -> None:
        outcome = serve(AdaptiveTolerance(start=math.inf), stream(always, seed=0))
        assert (outcome.hits, outcome.violations, outcome.checks) == (1, 1, 1)

    def test_the_scale_of_distances_does_not_matter(self) -> None:
        queries = stream(clean, seed=0)
        queries.distances *= 700
        outcome = serve(AdaptiveTolerance(), queries)
        assert outcome.violation_rate < BOUND
        assert outcome.saved >= 0.9 * queries.best_fixed()


class TestShifts:
    @pytest.mark.parametrize("seed", range(4))
    def test_worse_times_close_what_they_spoil(self, seed: int) -> None:
        tolerance = AdaptiveTolerance(seed=seed)
        before = serve(tolerance, stream(clean, seed))
        after = serve(tolerance, stream(near_duplicates, seed + 100))
        assert before.violations + after.violations < BOUND * (before.hits + after.hits)
        # Two or three checks must fail, each after at most 33 violations on average.
        assert after.most_over < 100
        assert 0 < tolerance.value < 0.3

    @pytest.mark.parametrize("seed", range(4))
    def test_better_times_are_used(self, seed: int) -> None:
        tolerance = AdaptiveTolerance(seed=seed)
        serve(tolerance, stream(always, seed))
        assert tolerance.value == 0
        better = stream(clean, seed + 100)
        outcome = serve(tolerance, better)
        assert outcome.violation_rate < BOUND
        assert outcome.saved >= 0.8 * better.best_fixed()

    @pytest.mark.parametrize("seed", range(20))
    def test_few_violations_are_served_before_all_is_closed(self, seed: int) -> None:
        tolerance = learnt(seed=seed)
        bad = Stream(np.full(2_000, 0.3), np.ones(2_000, dtype=np.bool_))
        outcome = serve(tolerance, bad)
        assert tolerance.value < 0.3
        # The first check ends it: a geometric number of hits, mean 33; one in 20,000 is longer.
        assert outcome.violations <= 330
        assert tolerance.report().failures == 1


def _labels_to_pass(evidence: _Evidence) -> int:
    for count in itertools.count():
        if evidence.passed:
            return count
        evidence.add(0.5, violated=False)
    raise AssertionError


class TestStatistics:
    @given(
        # Mostly clean: otherwise nobody bets.
        st.lists(st.tuples(st.integers(0, 8), st.integers(0, 19).map(lambda draw: draw == 19))),
        st.integers(0, 8),
        st.sampled_from([0.1, 0.5]),
    )
    def test_at_the_bound_no_gambler_gains_on_average(
        self, past: list[tuple[int, bool]], distance: int, rate: float
    ) -> None:
        evidence = _Evidence(np.linspace(1, 8, 8), rate, error=0.3)
        for earlier, violated in past * 3:
            evidence.add(earlier, violated)
        # Where a threshold is wrong, so are the wider ones, but not the narrower ones.
        assert all(target == -1 or target >= own for own, target in enumerate(evidence._targets))
        before = evidence.state()
        expected = np.zeros(8)
        goes_on = np.ones(8, dtype=np.bool_)
        for violated, probability in ((False, 1 - rate), (True, rate)):
            after = copy.deepcopy(evidence)
            after.add(distance, violated)
            gained = np.array(after.state()["log_capital"]) - before["log_capital"]
            expected += probability * np.exp(gained)
            goes_on &= np.equal(after.state()["runs"], before["runs"])
        # A new run has its own capital and its own share of the error.
        assert (expected[goes_on] <= 1 + 1e-12).all()

    def test_clean_labels_pass_when_the_capital_has_grown_to_the_price(self) -> None:
        evidence = _Evidence(np.array([1.0]), BOUND, error=0.05)
        bets = math.log(math.pi**2 / 6 / 0.05) / math.log(1 + 0.75 * 0.01 / 0.99)
        assert _labels_to_pass(evidence) == 10 + math.ceil(bets) == 473

    def test_a_ruined_gambler_needs_more_the_next_time(self) -> None:
        evidence = _Evidence(np.array([1.0]), BOUND, error=0.05)
        for clean_labels in (20, 200):
            for violated in [False] * clean_labels + [True]:
                evidence.add(0.5, violated)
        assert evidence.state()["runs"] == [2]
        more = 2 * math.log(2) / math.log(1 + 0.75 * 0.01 / 0.99)
        assert _labels_to_pass(evidence) > 473 + more

    def test_a_wide_threshold_wins_nothing_by_a_narrow_one(self) -> None:
        tolerance = AdaptiveTolerance()
        for number in range(600):
            tolerance.observe(0.1, violated=False, served=False)
            tolerance.observe(0.5, violated=number % 2 == 0, served=False)
            assert tolerance.value < 0.5
        assert tolerance.value >= 0.1

    def test_a_threshold_waits_for_the_narrower_ones(self) -> None:
        evidence = _Evidence(np.array([1.0, 2.0]), BOUND, error=0.05)
        # The first gambler loses to a violation before the second has begun to bet.
        for distance, violated in [(1.5, True), *[(0.5, False)] * 20, (0.5, True)]:
            evidence.add(distance, violated)
        while not evidence.state()["has_passed"][1]:
            evidence.add(1.5, violated=False)
        assert not evidence.state()["has_passed"][0]
        assert evidence.passed == 0

    def test_a_rate_at_the_bound_hardly_ever_passes(self) -> None:
        # Violations just as often as may not be, at all distances: every threshold is wrong.
        passed = 0
        for seed in range(60):
            rng = np.random.default_rng(seed)
            tolerance = AdaptiveTolerance(max_violation=0.2, confidence=0.8, seed=seed)
            labels = zip(rng.random(300).tolist(), (rng.random(300) < 0.2).tolist(), strict=True)
            for distance, violated in labels:
                tolerance.observe(distance, violated, served=False)
                if tolerance.value > 0:
                    passed += 1
                    break
        # At most 12 are expected; three standard deviations more.
        assert passed <= 21

    def test_clean_labels_open_distances_no_farther_than_they_lie(self) -> None:
        tolerance = AdaptiveTolerance()
        feed(tolerance, 600, distance=0.2)
        assert 0.2 <= tolerance.value < 0.213  # thresholds lie 6 % apart
        feed(tolerance, 1, distance=0.4)
        assert 0.4 <= tolerance.value < 0.425

    def test_the_interval_hardly_ever_misses_the_rate_at_any_time(self) -> None:
        missed = 0
        for seed in range(200):
            draws = np.random.default_rng(seed).random(300) < 0.03
            for count in (10, 30, 100, 300):
                low, high = _interval(count, int(draws[:count].sum()), 0.01, error=0.1)
                assert 0 <= low <= draws[:count].mean() <= high <= 1
                if not low <= 0.03 <= high:
                    missed += 1
                    break
        # At most 20 are expected; three standard deviations more.
        assert missed <= 32

    def test_the_interval_narrows(self) -> None:
        highs = [_interval(count, 0, 0.01, error=0.05)[1] for count in (0, 1, 10, 100, 1_000)]
        assert highs[0] == 1
        assert highs == sorted(highs, reverse=True)
        assert highs[-1] < 0.01

    def test_the_interval_ends_where_the_rate_is_just_refuted(self) -> None:
        # One label under the prior beta(1/2, 1/2): the mixture gives it 1/2.
        low, high = _interval(1, 1, centre=1.0, error=0.05)
        assert low == pytest.approx(0.5 * 0.05)
        assert high == 1


class TestChecks:
    def test_the_same_query_needs_no_check(self) -> None:
        tolerance = learnt(shadow_rate=1.0)
        assert not tolerance.wants_check(0.0)
        assert tolerance.wants_check(0.1)

    def test_the_same_query_teaches_nothing(self) -> None:
        tolerance = AdaptiveTolerance()
        feed(tolerance, 600, distance=0.0)
        assert (tolerance.value, tolerance.report().labels) == (0.0, 0)

    def test_even_the_same_query_closes_everything_where_it_violates(self) -> None:
        tolerance = learnt()
        tolerance.observe(0.0, violated=True, served=False)
        assert tolerance.value == 0

    def test_the_share_is_as_asked_for(self) -> None:
        tolerance = learnt(shadow_rate=0.1)
        checks = sum(tolerance.wants_check(0.2) for _ in range(10_000))
        assert abs(checks - 1_000) < 4 * 30  # standard deviation

    def test_a_belief_is_checked_every_time(self) -> None:
        tolerance = AdaptiveTolerance(start=0.5)
        assert tolerance.value == 0.5
        assert all(tolerance.wants_check(0.4) for _ in range(100))

    def test_a_failure_makes_them_frequent_for_a_while(self) -> None:
        tolerance = learnt()
        feed(tolerance, 600, distance=0.1)
        tolerance.observe(0.2, violated=True, served=True)
        assert 0.1 <= tolerance.value < 0.2
        first, later = (
            sum(tolerance.wants_check(0.1) for _ in range(count)) / count for count in (20, 5_000)
        )
        assert first > 0.5
        assert later < 0.06

    def test_they_differ_after_a_reload(self) -> None:
        tolerance = learnt(shadow_rate=0.5)
        before = [tolerance.wants_check(0.2) for _ in range(50)]
        reloaded = AdaptiveTolerance.from_state(tolerance.state())
        assert [reloaded.wants_check(0.2) for _ in range(50)] != before


DISTANCES = st.one_of(st.sampled_from([0.1, 0.3, 0.5]), st.floats(0, 1e6))
LABELS = st.lists(st.tuples(DISTANCES, st.booleans(), st.integers(1, 40)), max_size=40)
# Lax enough that tolerances rise and fall within a few labels.
LAX = st.builds(
    AdaptiveTolerance,
    max_violation=st.sampled_from([0.1, 0.4, 0.9]),
    confidence=st.sampled_from([0.3, 0.8]),
    start=st.none() | st.floats(0, math.inf),
    largest=st.sampled_from([0.0, 1e-5, 0.4, 2.0, math.inf]),
    shadow_rate=st.sampled_from([0.05, 1.0]),
    seed=st.integers(0, 3),
)


class TestProperties:
    @given(LAX, LABELS)
    def test_whatever_it_sees(
        self, tolerance: AdaptiveTolerance, labels: list[tuple[float, bool, int]]
    ) -> None:
        assert 0 <= tolerance.value <= tolerance.largest
        for distance, violated, times in labels:
            for _ in range(times):
                before = tolerance.value
                served = distance <= before
                tolerance.wants_check(distance)
                tolerance.observe(distance, violated, served=served)
                value = tolerance.value
                assert 0 <= value <= tolerance.largest
                assert value < math.inf
                if violated:
                    assert value <= before
                    assert not served or value < distance or value == 0
                else:
                    assert value >= before
        report = tolerance.report()
        assert report.history[-1][1] == report.tolerance == tolerance.value
        assert report.failures <= report.shadow_checks <= report.labels
        low, high = report.violation_rate
        assert 0 <= low <= high <= 1

    @given(LAX, LABELS, LABELS)
    def test_a_reloaded_one_goes_on_the_same(
        self,
        tolerance: AdaptiveTolerance,
        before: list[tuple[float, bool, int]],
        after: list[tuple[float, bool, int]],
    ) -> None:
        for distance, violated, _ in before:
            tolerance.observe(distance, violated, served=False)
        saved = json.dumps(tolerance.state(), allow_nan=False)
        reloaded = AdaptiveTolerance.from_state(json.loads(saved))
        assert reloaded.state() == tolerance.state()
        for distance, violated, times in after:
            for one in (tolerance, reloaded):
                for _ in range(times):
                    one.observe(distance, violated, served=False)
            assert reloaded.value == tolerance.value
        assert reloaded.report() == tolerance.report()

    def test_nothing_wider_than_the_largest_is_learnt(self) -> None:
        tolerance = AdaptiveTolerance(largest=0.25)
        serve(tolerance, stream(never, seed=0))
        assert tolerance.value == 0.25

    def test_no_scale_is_too_large_to_stay_safe(self) -> None:
        tolerance = AdaptiveTolerance()
        feed(tolerance, 600, distance=1e30)
        feed(tolerance, 1, distance=math.inf)
        assert tolerance.value == 0


class TestReport:
    def test_it_tells_what_was_spent(self) -> None:
        tolerance = learnt(target_recall=0.8)
        learnt_after, first_value = tolerance.report().history[1]
        tolerance.wants_check(0.2)
        tolerance.observe(0.2, violated=True, served=True)
        report = tolerance.report()
        assert report.target_recall == 0.8
        assert (report.labels, report.hits) == (601, 1)
        assert (report.shadow_checks, report.failures) == (1, 1)
        assert report.tolerance == tolerance.value < 0.2
        assert 300 < learnt_after < 600
        assert first_value >= 0.3
        assert report.history[-1] == (601, report.tolerance)
        low, high = report.violation_rate
        assert 0 < low < high == 1


class TestBadInput:
    @pytest.mark.parametrize(
        ("knobs", "message"),
        [
            ({"target_recall": 0}, "target_recall must be a number above 0 and at most 1"),
            ({"max_violation": 1}, "max_violation must be a number above 0 and below 1, got 1"),
            ({"max_violation": math.nan}, "max_violation must be"),
            ({"confidence": 1.0}, "confidence must be a number above 0 and below 1"),
            ({"start": -0.1}, "start must be a number from 0"),
            ({"start": "0.3"}, "start must be a number from 0"),
            ({"largest": math.nan}, "largest must be a number from 0"),
            ({"shadow_rate": 0}, "shadow_rate must be"),
            ({"seed": -1}, "seed must be a whole number"),
        ],
    )
    def test_arguments_out_of_range_are_refused(self, knobs: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            AdaptiveTolerance(**knobs)

    @pytest.mark.parametrize("distance", [-1.0, math.nan])
    def test_a_distance_that_is_none_is_refused(self, distance: float) -> None:
        tolerance = AdaptiveTolerance()
        with pytest.raises(ConfigurationError, match="distance must be a number from 0, got"):
            tolerance.observe(distance, violated=False, served=False)
        assert tolerance.report().labels == 0

    @pytest.mark.parametrize("name", sorted(AdaptiveTolerance().state()))
    def test_a_state_that_lacks_something_is_refused(self, name: str) -> None:
        state = AdaptiveTolerance().state()
        del state[name]
        with pytest.raises(ConfigurationError, match=name):
            AdaptiveTolerance.from_state(state)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("max_violation", 0),
            ("largest", 2.0),  # other thresholds
            ("labels", -1),
            ("checks", 7),  # more than labels
            ("failures", 0.5),
            ("quiet_hits", math.nan),
            ("history", [[1]]),
            ("history", [[1, math.nan]]),
            ("history", None),
            ("evidence", {}),
            ("evidence", []),
        ],
    )
    def test_a_state_with_something_else_in_it_is_refused(self, name: str, value: object) -> None:
        state = AdaptiveTolerance().state() | {name: value}
        with pytest.raises(ConfigurationError, match="must be"):
            AdaptiveTolerance.from_state(state)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("log_capital", math.nan),
            ("log_capital", "1"),
            ("labels", -1),
            ("merit", math.inf),
            ("runs", 0),
            ("has_passed", None),
        ],
    )
    def test_evidence_that_cannot_be_is_refused(self, name: str, value: object) -> None:
        state = AdaptiveTolerance().state()
        state["evidence"][name][0] = value
        with pytest.raises(ConfigurationError, match="must be"):
            AdaptiveTolerance.from_state(state)

    @pytest.mark.parametrize("state", [None, [], {}, "state", 1])
    def test_what_is_no_state_is_refused(self, state: Any) -> None:
        with pytest.raises(ConfigurationError, match="must be what state"):
            AdaptiveTolerance.from_state(state)


class TestTenants:
    def test_each_learns_for_itself(self) -> None:
        """And the numbers of all are the sums of theirs."""
        tenants = TenantTolerances(AdaptiveTolerance)
        alone = {name: AdaptiveTolerance() for name in "ab"}
        for tenant, tolerance in alone.items():
            labels = stream(clean if tenant == "a" else always, seed=3)
            for distance, violated in zip(labels.distances, labels.violates, strict=True):
                tolerance.observe(distance, bool(violated), served=False)
                tenants.observe(tenant, distance, bool(violated), served=False)
            assert tenants.value(tenant) == tolerance.value
        assert tenants.value("a") == tenants.widest == tenants.reach > 0
        assert tenants.value("b") == tenants.value("c") == 0
        report = tenants.report()
        assert report.labels == sum(tolerance.report().labels for tolerance in alone.values())
        assert (report.tolerance, report.tenants) == (tenants.widest, 2)

    def test_a_violation_ends_the_start_of_its_own_tenant(self) -> None:
        tenants = TenantTolerances(lambda: AdaptiveTolerance(start=0.5))
        assert tenants.wants_check("a", 0.2)
        tenants.observe("a", 0.2, violated=True, served=True)
        assert (tenants.value("a"), tenants.value("b")) == (0, 0.5)
        assert (tenants.widest, tenants.reach) == (0, 0.5)  # of those that learnt, and of others

    def test_there_is_room_for_so_many_and_who_is_forgotten_starts_again(self) -> None:
        tenants = TenantTolerances(lambda: AdaptiveTolerance(start=0.5))
        tenants.observe("first", 0.2, violated=True, served=True)
        for number in range(MOST_TENANTS - 1):
            tenants.wants_check(number, 0.1)
        assert tenants.value("first") == 0
        tenants.wants_check("one more", 0.1)
        assert tenants.value("first") == 0.5
        assert tenants.report().tenants == len(tenants.states()) == MOST_TENANTS

    def test_they_continue_where_they_were_saved(self) -> None:
        tenants = TenantTolerances(AdaptiveTolerance)
        for distance in np.linspace(0, 0.5, 600):
            tenants.observe(("a", 1), distance, violated=False, served=False)
        states = json.loads(json.dumps([state for _, state in tenants.states()]))
        again = tenants.restore([(("a", 1), states[0])])
        assert again is not None
        assert again.value(("a", 1)) == again.widest == tenants.widest > 0.4
        other = TenantTolerances(lambda: AdaptiveTolerance(max_violation=0.5))
        assert other.restore([(("a", 1), states[0])]) is None
        with pytest.raises(ConfigurationError, match="must be what state"):
            tenants.restore([("a", {})])
