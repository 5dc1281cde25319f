"""Plots as plain data, in per cent of their area; the report's template draws them.

Lines and dots are SVG paths that may be stretched to any shape, labels are HTML text that is not:
so the same plot is legible on a wide and on a narrow screen.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ragcache_integrations.demo.measures import Observation
from ragcache_integrations.demo.run import FrameworkResult
from ragcache_integrations.demo.summary import milliseconds

__all__ = ["Bar", "Chart", "Part", "Series", "Tick", "cumulative", "parts", "retrievals", "ttfts"]


@dataclass(frozen=True, slots=True)
class Tick:
    """A label on an axis and its place, in per cent."""

    label: str
    at: float


@dataclass(frozen=True, slots=True)
class Series:
    """A named path. ``style`` is a CSS class of the template: before, after or hit."""

    name: str
    style: str
    path: str
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot: y runs from the top, as in SVG."""

    title: str
    note: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a bar: milliseconds as text, width in per cent of the longest bar."""

    name: str
    style: str
    text: str
    width: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar made of parts."""

    name: str
    text: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(100 * (value - low) / (high - low), 3)

    def ticks(self, *, downwards: bool = False, unit: str = "") -> tuple[Tick, ...]:
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [10.0**power for power in powers if self.low <= 10.0**power <= self.high]
        else:
            step = _step(self.high - self.low)
            values = [step * i for i in range(math.floor(self.high / step) + 1)]
        places = [self.place(value) for value in values]
        return tuple(
            Tick(f"{value:g}{unit}", 100 - place if downwards else place)
            for value, place in zip(values, places, strict=True)
        )


def _step(span: float) -> float:
    """A round step that divides the span into about five."""
    power = 10.0 ** math.floor(math.log10(span / 5))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span / 5)


def _line(points: Sequence[tuple[float, float]], x: _Axis, y: _Axis) -> str:
    places = [f"{x.place(at):g},{100 - y.place(value):g}" for at, value in points]
    return "M" + "L".join(places)


def _dots(points: Sequence[tuple[float, float]], x: _Axis, y: _Axis) -> str:
    # Lines of next to no length: round caps, which keep their shape, make dots of them.
    return "".join(f"M{x.place(at):g},{100 - y.place(value):g}h.01" for at, value in points)


def parts(result: FrameworkResult) -> tuple[Bar, ...]:
    """Where the mean time of a question goes, before and after."""
    longest = max(
        statistics.fmean(one.end_to_end_ms for one in side)
        for side in (result.before, result.after)
    )
    sides = {"before": result.before, "after": result.after}
    return tuple(_bar(name, observations, longest) for name, observations in sides.items())


def _bar(name: str, observations: Sequence[Observation], longest: float) -> Bar:
    def mean(field: str) -> float:
        return statistics.fmean(getattr(one, field) for one in observations)

    embedding, retrieval, ttft = mean("embedding_ms"), mean("retrieval_ms"), mean("ttft_ms")
    first_token, whole = mean("first_token_ms"), mean("end_to_end_ms")
    spans = {
        "embedding": embedding,
        "search or cache": retrieval,
        "framework": max(0.0, first_token - embedding - retrieval - ttft),
        "to first token": ttft,
        "rest of the answer": whole - first_token,
    }
    stretches = tuple(
        Part(what, f"part{number}", milliseconds(span), round(100 * span / longest, 2))
        for number, (what, span) in enumerate(spans.items(), 1)
    )
    return Bar(name, f"{milliseconds(whole)} ms", stretches)


def cumulative(result: FrameworkResult) -> Chart:
    """Time spent on retrieval so far, over the stream."""
    series = []
    for observations in (result.before, result.after):
        spent = (one.embedding_ms + one.retrieval_ms for one in observations)
        series.append([total / 1000 for total in itertools.accumulate(spent)])
    x = _Axis(0, len(result.before))
    y = _Axis(0, max(series[0][-1], series[1][-1]))
    before, after = (_line([(0, 0), *enumerate(one, 1)], x, y) for one in series)
    return Chart(
        title="Time spent on retrieval",
        note="Embedding, and searching the store or the cache, added up over the stream.",
        x_label="questions asked",
        y_label="seconds",
        series=(Series("before", "before", before), Series("after", "after", after)),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(downwards=True),
    )


def retrievals(result: FrameworkResult) -> Chart:
    """Each question's retrieval after the swap: searches and hits are worlds apart."""
    times = [(number, one.retrieval_ms) for number, one in enumerate(result.after, 1)]
    hits = [point for point, one in zip(times, result.after, strict=True) if one.hit]
    misses = [point for point, one in zip(times, result.after, strict=True) if not one.hit]
    x = _Axis(0, len(times) + 1)
    y = _Axis(0.1, 1.3 * max(1.0, *(value for _, value in times)), log=True)
    return Chart(
        title="Search or cache, question by question",
        note="After the swap, embedding not included; the scale is logarithmic.",
        x_label="questions in the order in which they were asked",
        y_label="ms",
        series=(
            Series("searched in the store", "before", _dots(misses, x, y), dots=True),
            Series("found in the query cache", "after", _dots(hits, x, y), dots=True),
        ),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(downwards=True),
    )


def ttfts(result: FrameworkResult) -> Chart:
    """Share of questions whose first token came within a time, from the call of the LLM."""
    sides = [sorted(one.ttft_ms for one in side) for side in (result.before, result.after)]
    # The slowest few would squeeze everything else into a corner.
    high = max(statistics.quantiles(side, n=50)[-1] if len(side) > 1 else side[0] for side in sides)
    x, y = _Axis(0, high), _Axis(0, 100)
    before, after = (
        _line(
            [
                point
                for rank, value in enumerate(side)
                for point in (
                    (value, 100 * rank / len(side)),
                    (value, 100 * (rank + 1) / len(side)),
                )
                if value <= high
            ],
            x,
            y,
        )
        for side in sides
    )
    return Chart(
        title="Time to first token",
        note="From the call of the LLM. Share of questions answered within that time.",
        x_label="ms",
        y_label="% of questions",
        series=(Series("before", "before", before), Series("after", "after", after)),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(downwards=True),
    )
