"""How popular a document is: accesses count half as much after each half-life.

With a half-life near nothing this is recency alone, without end it is the number of accesses (LRFU,
Lee et al., IEEE Transactions on Computers 50(12), 2001). Which half-life finds most depends on the
traffic, so it tunes itself: the same accesses also go through ghosts, caches that hold nothing, one
for each half-life that may be taken.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["FIRST", "HALF_LIVES", "NEVER", "Counted", "Popularity", "Trial"]

NEVER = -1e18
"""Popularity of what was never accessed. Below all others, and finite, as JSON needs it."""

FIRST = -2.0
"""A first access counts ``2 ** FIRST``: most documents that come once do not come again."""

HALF_LIVES = (0.3, 1.0, 3.0, 10.0, 30.0, 300.0)
"""Half-lives that may be taken, in caches: how often what is asked for would fill the cache."""

MEMORY = 2000
"""Accesses of the sample after which what a ghost found counts half."""

INTERVAL = 50
"""Accesses of the sample between two decisions about the half-life."""

SIGNIFICANT = 2.0
"""Standard deviations by which a ghost must have found more, for its half-life to be taken."""


@dataclass(slots=True, eq=False)
class Trial:
    """A document of the sample.

    Attributes:
        size: Of the document when it was first accessed.
        popularity: Under each half-life.
        held: Whether the ghost of each half-life holds it.
    """

    size: int
    popularity: list[float] = field(default_factory=lambda: [NEVER] * len(HALF_LIVES))
    held: list[bool] = field(default_factory=lambda: [False] * len(HALF_LIVES))


class Counted(Protocol):
    """What remembers how popular it is."""

    popularity: float
    trial: Trial | None


class Popularity:
    """Counts accesses of what a cache keeps.

    A document's count is the sum over its accesses of ``2 ** -age``, ages in half-lives. Kept is
    ``log2(sum(2 ** when))``, the logarithm of what it would have been at the beginning: it changes
    only when the document is accessed, so that documents keep their order in between, and it cannot
    overflow. Time is virtual, it passes by what is asked for. So the half-life may change at any
    time, and what has aged before stays as it is.

    Args:
        capacity: Of the cache, in any unit; sizes are in the same.
        every: One in this many documents is in the sample that tunes the half-life.

    Attributes:
        now: Half-lives since the beginning.
        half_life: In caches.
    """

    def __init__(self, capacity: int, every: int = 1) -> None:
        self.now = 0.0
        self.half_life = HALF_LIVES[-1]
        self._capacity = max(1, capacity)
        self._caches = 0.0  # now, in caches
        self._unsampled = itertools.cycle(range(every))
        self._ghosts = [_Ghost(place, self._capacity / every) for place in range(len(HALF_LIVES))]
        self._taken = self._ghosts[-1]
        self._until_decision = INTERVAL

    def advance(self, size: int) -> float:
        """Let the time pass in which documents of this size are asked for.

        Returns:
            The time at which the documents' accesses are then counted.
        """
        caches = size / self._capacity
        self._caches += caches
        self.now += caches / self.half_life
        return self.now

    def count(self, document: Counted, size: int) -> None:
        """Count an access at the time of now."""
        first = document.popularity == NEVER and document.trial is None
        if first and size and not next(self._unsampled):
            document.trial = Trial(size)
        document.popularity = _counted(document.popularity, self.now)
        if document.trial is not None:
            self._try(document.trial)

    def take_back(self, document: Counted, when: float) -> None:
        """Undo the count of an access; what the ghosts found stays."""
        lost = when - document.popularity
        if lost < 0:
            document.popularity += math.log2(-math.expm1(lost * math.log(2)))
        else:
            document.popularity = NEVER

    def _try(self, trial: Trial) -> None:
        """Let an access pass through the ghosts."""
        found = trial.held[self._taken.place]
        for ghost, half_life in zip(self._ghosts, HALF_LIVES, strict=True):
            held = trial.held[ghost.place]
            if held != found:
                ghost.compare(trial.size if held else -trial.size)
            popularity = trial.popularity[ghost.place]
            trial.popularity[ghost.place] = _counted(popularity, self._caches / half_life)
            if not held:
                ghost.take_in(trial)
        self._until_decision -= 1
        if not self._until_decision:
            self._until_decision = INTERVAL
            self._decide()

    def _decide(self) -> None:
        """Take the half-life of the ghost that found most, if that is no chance."""
        best = max(self._ghosts, key=lambda ghost: ghost.gain)
        if best.gain > SIGNIFICANT * math.sqrt(best.variance):
            self._taken, self.half_life = best, HALF_LIVES[best.place]
            _forget(self._ghosts, 0.0)
        else:
            _forget(self._ghosts, 0.5 ** (INTERVAL / MEMORY))


class _Ghost:
    """What a cache with one of the half-lives would hold of the sample.

    Attributes:
        place: Of its half-life.
        gain: Size of what it found and the half-life that is taken did not, less the reverse.
        variance: Of the gain, if either were as likely.
    """

    def __init__(self, place: int, capacity: float) -> None:
        self.place = place
        self.gain = 0.0
        self.variance = 0.0
        self._room = capacity
        self._heap: list[tuple[float, int, Trial]] = []
        self._stamps = itertools.count()

    def compare(self, difference: int) -> None:
        """Note an access that either this one or the half-life that is taken found."""
        self.gain += difference
        self.variance += difference * difference

    def take_in(self, trial: Trial) -> None:
        """Hold a document; the least popular ones go for it."""
        place, heap = self.place, self._heap
        trial.held[place] = True
        self._room -= trial.size
        heapq.heappush(heap, (trial.popularity[place], next(self._stamps), trial))
        while self._room < 0:
            popularity, stamp, least = heap[0]
            if least.popularity[place] > popularity:  # accessed since; it has only risen
                heapq.heapreplace(heap, (least.popularity[place], stamp, least))
                continue
            heapq.heappop(heap)
            least.held[place] = False
            self._room += least.size


def _forget(ghosts: Iterable[_Ghost], kept: float) -> None:
    for ghost in ghosts:
        ghost.gain *= kept
        ghost.variance *= kept * kept


def _counted(popularity: float, now: float) -> float:
    """``log2(2 ** popularity + 2 ** now)``; an access that is not the first."""
    if popularity == NEVER:
        return now + FIRST
    # The difference is at most the logarithm of the number of accesses.
    return now + math.log2(1.0 + 2.0 ** (popularity - now))
