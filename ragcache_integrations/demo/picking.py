"""Which questions of the stream are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ragcache_integrations.demo.measures import Observation
from ragcache_integrations.demo.workload import Request

__all__ = ["picked"]


def picked(requests: Sequence[Request], observed: Sequence[Observation]) -> list[int]:
    """Places of a few questions: new ones, and hits in the same and in other words, if there are.

    They are the first of their kinds, whatever was answered.
    """

    def first(count: int, kind: Callable[[Request, Observation], bool]) -> list[int]:
        pairs = enumerate(zip(requests, observed, strict=True))
        return [place for place, pair in pairs if kind(*pair)][:count]

    return [
        *first(3, lambda request, one: not one.hit and not request.repeated),
        *first(1, lambda request, one: one.hit and not request.rephrased),
        *first(2, lambda request, one: one.hit and request.rephrased),
    ]
