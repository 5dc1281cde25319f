"""How likely a prefix is to be gone when it is used again."""

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
        path: Names of the parts from the beginning of the prompt to this one: what has to be the
            same for its KV cache to be found.
        tokens: Length of the part.
        time: Seconds after the request's first step.
        lasting: What of the path changes most: ``never``, ``request`` or ``step``.
    """

    step: str
    path: tuple[str, ...]
    tokens: int
    time: float
    lasting: str


def misses(
    uses: Sequence[Use], *, rate: float, lifetime: float, even: bool
) -> tuple[list[float], list[float]]:
    """Probability that each part has to be computed.

    A path survives for ``lifetime`` after its last use. Bursts of requests arrive at ``rate``; each
    request of a burst goes through the steps at the same times.

    - An earlier step of the same request used the path at most ``lifetime`` ago: found.
    - Otherwise what lasts no longer than a request is computed.
    - What never changes is found where any other burst used it within the last ``lifetime``
      seconds. A burst does so if it arrived within a set of times: the union, over its uses of the
      path, of intervals as long as ``lifetime``. With U the measure of that set, a Poisson process
      leaves it empty with probability ``exp(-rate * U)``; evenly arriving bursts leave it empty
      or not, with certainty.

    Returns:
        For each use, for the first request of a burst, and for those behind it, which find what
        never changes because the first has just used it.
    """
    first, behind = [], []
    for number, use in enumerate(uses):
        earlier = any(
            other.path == use.path and use.time - other.time <= lifetime for other in uses[:number]
        )
        if use.lasting == "step":
            first.append(1.0)
            behind.append(1.0)
        elif earlier:
            first.append(0.0)
            behind.append(0.0)
        elif use.lasting == "request":
            first.append(1.0)
            behind.append(1.0)
        else:
            times = [other.time for other in uses if other.path == use.path]
            first.append(
                _even(times, use.time, 1 / rate, lifetime)
                if even
                else math.exp(-rate * _covered(times, lifetime))
            )
            behind.append(0.0)
    return first, behind


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
    """Whether nobody used it lately, where a burst arrives every ``gap`` seconds."""
    # The n-th burst before this one used it at time - n * gap; how long ago was the latest?
    ago = min((now - time) % gap or gap for time in times)
    return float(ago > lifetime)
