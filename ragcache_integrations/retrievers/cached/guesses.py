"""Guesses of what a store will return, for speculation in front of any store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.query_cache import Candidate, Hit

__all__ = ["Guesses"]

_WIDTH = 0.1
"""Guesses are counted by their distance, in steps of this."""
_STEPS = 20
_MINIMUM = 0.3
"""The share of right guesses from which on one is worth the start of an answer."""


class Guesses:
    """Learns at which distance from an earlier question a guess is worth being made.

    Every guess is compared with what the store returned, also those that were not passed on, so
    that a distance at which guesses go wrong gets another chance once they no longer do.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        self._right = [0] * _STEPS
        self._made = [0] * _STEPS

    def pays(self, guess: Hit[Any]) -> bool:
        """Whether guesses at such a distance have been right often enough, or are still new."""
        step = _step(guess.distance)
        with self._lock:
            return (self._right[step] + 1) / (self._made[step] + 2) >= _MINIMUM

    def learn(self, guess: Hit[Any], found: Sequence[Candidate[Any]]) -> None:
        """Note whether a guess was what the store returned.

        Args:
            guess: The guess.
            found: What the store returned, as many documents as were asked for.
        """
        step = _step(guess.distance)
        with self._lock:
            self._right[step] += _names(guess.candidates) == _names(found)
            self._made[step] += 1


def _step(distance: float) -> int:
    return min(int(distance / _WIDTH), _STEPS - 1)


def _names(candidates: Sequence[Candidate[Any]]) -> list[tuple[str, str]]:
    return [(candidate.id, candidate.fingerprint) for candidate in candidates]
