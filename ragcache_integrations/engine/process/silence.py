"""How long a process has been silent."""

from __future__ import annotations

import time

__all__ = ["Silence"]


class Silence:
    """Measures how long no message has come, by counts that are taken at regular intervals.

    If this very process was stopped, it could take no counts and receive nothing. So no interval
    between two measurements counts for more than twice its planned length.

    Args:
        interval: Planned seconds between two measurements.
    """

    def __init__(self, interval: float) -> None:
        self._longest = 2 * interval
        self._messages = -1
        self._measured_at = time.monotonic()
        self._seconds = 0.0

    def measure(self, messages: int) -> float:
        """Take a measurement.

        Args:
            messages: How many messages have come in total.

        Returns:
            Seconds since the measurement that saw the last new message.
        """
        now = time.monotonic()
        passed = min(now - self._measured_at, self._longest)
        self._seconds = self._seconds + passed if messages == self._messages else 0.0
        self._messages, self._measured_at = messages, now
        return self._seconds
