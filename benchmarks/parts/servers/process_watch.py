"""What processes hold over time, and whether it grows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil

__all__ = ["ProcessWatch", "Reading", "Trend", "trend"]

MIB = 1 << 20
HOUR = 3600.0

Processes = Callable[[], Iterable[psutil.Process]]
"""The processes of a group as of now; they may come and go."""


@dataclass(frozen=True)
class Reading:
    """What a group of processes holds at one moment.

    Attributes:
        seconds: Since the watch began.
        memory: Resident memory in MiB, all processes together.
        threads: Their threads.
        descriptors: Their open files and sockets.
        processes: How many there are.
    """

    seconds: float
    memory: float
    threads: int
    descriptors: int
    processes: int


@dataclass
class ProcessWatch:
    """Readings of groups of processes.

    Attributes:
        groups: By name.
        readings: By group, in the order of time.
    """

    groups: Mapping[str, Processes]
    readings: dict[str, list[Reading]] = field(init=False)

    def __post_init__(self) -> None:
        self.readings = {name: [] for name in self.groups}
        self._began = time.monotonic()

    def read(self) -> None:
        """Take a reading of every group."""
        now = time.monotonic() - self._began
        for name, processes in self.groups.items():
            self.readings[name].append(_reading(now, processes()))

    def since(self, seconds: float) -> dict[str, list[Reading]]:
        """What was read from this second on."""
        return {
            name: [reading for reading in readings if reading.seconds >= seconds]
            for name, readings in self.readings.items()
        }


def _reading(now: float, processes: Iterable[psutil.Process]) -> Reading:
    memory = threads = descriptors = count = 0
    for process in processes:
        try:
            with process.oneshot():
                held = process.memory_info().rss, process.num_threads(), process.num_fds()
        except psutil.NoSuchProcess:
            continue
        memory += held[0]
        threads += held[1]
        descriptors += held[2]
        count += 1
    return Reading(now, memory / MIB, threads, descriptors, count)


@dataclass(frozen=True)
class Trend:
    """A slope per hour and its 95 % interval.

    Attributes:
        slope: Least squares.
        low: Lower end.
        high: Upper end.
    """

    slope: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.slope:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"

    def as_list(self) -> list[float]:
        """Slope, lower and upper end, rounded for JSON."""
        return [round(self.slope, 3), round(self.low, 3), round(self.high, 3)]


def trend(seconds: Sequence[float], values: Sequence[float], bins: int = 60) -> Trend | None:
    """Fit a line by least squares.

    Memory comes in steps, so that neighbouring readings err alike: the interval is by Newey and
    West, with as many lags as Lazarus et al. (2018) recommend.

    Args:
        seconds: When each value was read.
        values: What was read.
        bins: Into the means of so many stretches of equal length the readings are put first.

    Returns:
        The slope per hour; ``None`` where there are fewer than five readings.
    """
    if len(values) < 5:  # noqa: PLR2004 - a line and what is around it
        return None
    times, means = _binned(np.asarray(seconds, float) / HOUR, np.asarray(values, float), bins)
    count = len(times)
    x = times - times.mean()
    spread = float(x @ x)
    slope = float(x @ means) / spread
    errors = means - means.mean() - slope * x
    scores = x * errors
    lags = min(count - 1, int(1.3 * count**0.5))
    variance = float(scores @ scores)
    for lag in range(1, lags + 1):
        variance += 2 * (1 - lag / (lags + 1)) * float(scores[lag:] @ scores[:-lag])
    deviation = (max(variance, 0.0) * count / (count - 2)) ** 0.5 / spread
    half = statistics.NormalDist().inv_cdf(0.975) * deviation
    return Trend(slope, slope - half, slope + half)


def _binned(times: np.ndarray, values: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    if len(times) <= bins:
        return times, values
    edges = np.linspace(times[0], times[-1], bins + 1)[1:-1]
    places = np.searchsorted(edges, times, side="right")
    kept = np.unique(places)
    return (
        np.array([times[places == place].mean() for place in kept]),
        np.array([values[places == place].mean() for place in kept]),
    )
