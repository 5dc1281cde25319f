"""Traffic of several tenants at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from ragcache_workbench.simulation.traces import Trace, TraceRequest

__all__ = ["FLOODING", "QUIET", "flooded", "of_tenant"]

QUIET, FLOODING = "quiet", "flooding"


def of_tenant(trace: Trace, namespace: str) -> Trace:
    """The same requests, of a tenant."""
    requests = tuple(replace(request, namespace=namespace) for request in trace.requests)
    return replace(trace, requests=requests)


def flooded(quiet: Trace, flood: Trace, times: int) -> Trace:
    """A tenant's requests among those of another.

    Args:
        quiet: Of the first tenant.
        flood: Of the other, with at least so many more requests.
        times: How many of the other come after each of the first.
    """

    def together() -> Iterator[TraceRequest]:
        others = iter(of_tenant(flood, FLOODING).requests)
        for request in of_tenant(quiet, QUIET).requests:
            yield request
            yield from itertools.islice(others, times)

    return replace(quiet, requests=tuple(together()))
