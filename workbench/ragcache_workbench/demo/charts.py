"""The plots of the demo's report."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ragcache_workbench.reports import Axis, Cell, Chart, Series, Table, dot_series

from .measures import Observation
from .run import FrameworkResult
from .summary import milliseconds

__all__ = ["Bar", "Part", "cumulative", "parts", "parts_table", "retrievals", "ttfts"]

BEFORE, AFTER, ANYWHERE = "other", "c0", "c1"
"""Colours of the sides."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a bar.

    Attributes:
        name: What the time goes to.
        style: CSS classes of its colour and of its mark in the legend.
        text: The time in milliseconds.
        width: In per cent of the longest bar.
    """

    name: str
    style: str
    text: str
    width: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar made of parts.

    Attributes:
        name: ``before``, ``after`` or ``anywhere``.
        text: Its length in words.
        parts: From left to right.
    """

    name: str
    text: str
    parts: tuple[Part, ...]


def parts(result: FrameworkResult) -> tuple[Bar, ...]:
    """Where the mean time of a question goes, on each side."""
    sides = {"before": result.before, "after": result.after, "anywhere": result.anywhere}
    longest = max(
        statistics.fmean(observation.end_to_end_ms for observation in side)
        for side in sides.values()
    )
    return tuple(_bar(name, observations, longest) for name, observations in sides.items())


def _bar(name: str, observations: Sequence[Observation], longest: float) -> Bar:
    def mean(field: str) -> float:
        return statistics.fmean(getattr(observation, field) for observation in observations)

    embedding, retrieval, ttft = mean("embedding_ms"), mean("retrieval_ms"), mean("ttft_ms")
    first_token, whole = mean("first_token_ms"), mean("end_to_end_ms")
    spans = (
        ("embedding", "embedding", embedding),
        ("search or cache", "search", retrieval),
        ("framework", "overhead", max(0.0, first_token - embedding - retrieval - ttft)),
        ("to first token", "prefill", ttft),
        ("rest of the answer", "decode", whole - first_token),
    )
    stretches = tuple(
        Part(purpose, f"{colour} area", milliseconds(span), round(100 * span / longest, 2))
        for purpose, colour, span in spans
    )
    return Bar(name, f"{milliseconds(whole)} ms", stretches)


def parts_table(bars: Sequence[Bar]) -> Table:
    """The parts of bars in numbers."""
    columns = zip(*(bar.parts for bar in bars), strict=True)
    rows = tuple((Cell(row[0].name), *(Cell(part.text) for part in row)) for row in columns)
    return Table(("ms", *(bar.name for bar in bars)), rows)


def cumulative(result: FrameworkResult) -> Chart:
    """Time spent on retrieval so far, over the stream."""
    sums = []
    for observations in (result.before, result.after):
        spent = ((seen.embedding_ms + seen.retrieval_ms) / 1000 for seen in observations)
        sums.append(list(itertools.accumulate(spent)))
    x = Axis(0, len(result.before), label="questions")
    y = Axis(0, max(sums[0][-1], sums[1][-1]), label="seconds")
    return Chart(
        "Time spent on retrieval",
        x,
        y,
        _sides([[(0, 0), *enumerate(seconds, 1)] for seconds in sums]),
        "Embedding, and searching the store or the cache, added up over the stream.",
    )


def _sides(points: Sequence[Sequence[tuple[float, float]]]) -> tuple[Series, ...]:
    """A line for each side that there are points of: before, after, anywhere."""
    kinds = (("before", BEFORE), ("after", AFTER), ("anywhere", ANYWHERE))
    return tuple(
        Series(name, colour, line) for (name, colour), line in zip(kinds, points, strict=False)
    )


def retrievals(result: FrameworkResult) -> Chart:
    """Each question's retrieval after the swap: searches and hits are worlds apart."""
    times = [(number, seen.retrieval_ms) for number, seen in enumerate(result.after, 1)]
    hits = [point for point, seen in zip(times, result.after, strict=True) if seen.hit]
    misses = [point for point, seen in zip(times, result.after, strict=True) if not seen.hit]
    x = Axis(0, len(times) + 1, label="questions in their order")
    y = Axis(0.1, 1.3 * max(1.0, *(value for _, value in times)), log=True, label="ms")
    return Chart(
        "Search or cache, question by question",
        x,
        y,
        (
            dot_series("searched in the store", BEFORE, misses),
            dot_series("found in the query cache", AFTER, hits),
        ),
        "After the swap, embedding not included; the scale is logarithmic.",
    )


def ttfts(result: FrameworkResult) -> Chart:
    """Share of questions whose first token came within a time, from the call of the LLM."""
    sides = [
        sorted(seen.ttft_ms for seen in side)
        for side in (result.before, result.after, result.anywhere)
    ]
    # The slowest few would squeeze everything else into a corner.
    high = max(statistics.quantiles(side, n=50)[-1] if len(side) > 1 else side[0] for side in sides)
    x, y = Axis(0, high, label="ms"), Axis(0, 100, label="% of questions")
    steps = [
        [
            (value, 100 * count / len(side))
            for rank, value in enumerate(side)
            for count in (rank, rank + 1)
            if value <= high
        ]
        for side in sides
    ]
    note = "From the call of the LLM. Share of questions answered within that time."
    return Chart("Time to first token", x, y, _sides(steps), note)
