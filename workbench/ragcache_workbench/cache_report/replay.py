"""The questions of a log, asked again in front of caches with every tolerance of a grid.

A cache is empty at first. A question is served the answer of the nearest question that the cache
keeps, if that is within the tolerance; otherwise it is answered, and kept. That is what
:class:`~ragcache_integrations.answers.AnswerCore` does with a fixed tolerance, as long as nothing
is evicted or too old. The number of wrong hits proves something about the share of wrong ones.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, binomtest

__all__ = [
    "CONFIDENCE",
    "TOLERANCES",
    "Count",
    "Proof",
    "Replay",
    "least_hits",
    "prove",
    "replay",
    "tail",
]

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


TOLERANCES = tuple(round(0.02 * step, 2) for step in range(36))
"""The grid: 0 to 0.7, distances between embeddings of unit length."""

_LEAST = 1e-4
"""Distance of other words with the same embedding, as in the cache of answers."""
_BLOCK = 128
"""Questions whose distances are computed together; they take 4 bytes for each earlier question."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What caches of each tolerance did, of shape ``(tolerances, questions)``.

    Attributes:
        sources: Place of the question whose answer was served; -1 where none was.
        judged: Whether it is known if that was right.
        wrong: Whether it was another question's.
    """

    sources: NDArray[np.int_]
    judged: NDArray[np.bool_]
    wrong: NDArray[np.bool_]

    @property
    def hits(self) -> NDArray[np.bool_]:
        """Whether a question was served an earlier answer."""
        return self.sources >= 0

    def wrong_counts(self) -> list[Count]:
        """Return, at each tolerance, the wrong hits among those that were judged."""
        totals = self.judged.sum(axis=1)
        pairs = zip(self.wrong.sum(axis=1), totals, strict=True)
        return [Count(int(wrong), int(total)) for wrong, total in pairs]


def replay(
    vectors: NDArray[np.floating[Any]],
    words: Sequence[int],
    keys: Sequence[int],
    labels: Sequence[int],
    tolerances: Sequence[float] = TOLERANCES,
    may_share: Callable[[int, int], bool] | None = None,
) -> Replay:
    """Ask questions in their order.

    Args:
        vectors: The questions' embeddings, of shape ``(questions, dim)`` and unit length.
        words: A number for each question, equal for the same words: their distance is 0.
        keys: A number for each question. Only those with equal ones share an answer.
        labels: A number for each question, equal where the answers are; -1 where the answer is not
            known.
        tolerances: The largest distances at which answers are served, ascending.
        may_share: Whether two questions, by their places, may share an answer; ``None``: always.
    """
    count = len(words)
    named, keyed, labelled = (np.asarray(numbers, int) for numbers in (words, keys, labels))
    sources = np.full((len(tolerances), count), -1)
    for key in np.unique(keyed):
        rows = np.flatnonzero(keyed == key)
        found = _sources(vectors[rows], named[rows], np.asarray(tolerances), rows, may_share)
        sources[:, rows] = np.where(found < 0, -1, rows[found])
    judged = (sources >= 0) & (labelled >= 0) & (labelled[sources] >= 0)
    return Replay(sources, judged, judged & (labelled != labelled[sources]))


def _sources(
    vectors: NDArray[np.floating[Any]],
    words: NDArray[np.int_],
    tolerances: NDArray[np.float64],
    numbers: NDArray[np.int_],
    may_share: Callable[[int, int], bool] | None,
) -> NDArray[np.int_]:
    """Return the question whose answer each is served at each tolerance, or -1."""
    count = len(vectors)
    sources = np.full((len(tolerances), count), -1)
    kept = np.zeros((len(tolerances), count), bool)
    for start in range(0, count, _BLOCK):
        block = slice(start, min(start + _BLOCK, count))
        cosines = vectors[block] @ vectors[: block.stop].T
        distances = np.sqrt(np.maximum(2 - 2 * cosines, _LEAST**2))
        distances[words[block, None] == words[None, : block.stop]] = 0
        rows, columns = np.nonzero(np.tril(distances <= tolerances[-1], start - 1))  # the earlier
        near_distances = distances[rows, columns]
        if may_share is not None:
            pairs = zip(numbers[start + rows].tolist(), numbers[columns].tolist(), strict=True)
            shares = [may_share(*pair) for pair in pairs]
            shared = (near_distances == 0) | np.fromiter(shares, bool, len(shares))
            rows, columns, near_distances = rows[shared], columns[shared], near_distances[shared]
        order = np.lexsort((columns, near_distances, rows))
        ends = np.searchsorted(rows, np.arange(len(distances) + 1))
        for row, places in enumerate(map(slice, ends, ends[1:]), start):
            pairs = order[places]
            near = columns[pairs]
            served = kept[:, near] & (near_distances[pairs] <= tolerances[:, None])
            hit = served.any(axis=1)
            if hit.any():
                sources[hit, row] = near[served[hit].argmax(axis=1)]
            kept[:, row] = ~hit
    return sources
