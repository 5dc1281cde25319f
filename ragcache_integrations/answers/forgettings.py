"""What was forgotten lately, so that an answer that was begun before is not kept after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .entries import Question

__all__ = ["Forgettings"]

_MOST = 64
"""That are remembered. An answer that more have overtaken is taken for forgotten."""


class Forgettings:
    """Remembers the last times that a cache forgot something. Not thread-safe.

    Attributes:
        count: How often that was.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last: deque[Callable[[Question], bool]] = deque(maxlen=_MOST)

    def add(self, matches: Callable[[Question], bool]) -> None:
        """Remember that the answers to some questions were forgotten."""
        self.count += 1
        self._last.append(matches)

    def concern(self, question: Question, moment: int) -> bool:
        """Whether the answers to a question were forgotten since :attr:`count` was ``moment``."""
        missed = self.count - moment
        return missed > len(self._last) or any(
            matches(question) for matches in list(self._last)[len(self._last) - missed :]
        )
