"""Timing calls that take microseconds."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Call", "Lookup", "call_apart", "call_here", "median_us", "median_us_of_threads"]

Lookup = Callable[[NDArray[np.float32], int], object]


Call = Callable[..., Any]
"""Calls a function with arguments."""


def call_here(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function."""
    return function(*arguments)


def call_apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process, whose memory nothing has scattered yet."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def _nanoseconds(
    lookup: Lookup, queries: Sequence[NDArray[np.float32]], rounds: int, seed: int
) -> list[int]:
    rng = np.random.default_rng(seed)
    clock = time.perf_counter_ns
    times = []
    for _ in range(rounds):
        for number in rng.permutation(len(queries)).tolist():
            query = queries[number].copy()  # as fresh as from an embedding model
            began = clock()
            lookup(query, 5)
            times.append(clock() - began)
    return times


def median_us(
    lookup: Lookup, queries: Sequence[NDArray[np.float32]], *, rounds: int = 3, seed: int = 0
) -> float:
    """Median time of one call, in microseconds, clock included (some 0.05).

    Args:
        lookup: Takes a query and k.
        queries: Each is asked once per round, in an order of its own; a first round warms up.
        rounds: How many are measured.
        seed: Decides the orders.
    """
    _nanoseconds(lookup, queries, 1, seed)
    return statistics.median(_nanoseconds(lookup, queries, rounds, seed + 1)) / 1e3


def median_us_of_threads(
    lookup: Lookup, queries: Sequence[NDArray[np.float32]], threads: int = 4
) -> tuple[float, float]:
    """The same in several threads at once.

    Args:
        lookup: Takes a query and k.
        queries: Every thread asks all of them, in an order of its own.
        threads: How many.

    Returns:
        Median time of one call, waiting included, and time per call of all threads together
        (how long they took, divided by the number of calls); in microseconds.
    """
    times: list[list[int]] = [[] for _ in range(threads)]
    ready = threading.Barrier(threads + 1)

    def work(number: int) -> None:
        ready.wait()
        times[number] = _nanoseconds(lookup, queries, 1, number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    began = time.perf_counter_ns()
    for worker in workers:
        worker.join()
    took = time.perf_counter_ns() - began
    together = [one for some in times for one in some]
    return statistics.median(together) / 1e3, took / len(together) / 1e3
