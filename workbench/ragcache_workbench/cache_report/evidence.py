"""What a number of wrong hits proves about the share of wrong ones."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binom, binomtest

__all__ = ["CONFIDENCE", "Count", "Proof", "least_hits", "prove", "tail"]

CONFIDENCE = 0.95
LEAST_ERROR = 1e-9
"""The smallest share of wrong hits to prove, which takes 3,000,000,000 hits without any."""

_MOST_HITS = 10_000_000
"""Beyond this many nobody waits for evidence."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many of some events were of a kind.

    Attributes:
        count: Those of the kind.
        total: All of them.
    """

    count: int
    total: int

    @property
    def share(self) -> float:
        """Their share, from 0 to 1; 0 where there are none at all."""
        return self.count / self.total if self.total else 0.0

    def interval(self) -> tuple[float, float]:
        """The exact 95 % interval of the share (Clopper and Pearson), for independent events."""
        if not self.total:
            return 0.0, 1.0
        ends = binomtest(self.count, self.total).proportion_ci(CONFIDENCE, "exact")
        return float(ends.low), float(ends.high)


@dataclass(frozen=True, slots=True)
class Proof:
    """How far up the tolerances the share of wrong hits is proven to be below an error.

    Attributes:
        taken: Place of the largest tolerance that is proven; ``None`` where none is.
        stopped: Place of the first tolerance at which the test failed, else of the one with the
            most judged hits where none had enough; ``None`` where all passed.
        more_hits: How many more hits would have to be judged for a proof there, if the share of
            wrong ones stays; ``None`` where it is too high for any number.
    """

    taken: int | None
    stopped: int | None
    more_hits: int | None


def tail(wrong: int, hits: int, share: float) -> float:
    """Return the probability of at most so few wrong hits if the share of wrong ones is ``share``.

    Args:
        wrong: Wrong hits.
        hits: Hits, at least ``wrong``.
        share: Between 0 and 1, both excluded.
    """
    return float(binom.cdf(wrong, hits, share))


def least_hits(error: float) -> int:
    """Return how many hits without a wrong one prove that the share is below ``error``."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-error))


def prove(counts: Sequence[Count], error: float) -> Proof:
    """Find the largest tolerance that is proven, by fixed-sequence testing.

    The tolerances are tested from the smallest up, each with the exact binomial test, until the
    first fails: so all of them together hold with the confidence of one test. Those with fewer hits
    than could prove anything are left out of the sequence. That changes nothing of the confidence,
    since the number of hits depends on the questions alone, and not on whether answers were wrong.

    Args:
        counts: Of each tolerance, ascending, the wrong among the judged hits.
        error: The share of wrong hits to stay below, between 0 and 1.
    """
    least = least_hits(error)
    tested = [place for place, count in enumerate(counts) if count.total >= least]
    taken = None
    for place in tested:
        if tail(counts[place].count, counts[place].total, error) > 1 - CONFIDENCE:
            return Proof(taken, place, _more_hits(counts[place], error))
        taken = place
    if taken is not None:
        return Proof(taken, None, None)
    most = max(range(len(counts)), key=lambda place: counts[place].total)
    return Proof(None, most, _more_hits(counts[most], error))


def _more_hits(count: Count, error: float) -> int | None:
    def is_proven(hits: int) -> bool:
        return tail(math.ceil(count.share * hits), hits, error) <= 1 - CONFIDENCE

    if count.total and count.share >= error:
        return None
    low = high = max(count.total, 1)
    while not is_proven(high):
        low, high = high, 2 * high
        if high > _MOST_HITS:
            return None
    return low + bisect_left(range(low, high + 1), 1, key=is_proven) - count.total
