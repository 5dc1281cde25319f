"""Whether something grows."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import psutil
import pytest
from parts.servers.process_watch import ProcessWatch, trend


def test_a_line_is_found_exactly() -> None:
    seconds = np.arange(0, 3600, 5.0)
    found = trend(seconds.tolist(), (100 + 7 * seconds / 3600).tolist())
    assert found is not None
    assert (found.slope, found.low, found.high) == pytest.approx((7, 7, 7))
    assert found.as_list() == [7, 7, 7]


def test_what_is_constant_does_not_grow() -> None:
    found = trend(list(range(100)), [5.0] * 100)
    assert found is not None
    assert found.as_list() == [0, 0, 0]
    assert str(found) == "+0.00 [+0.00, +0.00]"


def test_too_few_readings_tell_nothing() -> None:
    assert trend([0, 1, 2, 3], [1, 2, 3, 4]) is None


@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_the_interval_allows_for_readings_that_resemble_their_neighbours(memory: float) -> None:
    """Nearly as often as it promises, the true slope lies in it."""
    rng = np.random.default_rng(0)
    seconds = np.arange(0, 3600, 5.0)
    inside = 0
    for _ in range(200):
        errors = rng.standard_normal(len(seconds))
        for place in range(1, len(errors)):
            errors[place] += memory * errors[place - 1]
        found = trend(seconds.tolist(), (3 * seconds / 3600 + errors).tolist())
        assert found is not None
        inside += found.low <= 3 <= found.high
    assert inside >= 170


def test_the_time_is_what_counts_not_the_number_of_the_reading() -> None:
    seconds = [*range(10), *range(100, 1000, 10), 3600]
    values = [2 * second / 3600 for second in seconds]
    found = trend([float(one) for one in seconds], values)
    assert found is not None
    assert found.slope == pytest.approx(2)


def test_processes_are_added_up_and_may_be_gone() -> None:
    own = psutil.Process(os.getpid())
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    both = [own, psutil.Process(other.pid)]
    watch = ProcessWatch({"own": lambda: [own], "both": lambda: both})
    watch.read()
    other.communicate(b"\n")
    watch.read()
    first, last = watch.readings["both"]
    assert (first.processes, last.processes) == (2, 1)
    assert first.memory > watch.readings["own"][0].memory > 0
    assert first.threads > last.threads >= 1
    assert last.descriptors > 0
    assert watch.since(last.seconds)["own"] == watch.readings["own"][1:]
