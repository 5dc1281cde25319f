"""A tolerance nobody has to guess: learnt online, with a bound on the share of violations.

A *violation* is an answer of the cache whose recall is below the target. A *label* says whether
the nearest entry's answer, at some distance, is or would have been one. Misses give labels for
nothing, because the store is searched anyway; a hit gives one where it is checked against the
store. The tolerance is the widest threshold of a fixed grid that has passed its test, and reaches
no farther than the farthest label without a violation: nothing is extrapolated.

**The test.** For every threshold a gambler bets against the hypothesis that, of the queries within
it, at least ``max_violation`` violate. Each label within the threshold multiplies the gambler's
capital, 1 at first, by ``1 + bet * (max_violation - violated)``. Under the hypothesis no such bet
is favourable, so the capital ever reaches ``1 / error`` with a probability of at most ``error``,
no matter when you check (Ville's inequality). See Waudby-Smith and Ramdas, "Estimating means of
bounded random variables by betting", JRSS-B 86 (2024), https://arxiv.org/abs/2010.09686.
A threshold counts once it and all narrower ones have passed, which needs no correction for their
number (fixed-sequence testing: Angelopoulos et al., "Learn then Test", 2021,
https://arxiv.org/abs/2110.01052). Narrow thresholds hardly see a label, but need not wait for any:
if violations do not get rarer with distance, a threshold's hypothesis implies those of all wider
ones, so its gambler may bet on any of them, and bets on the one that has paid best so far.

**What holds.**

1. While queries are drawn from one distribution in which violations do not get rarer with distance:
   with probability ``confidence`` the tolerance never, at any time, admits a share of violations of
   ``max_violation`` or more. Restarts are included: the r-th run of a test spends ``6 / (pi r)**2``
   of the permitted error. Labels favour the far hits, which under the same condition makes the test
   stricter.
2. For any sequence of queries: each hit at a distance above 0 is checked with a probability of at
   least ``shadow_rate``, and the first failed check closes all distances from its own on. So the
   expected number of violating hits between two failed checks is at most ``1 / shadow_rate``, the
   price of a shift.

After a failed check the gamblers of the closed distances keep a quarter of the capital that passing
takes, however much they had. Old evidence weighs no more than that: where violations have become
too frequent, a distance is opened again with a probability of at most a quarter, and that only to
be closed by the next failed check. A gambler that is ruined begins a new run, so that a bad past is
not held against better times for ever.

By the defaults 473 labels open a threshold if none of them violates. The closer the rate is to the
bound, the more it takes: about 870 at a quarter of it, 1,200 at a third, 6,000 at half.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ragcache_integrations.core.checks import check_int, check_share
from ragcache_integrations.core.memo import Memo
from ragcache_integrations.errors import ConfigurationError

from .validation import check_below_one, check_tolerance

__all__ = ["MOST_TENANTS", "AdaptiveTolerance", "TenantTolerances", "ToleranceReport"]

MOST_TENANTS = 1024
"""Tenants whose tolerances are remembered, at about 13 KiB each."""

# Thresholds: 6 % apart. They need no knowledge of the embeddings' scale.
_NARROWEST, _WIDEST, _PER_DECADE = 1e-4, 1e4, 40
# The share of its capital that a gambler loses to a violation. With this one it grows fastest where
# the rate is a quarter of the bound, and three quarters as fast as any could where it is none.
_STAKE = 0.75
# No bets on a threshold that has done worse than one with so many labels, all of them clean.
_FEWEST_LABELS = 10
# After a failed check, checks become rarer over about so many hits.
_ALERT_HITS = 20
_HISTORY = 256

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ToleranceReport:
    """What has been learnt, and what it cost.

    Attributes:
        tolerance: The largest distance at which an answer is served, now.
        target_recall: An answer with less is a violation.
        max_violation: The share of violations among hits stays below this.
        confidence: How surely, and how surely ``violation_rate`` holds.
        violation_rate: Low and high end of an interval for the share of violations among the hits
            that were checked, valid at all times at once. Wide at first.
        labels: Labels seen, free ones and checks.
        hits: Hits at a distance above 0.
        shadow_checks: Hits that were checked: calls of the store spent.
        failures: Checks that found a violation.
        history: (labels so far, tolerance) where the tolerance changed, the latest ones.
        tenants: How many tenants have learnt. With several, numbers are sums over them, and
            ``tolerance`` and ``history`` are those of the tenant with the widest one.
    """

    tolerance: float
    target_recall: float
    max_violation: float
    confidence: float
    violation_rate: tuple[float, float]
    labels: int
    hits: int
    shadow_checks: int
    failures: int
    history: tuple[tuple[int, float], ...]
    tenants: int = 1


class AdaptiveTolerance:
    """Learns the largest tolerance whose hits keep their recall; see the module for what is proven.

    Not thread-safe: the cache that owns it has a lock::

        tolerance = AdaptiveTolerance(target_recall=0.9)
        tolerance.observe(distance=0.2, violated=False, served=False)  # the label of a miss
        tolerance.value  # the largest distance at which to serve

    Args:
        target_recall: An answer with less is a violation. The caller of :meth:`observe` compares.
        max_violation: The share of violations among hits to stay below.
        confidence: How surely, over all times together.
        start: A tolerance to begin with: served from the start, but with every hit checked, and
            abandoned at the first violation. ``None`` serves nothing before it is tested.
        largest: No tolerance above it is used. Distances above 10,000 are never served anyway.
        shadow_rate: The share of hits checked in the long run.
        seed: Decides which hits are checked.

    Attributes:
        value: The tolerance now: the largest distance at which to serve.
        target_recall: An answer with less recall is a violation.
        largest: The largest tolerance there can be.

    Raises:
        ConfigurationError: An argument is out of its range.
    """

    def __init__(
        self,
        *,
        target_recall: float = 0.95,
        max_violation: float = 0.01,
        confidence: float = 0.95,
        start: float | None = None,
        largest: float = math.inf,
        shadow_rate: float = 0.03,
        seed: int = 0,
    ) -> None:
        self.target_recall = check_share("target_recall", target_recall)
        self._max_violation = check_below_one("max_violation", max_violation)
        self._confidence = check_below_one("confidence", confidence)
        self.largest = float(check_tolerance(largest, name="largest"))
        self._shadow_rate = check_share("shadow_rate", shadow_rate)
        self._seed = check_int("seed", seed, 0)
        self._start: float | None = None
        if start is not None:
            start = float(check_tolerance(start, name="start"))
            self._start = min(start, self.largest, _WIDEST)
        self._random = np.random.default_rng(self._seed)
        self._evidence = _Evidence(
            _thresholds(self.largest), self._max_violation, 1 - self._confidence
        )
        self._labels = self._hits = self._checks = self._failures = 0
        self._quiet_hits: float = math.inf  # since the last failed check
        self.value = self._start or 0.0
        self._history = deque([(0, self.value)], maxlen=_HISTORY)

    def wants_check(self, distance: float) -> bool:
        """Decide whether a hit is to be checked. To be asked once for every hit that is served.

        Args:
            distance: From the query to the entry that answers it. At 0 the answer is the store's
                own, and nothing is checked.
        """
        if distance == 0:
            return False
        self._hits += 1
        self._quiet_hits += 1
        if distance > self._evidence.passed:
            return True
        rate = max(self._shadow_rate, _ALERT_HITS / (_ALERT_HITS + self._quiet_hits))
        return bool(self._random.random() < rate)

    def observe(self, distance: float, violated: bool, *, served: bool) -> None:
        """Learn from a label.

        Args:
            distance: From the query to its nearest entry.
            violated: Whether that entry's answer has, or would have had, less recall than
                ``target_recall``.
            served: Whether it was served and then checked. Otherwise it is a miss's label.

        Raises:
            ConfigurationError: The distance is negative or NaN.
        """
        if not distance >= 0:
            raise ConfigurationError(f"distance must be a number from 0, got {distance!r}")
        if distance == 0 and not violated:
            return  # the store's own answer, as in wants_check: it would only dilute the others
        self._labels += 1
        self._checks += bool(served)
        self._failures += bool(served and violated)
        if violated and distance <= self.value:
            self._start = None
            self._quiet_hits = 0
        self._evidence.add(distance, violated)
        value = max(self._evidence.passed, self._start or 0.0)
        if value != self.value:
            self.value = value
            self._history.append((self._labels, value))

    def report(self) -> ToleranceReport:
        """Return what has been learnt so far."""
        return ToleranceReport(
            tolerance=self.value,
            target_recall=self.target_recall,
            max_violation=self._max_violation,
            confidence=self._confidence,
            violation_rate=_interval(
                self._checks, self._failures, self._max_violation, 1 - self._confidence
            ),
            labels=self._labels,
            hits=self._hits,
            shadow_checks=self._checks,
            failures=self._failures,
            history=tuple(self._history),
        )

    def state(self) -> dict[str, Any]:
        """Return all that has been learnt, as JSON can hold it, for :meth:`from_state`."""
        return {
            "target_recall": self.target_recall,
            "max_violation": self._max_violation,
            "confidence": self._confidence,
            "start": self._start,
            "largest": None if math.isinf(self.largest) else self.largest,
            "shadow_rate": self._shadow_rate,
            "seed": self._seed,
            "labels": self._labels,
            "hits": self._hits,
            "checks": self._checks,
            "failures": self._failures,
            "quiet_hits": None if math.isinf(self._quiet_hits) else self._quiet_hits,
            "history": [list(change) for change in self._history],
            "evidence": self._evidence.state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> AdaptiveTolerance:
        """Return one that continues where :meth:`state` was called; only its draws are new.

        Raises:
            ConfigurationError: It is not what :meth:`state` returns.
        """
        try:
            return cls._restore(state)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            msg = f"the state of an adaptive tolerance must be what state() returned: {error!r}"
            raise ConfigurationError(msg) from error

    @classmethod
    def _restore(cls, state: Mapping[str, Any]) -> AdaptiveTolerance:
        names = ("target_recall", "max_violation", "confidence", "start", "shadow_rate", "seed")
        largest = math.inf if state["largest"] is None else state["largest"]
        new = cls(largest=largest, **{name: state[name] for name in names})
        new._labels = check_int("labels", state["labels"], 0)
        new._hits = check_int("hits", state["hits"], 0)
        new._checks = check_int("checks", state["checks"], 0, new._labels)
        new._failures = check_int("failures", state["failures"], 0, new._checks)
        if state["quiet_hits"] is not None:
            new._quiet_hits = check_int("quiet_hits", state["quiet_hits"], 0)
        # The same draws again would check hits by a pattern that has been seen.
        new._random = np.random.default_rng([new._seed, new._hits])
        new._evidence.restore(state["evidence"])
        new.value = max(new._evidence.passed, new._start or 0.0)
        new._history.clear()
        for labels, tolerance in state["history"]:
            change = (check_int("labels", labels, 0), check_tolerance(tolerance, "a tolerance"))
            new._history.append((change[0], float(change[1])))
        return new


class TenantTolerances:
    """A learnt tolerance for each tenant, since what holds for one need not hold for another.

    Questions of one tenant say nothing of the documents of another, and must not decide what that
    one is served: each tenant starts with nothing learnt. Beyond :data:`MOST_TENANTS`, the tenant
    that learnt longest ago starts again.

    Not thread-safe, but :meth:`value` may be asked at any time.

    Args:
        make: Returns the tolerance of a new tenant.

    Attributes:
        largest: The largest tolerance there can be.
        widest: The widest tolerance of any tenant; the start if none has learnt anything yet.
        reach: The same, and no less than the start, from which the next new tenant begins.
    """

    def __init__(self, make: Callable[[], AdaptiveTolerance]) -> None:
        self._make = make
        self._start = make()
        self._values: dict[Hashable, float] = {}
        self._learnt: Memo[Hashable, AdaptiveTolerance] = Memo(MOST_TENANTS)
        self.largest = self._start.largest
        self.widest = self.reach = self._start.value

    def value(self, tenant: Hashable) -> float:
        """Return the largest distance at which a tenant is served."""
        return self._values.get(tenant, self._start.value)

    def wants_check(self, tenant: Hashable, distance: float) -> bool:
        """See :meth:`AdaptiveTolerance.wants_check`."""
        return self._of(tenant).wants_check(distance)

    def observe(self, tenant: Hashable, distance: float, violated: bool, *, served: bool) -> None:
        """See :meth:`AdaptiveTolerance.observe`."""
        own = self._of(tenant)
        own.observe(distance, violated, served=served)
        if own.value != self._values[tenant]:
            self._values[tenant] = own.value
            self._measure()

    def report(self) -> ToleranceReport:
        """Return what has been learnt so far, of all tenants together."""
        reports = [own.report() for own in self._learnt.values()] or [self._start.report()]
        widest = max(reports, key=lambda report: report.tolerance)
        if len(reports) == 1:
            return widest
        checks = sum(report.shadow_checks for report in reports)
        failures = sum(report.failures for report in reports)
        return replace(
            widest,
            violation_rate=_interval(checks, failures, widest.max_violation, 1 - widest.confidence),
            labels=sum(report.labels for report in reports),
            hits=sum(report.hits for report in reports),
            shadow_checks=checks,
            failures=failures,
            tenants=len(reports),
        )

    def states(self) -> list[tuple[Hashable, dict[str, Any]]]:
        """Return tenants with all that they have learnt, the one that learnt longest ago first."""
        return [(tenant, own.state()) for tenant, own in self._learnt.items()]

    def restore(
        self, states: Iterable[tuple[Hashable, Mapping[str, Any]]]
    ) -> TenantTolerances | None:
        """Return tolerances that continue where :meth:`states` was called.

        Returns:
            ``None`` if they were learnt for other targets than these.

        Raises:
            ConfigurationError: Some state is not what :meth:`states` returns.
        """
        new = TenantTolerances(self._make)
        for tenant, state in states:
            own = AdaptiveTolerance.from_state(state)
            if _targets(own) != _targets(self._start):
                return None
            new._keep(tenant, own)
        return new

    def _of(self, tenant: Hashable) -> AdaptiveTolerance:
        """Return the tolerance of a tenant, who is from now on the one that learnt last."""
        own = self._learnt.get(tenant)
        if own is None:
            own = self._make()
            self._keep(tenant, own)
        return own

    def _measure(self) -> None:
        self.widest = max(self._values.values(), default=self._start.value)
        self.reach = max(self.widest, self._start.value)

    def _keep(self, tenant: Hashable, own: AdaptiveTolerance) -> None:
        self._values[tenant] = own.value
        for forgotten, _ in self._learnt.put(tenant, own):
            del self._values[forgotten]
        self._measure()


def _targets(tolerance: AdaptiveTolerance) -> tuple[float, ...]:
    report = tolerance.report()
    return report.target_recall, report.max_violation, report.confidence


class _Evidence:
    """The tests of all thresholds, by the module's rules.

    Args:
        thresholds: Distances, ascending, of shape (thresholds,).
        max_violation: The violation rate that is tested.
        error: The probability with which a wrong threshold may ever pass.

    Attributes:
        passed: The widest threshold up to which all have passed, within reach; 0 for none.
    """

    def __init__(self, thresholds: Floats, max_violation: float, error: float) -> None:
        count = len(thresholds)
        self._thresholds = thresholds
        self._log_win = math.log1p(_STAKE * max_violation / (1 - max_violation))
        self._log_loss = math.log1p(-_STAKE)
        self._patience = -math.log(error) / max_violation
        self._log_price = math.log(math.pi**2 / 6 / error)  # of passing, in the first run
        self._numbers = np.arange(count)
        self._log_capital = np.zeros(count)
        self._runs = np.ones(count)
        self._has_passed = np.zeros(count, dtype=np.bool_)
        # What constant bets on each threshold would have won, and on how many labels.
        self._merit = np.zeros(count)
        self._labels = np.zeros(count)
        self._reach = -1  # the number of the narrowest threshold around all labels not violated
        self._conclude()

    def add(self, distance: float, violated: bool) -> None:
        """Let the gamblers win or lose by a label."""
        first = int(np.searchsorted(self._thresholds, distance))
        if not violated:
            self._reach = max(self._reach, first)
        gain = self._log_loss if violated else self._log_win
        self._log_capital[self._targets >= first] += gain
        self._merit[first:] += gain
        self._labels[first:] += 1
        prices = self._log_price + 2 * np.log(self._runs)
        if violated:
            if distance <= self.passed:
                closed = prices[first:] + self._log_loss
                np.minimum(self._log_capital[first:], closed, out=self._log_capital[first:])
                self._has_passed[first:] = False
            # Who has lost more than a new run would cost begins one.
            ruined = self._log_capital < -2 * np.log1p(1 / self._runs)
            self._runs[ruined & ~self._has_passed] += 1
            self._log_capital[ruined & ~self._has_passed] = 0
        else:
            self._has_passed |= self._log_capital >= prices
        hopeless = (self._labels >= self._patience) & (self._merit <= 0)
        self._merit[hopeless] = 0
        self._labels[hopeless] = 0
        self._conclude()

    def _conclude(self) -> None:
        """Note which thresholds have passed; place the next bets, from the past alone."""
        count = len(self._numbers)
        failing = int(self._has_passed.argmin())
        passed = min(count if self._has_passed[failing] else failing, self._reach + 1)
        self.passed = float(self._thresholds[passed - 1]) if passed else 0.0
        # Each gambler's target: the threshold of most merit from its own on, or none.
        best = np.maximum.accumulate(self._merit[::-1])[::-1]
        targets = np.where(self._merit >= best, self._numbers, count)
        targets = np.minimum.accumulate(targets[::-1])[::-1]
        self._targets = np.where(best >= _FEWEST_LABELS * self._log_win, targets, -1)

    def state(self) -> dict[str, Any]:
        """Return what the gamblers know, as JSON can hold it."""
        arrays = {name: array.tolist() for name, array in self._arrays().items()}
        return {"reach": self._reach, **arrays}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned.

        Raises:
            ConfigurationError: It cannot have been returned for these thresholds.
        """
        for name, array in self._arrays().items():
            values = np.array(state[name])
            if values.shape != array.shape or not np.isfinite(values).all():
                raise ConfigurationError(f"{name} must be {len(array)} finite numbers")
            array[:] = values
        if (self._labels < 0).any() or (self._runs < 1).any():
            raise ConfigurationError("labels must be counted from 0, and runs from 1")
        self._reach = check_int("reach", state["reach"], -1, len(self._numbers))
        self._conclude()

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "log_capital": self._log_capital,
            "runs": self._runs,
            "has_passed": self._has_passed,
            "merit": self._merit,
            "labels": self._labels,
        }


