"""How likely a prefix is to be evicted before it is used again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Use", "misses"]


@dataclass(frozen=True, slots=True)
class Use:
    """One part of one step's prompt.

    Attributes:
        step: Name of the step.
        path: Names of the parts from the beginning of the prompt to this one, which identify its
            KV cache.
        tokens: Length of the part.
        time: Seconds after the request's first step.
        changes: How the part of the path changes that changes most: ``never``, ``request`` or
            ``step``.
    """

    step: str
    path: tuple[str, ...]
    tokens: int
    time: float
    changes: str


def misses(
    uses: Sequence[Use], *, rate: float, lifetime: float, even: bool
) -> tuple[list[float], list[float]]:
    """Probability that each part has to be computed.

    A path survives for ``lifetime`` after its last use. Bursts of requests arrive at ``rate``; all
    requests of a burst run the steps at the same times.

    - If an earlier step of the same request used the path at most ``lifetime`` ago, it is cached.
    - Otherwise parts that change in each request are computed.
    - Parts that never change are cached if any other burst used them within the last ``lifetime``
      seconds. A burst did so if it arrived within a set of times: the union, over its uses of the
      path, of intervals of length ``lifetime``. If U is the measure of that set, a Poisson process
      leaves it empty with probability ``exp(-rate * U)``; for bursts at even intervals it is
      certain whether the set is empty.

    Args:
        uses: All parts of all steps.
        rate: Bursts per second.
        lifetime: Seconds that a KV cache survives after its last use.
        even: Whether bursts arrive at even intervals; otherwise as a Poisson process.

    Returns:
        Two lists with a probability for each use: for the first request of a burst, and for the
        others, for which the first one has just computed the parts that never change.
    """
    chances = []
    for number, use in enumerate(uses):
        earlier = any(
            other.path == use.path and use.time - other.time <= lifetime for other in uses[:number]
        )
        if use.changes == "step" or (use.changes == "request" and not earlier):
            chances.append((1.0, 1.0))
        elif earlier:
            chances.append((0.0, 0.0))
        else:
            times = [other.time for other in uses if other.path == use.path]
            poisson = math.exp(-rate * _covered(times, lifetime))
            chances.append((_even(times, use.time, 1 / rate, lifetime) if even else poisson, 0.0))
    return [first for first, _ in chances], [later for _, later in chances]


def _covered(times: Sequence[float], length: float) -> float:
    """Measure of the union of the intervals ``[time, time + length]``."""
    if math.isinf(length):
        return length
    total, end = 0.0, -math.inf
    for time in sorted(times):
        total += max(0.0, time + length - max(end, time))
        end = max(end, time + length)
    return total


def _even(times: Sequence[float], now: float, gap: float, lifetime: float) -> float:
    """1 if no burst used the path within the lifetime, with one burst every ``gap`` seconds."""
    # The n-th burst before this one used it at time - n * gap; ago is the time since the last use.
    ago = min((now - time) % gap or gap for time in times)
    return float(ago > lifetime)
