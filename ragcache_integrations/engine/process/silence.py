"""How long a process has been silent."""

from __future__ import annotations

import time

__all__ = ["Silence", "why_hung"]


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


def why_hung(
    silent: float, busy: float, hang_timeout: float | None, step_timeout: float | None
) -> str | None:
    """Why a process counts as hung; ``None`` if it does not.

    Args:
        silent: Seconds since its last sign of life.
        busy: Seconds that it has spent in its current step.
        hang_timeout: Seconds of silence that are allowed; ``None`` for no limit.
        step_timeout: Seconds that one step may take; ``None`` for no limit.
    """
    if hang_timeout is not None and silent > hang_timeout:
        return f"no sign of life for {hang_timeout:g} s"
    if step_timeout is not None and busy > step_timeout:
        return f"one step took more than {step_timeout:g} s"
    return None
