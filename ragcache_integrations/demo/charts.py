"""The plots of the demo's report."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ragcache_integrations.core.plots import Axis, Chart, Series, dots, line
from ragcache_integrations.demo.measures import Observation
from ragcache_integrations.demo.run import FrameworkResult
from ragcache_integrations.demo.summary import milliseconds

__all__ = ["Bar", "Part", "cumulative", "parts", "retrievals", "ttfts"]


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
    x = Axis(0, len(result.before))
    y = Axis(0, max(series[0][-1], series[1][-1]))
    before, after = (line([(0, 0), *enumerate(one, 1)], x, y) for one in series)
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
    x = Axis(0, len(times) + 1)
    y = Axis(0.1, 1.3 * max(1.0, *(value for _, value in times)), log=True)
    return Chart(
        title="Search or cache, question by question",
        note="After the swap, embedding not included; the scale is logarithmic.",
        x_label="questions in the order in which they were asked",
        y_label="ms",
        series=(
            Series("searched in the store", "before", dots(misses, x, y), dots=True),
            Series("found in the query cache", "after", dots(hits, x, y), dots=True),
        ),
        x_ticks=x.ticks(),
        y_ticks=y.ticks(downwards=True),
    )


def ttfts(result: FrameworkResult) -> Chart:
    """Share of questions whose first token came within a time, from the call of the LLM."""
    sides = [sorted(one.ttft_ms for one in side) for side in (result.before, result.after)]
    # The slowest few would squeeze everything else into a corner.
    high = max(statistics.quantiles(side, n=50)[-1] if len(side) > 1 else side[0] for side in sides)
    x, y = Axis(0, high), Axis(0, 100)
    before, after = (
        line(
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