def _thresholds(largest: float) -> Floats:
    """Return the grid: ascending, up to ``largest`` and with it."""
    widest = min(largest, _WIDEST)
    count = round(_PER_DECADE * math.log10(_WIDEST / _NARROWEST)) + 1
    grid = np.geomspace(_NARROWEST, _WIDEST, count)
    return np.append(grid[grid < widest], widest)


def _interval(count: int, violations: int, centre: float, error: float) -> tuple[float, float]:
    """Return a confidence sequence's interval for a rate.

    The rates that are not refuted by the mixture of likelihood ratios under a beta prior (Robbins,
    "Statistical methods related to the law of the iterated logarithm", 1970).

    Args:
        count: Number of labels.
        violations: Number of violations among them.
        centre: A rate near which the interval is to be narrow: the prior's middle.
        error: The probability with which the interval ever misses the rate.
    """
    if count == 0:
        return 0.0, 1.0
    clean = count - violations
    alpha, beta = 0.5, 0.5 / centre
    mixture = _log_beta(violations + alpha, clean + beta) - _log_beta(alpha, beta)

    def is_refuted(rate: float) -> bool:
        likelihood = violations * math.log(rate) if violations else 0.0
        likelihood += clean * math.log1p(-rate) if clean else 0.0
        return mixture - likelihood >= -math.log(error)

    rate = violations / count
    low = 0.0 if violations == 0 else _crossing(is_refuted, 0.0, rate)
    high = 1.0 if clean == 0 else _crossing(is_refuted, 1.0, rate)
    return low, high


def _crossing(is_refuted: Callable[[float], bool], refuted: float, kept: float) -> float:
    """Return where refutation begins between the two rates, on the refuted side."""
    for _ in range(60):
        middle = (refuted + kept) / 2
        if is_refuted(middle):
            refuted = middle
        else:
            kept = middle
    return refuted


def _log_beta(alpha: float, beta: float) -> float:
    return math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(alpha + beta)
