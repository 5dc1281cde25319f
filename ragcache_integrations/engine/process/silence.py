"""How long nothing has been heard of a process."""

from __future__ import annotations

import time

__all__ = ["Silence"]


class Silence:
    """Measures it by looking every so often.

    While nobody looked, such as when this very process was stopped, nothing could be heard: no look
    counts for more than two of the intervals at which they should come.

    Args:
        interval: Seconds between two looks.
    """

    def __init__(self, interval: float) -> None:
        self._longest = 2 * interval
        self._heard = -1
        self._looked = time.monotonic()
        self._seconds = 0.0

    def look(self, heard: int) -> float:
        """Look once more.

        Args:
            heard: How many messages have come.

        Returns:
            For how many seconds none has.
        """
        now = time.monotonic()
        passed = min(now - self._looked, self._longest)
        self._seconds = self._seconds + passed if heard == self._heard else 0.0
        self._heard, self._looked = heard, now
        return self._seconds
