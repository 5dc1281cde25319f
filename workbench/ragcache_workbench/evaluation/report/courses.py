"""The courses of runs, question by question, and the distributions of their latencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from ragcache_workbench.evaluation.records import Record
from ragcache_workbench.evaluation.runs import EvalRun
from ragcache_workbench.evaluation.scores import LATENCIES
from ragcache_workbench.reports import PALETTE_SIZE

from .data import (
    Curve,
    Figure,
    Panel,
    Point,
)
from .labels import labels_of

__all__ = ["courses", "distributions"]

MOST_DOTS = 600
MOST_COURSES = 12
_SHOWN = {
    "ttft": "TTFT",
    "end_to_end": "end to end",
    "retrieval": "retrieval latency",
}


def distributions(runs: Sequence[EvalRun]) -> list[Figure]:
    """Draw the distributions of latencies, of as many runs as there are colours."""
    if len(runs) > PALETTE_SIZE:
        return []
    panels = []
    for latency, words in _SHOWN.items():
        curves = []
        for number, (run, name) in enumerate(zip(runs, labels_of(runs), strict=True)):
            times = np.sort(_times(run, latency))
            if len(times):
                shares = np.linspace(0, 1, 101)
                quantiles = np.quantile(times, shares)
                points = [Point(float(x), float(y)) for x, y in zip(quantiles, shares, strict=True)]
                curves.append(Curve(name, number, tuple(points), "path"))
        if curves:
            panels.append(Panel(words, "ms", "share", tuple(curves), "ms"))
    note = "Share of the questions that took at most this long."
    figure = Figure("latencies", "Distribution of latencies", note, tuple(panels), tuple(runs))
    return [figure] if panels else []


def _times(run: EvalRun, latency: str) -> list[float]:
    times = [LATENCIES[latency](record) for record in run.records if not record.disturbed]
    return [1000 * seconds for seconds in times if seconds is not None]


def courses(runs: Sequence[EvalRun]) -> list[Figure]:
    """Draw the courses of a single run, and of runs that were interrupted."""
    alone = len(runs) == 1
    shown = [run for run in runs if alone or run.summary["breaks"]][:MOST_COURSES]
    names = dict(zip(map(id, runs), labels_of(runs), strict=True))
    return [_course(run, names[id(run)], number) for number, run in enumerate(shown)]


def _course(run: EvalRun, name: str, number: int) -> Figure:
    sessions = [record.session for record in run.records]
    breaks = tuple(
        place + 0.5 for place, (before, after) in enumerate(pairwise(sessions)) if after > before
    )
    drawings = _dots(run, "ttft", breaks), _dots(run, "retrieval", breaks), _running(run, breaks)
    note = "The questions in their order."
    if len(run.records) > MOST_DOTS:
        note += f" {MOST_DOTS} of them are drawn."
    if run.summary["breaks"]:
        note += " Dashed lines mark where the run was interrupted and resumed."
    title = "Course of the run" + (f": {name}" if name else "")
    slug = "course" if number == 0 else f"course-{number + 1}"
    return Figure(slug, title, note, tuple(filter(None, drawings)), (run,))


def _dots(run: EvalRun, latency: str, breaks: tuple[float, ...]) -> Panel | None:
    times = [(record, LATENCIES[latency](record)) for record in run.records if not record.disturbed]
    kinds: dict[str, Callable[[Record], bool]] = {
        "miss": lambda record: record.hit is False,
        "hit of the query cache": lambda record: record.hit is True,
        "": lambda record: record.hit is None,
    }
    curves = []
    for number, (kind, belongs) in enumerate(kinds.items()):
        of_kind = [
            (record.number, 1000 * seconds)
            for record, seconds in times
            if seconds is not None and belongs(record)
        ]
        step = -(-len(run.records) // MOST_DOTS)
        points = [Point(float(x), y) for x, y in of_kind[::step]]
        if points:
            curves.append(Curve(kind, number % 2, tuple(points), "dots"))
    if not curves:
        return None
    return Panel(f"{_SHOWN[latency]}, ms", "question", "ms", tuple(curves), "count", breaks)


def _running(run: EvalRun, breaks: tuple[float, ...]) -> Panel | None:
    """Hits and reused tokens, as shares of all questions so far."""
    hits = _so_far(
        [
            (record.number, float(record.hit), 1.0)
            for record in run.records
            if record.hit is not None
        ]
    )
    tokens = _so_far(
        [
            (record.number, float(record.cached_tokens), float(record.prompt_tokens))
            for record in run.records
            if record.cached_tokens is not None and record.prompt_tokens
        ]
    )
    named = (("cache hit rate so far", 2, hits), ("prompt tokens saved so far", 3, tokens))
    curves = tuple(Curve(name, colour, points, "path") for name, colour, points in named if points)
    if not curves:
        return None
    return Panel("share so far", "question", "share", curves, "count", breaks)


def _so_far(rows: list[tuple[int, float, float]]) -> tuple[Point, ...]:
    if not rows:
        return ()
    numbers, parts, wholes = np.array(rows).T
    shares = np.cumsum(parts) / np.cumsum(wholes)
    return tuple(Point(float(x), float(y)) for x, y in zip(numbers, shares, strict=True))
