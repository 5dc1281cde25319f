"""ContextPilot 0.5.0, which orders documents for prefix caches as well, to measure against.

Its output is silenced; what it computes for a call is counted, the formatting of that output
included. It is told nothing of evictions.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["ContextPilotPeer", "has_contextpilot"]

Request = tuple[str, ...]


def has_contextpilot() -> bool:
    """Whether it is installed (``pip install --no-deps contextpilot==0.5.0 scipy``)."""
    return importlib.util.find_spec("contextpilot") is not None


class ContextPilotPeer:
    """One index of it, empty at first."""

    def __init__(self) -> None:
        with _silence():
            from contextpilot import ContextPilot  # noqa: PLC0415 - a peer, not always there

            self._index: Any = ContextPilot(use_gpu=False)

    def online(self, requests: Sequence[Request]) -> tuple[list[Request], list[float]]:
        """Order requests one by one.

        Returns:
            Their documents in order, and the microseconds that each took.
        """
        ordered: list[Request] = []
        times = []
        with _silence():
            for request in requests:
                given = [list(request)]
                began = time.perf_counter_ns()
                found, _ = self._index.reorder(given)
                times.append((time.perf_counter_ns() - began) / 1e3)
                ordered.append(tuple(found[0]))
        _check(requests, ordered)
        return ordered, times

    def batch(self, requests: Sequence[Request]) -> tuple[list[int], list[Request], float]:
        """Order all requests at once, and among themselves.

        Returns:
            Their numbers in the order of service, their documents in that order, and the
            microseconds that all took together.
        """
        given = [list(request) for request in requests]
        with _silence():
            began = time.perf_counter_ns()
            found, numbers = self._index.reorder(given)
            took = (time.perf_counter_ns() - began) / 1e3
        ordered = [tuple(one) for one in found]
        _check([requests[number] for number in numbers], ordered)
        if sorted(numbers) != list(range(len(requests))):
            raise RuntimeError("ContextPilot did not schedule every request once")
        return list(numbers), ordered, took


def _check(requests: Sequence[Request], ordered: Sequence[Request]) -> None:
    """It must answer the same requests as we do."""
    for request, order in zip(requests, ordered, strict=True):
        if sorted(request) != sorted(order):
            raise RuntimeError(f"ContextPilot made {order} of {request}")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
