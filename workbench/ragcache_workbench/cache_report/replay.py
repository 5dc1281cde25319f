"""The questions of a log, asked again in front of caches with every tolerance of a grid.

A cache is empty at first. A question is served the answer of the nearest question that the cache
keeps, if that is within the tolerance; otherwise it is answered, and kept. That is what
:class:`~ragcache_integrations.answers.AnswerCore` does with a fixed tolerance, as long as nothing
is evicted or too old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .evidence import Count

__all__ = ["TOLERANCES", "Replay", "replay"]

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
