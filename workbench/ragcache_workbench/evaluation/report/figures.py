"""The figures of a report, chosen by the knobs that differ between its runs.

The papers' figures are drawn over those knobs, then the distributions of latencies, and the courses
of runs, question by question.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ragcache_workbench.evaluation.records import Record
from ragcache_workbench.evaluation.runs import EvalRun, Throughput, throughputs
from ragcache_workbench.evaluation.scores import LATENCIES, MECHANICS_ONLY
from ragcache_workbench.reports import PALETTE_SIZE

from .comparisons import Compared, comparisons
from .data import Bar, Bars, Curve, Figure, Missing, Panel, Plot, Point
from .labels import differing_knobs, facts_of, format_knob, label, labels_of, number_of
from .measures import FOLLOWED, SHOWN, format_figure, main_quality, measure, value_of

__all__ = ["Section", "sections"]

NAME_LENGTH = 120


@dataclass(frozen=True, slots=True)
class Section:
    """The runs of one data set.

    Attributes:
        title: Name of the data set.
        runs: The runs, in the order of the report.
        figures: The papers' figures, of sweeps and configurations.
        compared: Comparisons of runs.
        courses: The courses of single runs.
    """

    title: str
    runs: tuple[EvalRun, ...]
    figures: tuple[Figure, ...]
    compared: tuple[Compared, ...]
    courses: tuple[Figure, ...]

    def all_figures(self) -> tuple[Figure, ...]:
        """Every figure, in the order of the page."""
        return (*self.figures, *(compared.figure for compared in self.compared), *self.courses)


def sections(runs: Sequence[EvalRun], numbers: dict[str, int]) -> list[Section]:
    """Draw runs by their data sets.

    Args:
        runs: At least one run, of any data sets.
        numbers: The runs' numbers in the report, by their folders.
    """
    by_dataset: dict[str, list[EvalRun]] = defaultdict(list)
    for run in runs:
        by_dataset[run.config["dataset"]["name"]].append(run)
    taken: Counter[str] = Counter()
    return [_section(name, members, numbers, taken) for name, members in by_dataset.items()]


def _section(
    name: str, runs: list[EvalRun], numbers: dict[str, int], taken: Counter[str]
) -> Section:
    def named(figure: Figure) -> Figure:
        """Give it a name that a file can have, and no other figure has."""
        slug = re.sub(r"[^\w.=+-]+", "_", f"{name}-{figure.name}")[:NAME_LENGTH]
        taken[slug] += 1
        return replace(figure, name=slug if taken[slug] == 1 else f"{slug}-{taken[slug]}")

    compared = [
        replace(comparison, figure=named(comparison.figure))
        for comparison in comparisons(runs, numbers)
    ]
    return Section(
        title=runs[0].config["dataset"]["title"],
        runs=tuple(runs),
        figures=tuple(map(named, [*sweeps(runs), *delay_and_quality(runs, numbers)])),
        compared=tuple(compared),
        courses=tuple(map(named, [*distributions(runs), *courses(runs)])),
    )


QUALITY = "quality"
"""Replaced by the data set's main metric."""


@dataclass(frozen=True, slots=True)
class _Sweep:
    """The figures to draw over a knob, and the paper's figure that does so."""

    words: str
    measures: Sequence[str]
    paper: str = ""


_Row = tuple[EvalRun, dict[str, Any]]
"""A run and its knobs."""

_SWEEPS = {knob: _Sweep(**sweep) for knob, sweep in SHOWN["sweeps"].items()}
_ANY = (QUALITY, "cache_hit_rate", "gpu_hit_rate", "ttft_ms_mean", "end_to_end_ms_mean")
_CONFIGURATION = {
    *("k", "synthesis", "intermediate_length", "latency_budget", "profiler"),
    *("mode", "method", "num_chunks"),
    *("max_tokens", "order", "label"),
    *("model", "retriever", "tolerance", "guarantee"),
}
"""Knobs that trade delay for quality."""


def sweeps(runs: Sequence[EvalRun]) -> list[Figure]:
    """Draw a figure for every knob that has several numbers in runs of one data set.

    Runs that differ only in their seeds are averaged, as in the papers.
    """
    facts = facts_of(runs)
    names = differing_knobs(facts)
    rows = list(zip(runs, facts, strict=True))
    figures = []
    for knob in dict.fromkeys((*_SWEEPS, *names)):
        if knob in names and knob != "seed":
            others = [name for name in names if name not in {knob, "seed"}]
            figures += _figures(knob, rows, others, "")
    return figures


@dataclass(slots=True)
class _Group:
    """Runs that differ only in the knob and the seed."""

    name: str
    colour: int
    places: dict[float, list[EvalRun]] = field(default_factory=lambda: defaultdict(list))
    elsewhere: list[EvalRun] = field(default_factory=list)


def _figures(knob: str, rows: Sequence[_Row], others: Sequence[str], part: str) -> list[Figure]:
    groups = _groups(knob, rows, others)
    if not any(len(group.places) > 1 for group in groups):
        return []
    if len(groups) > PALETTE_SIZE:  # in several figures, by the knob of which there are the fewest
        counts = {name: len({format_knob(facts.get(name)) for _, facts in rows}) for name in others}
        by = min((name for name in others if counts[name] > 1), key=lambda name: counts[name])
        left = [name for name in others if name != by]
        parts: dict[str, list[_Row]] = defaultdict(list)
        for row in rows:
            parts[label(row[1], [by])].append(row)
        return [
            figure
            for words, members in parts.items()
            for figure in _figures(knob, members, left, ", ".join(filter(None, (part, words))))
        ]
    return [_figure(knob, rows, groups, part)]


def _groups(knob: str, rows: Sequence[_Row], others: Sequence[str]) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for run, facts in rows:
        place = number_of(facts.get(knob))
        # A level is named by the knob itself where that is what it differs in.
        name = label(facts, others if place is not None else [knob, *others])
        group = groups.setdefault(name, _Group(name, len(groups) % PALETTE_SIZE))
        if place is None:
            group.elsewhere.append(run)
        else:
            group.places[place].append(run)
    return list(groups.values())


def _figure(knob: str, rows: Sequence[_Row], groups: Sequence[_Group], part: str) -> Figure:
    runs = [run for run, _ in rows]
    sweep = _SWEEPS.get(knob, _Sweep(knob.replace("_", " "), _ANY))
    plots: list[Plot] = []
    if QUALITY in sweep.measures and (plot := _quality_panel(sweep, groups, runs)):
        plots.append(plot)
    panels = (_panel(name, sweep, groups) for name in sweep.measures if name != QUALITY)
    plots += [panel for panel in panels if panel is not None]
    notes = [f"As {sweep.paper}." if sweep.paper else ""]
    if any(len(members) > 1 for group in groups for members in group.places.values()):
        seeds = sorted({run.settings.seed for run in runs})
        listed = ", ".join(map(str, seeds))
        notes.append(f"Means over seeds {listed}; strokes go from the lowest to the highest.")
    if knob == "rate" and (limits := throughputs(runs)):
        plots.append(_throughput_bars(limits, {group.name: group.colour for group in groups}))
        notes.append(
            "Throughput is the rate at which the mean TTFT reaches five times that of the lowest "
            "rate."
        )
    title = f"Over {sweep.words}"
    return Figure(
        name=knob + (f"-{part}" if part else ""),
        title=f"{title} ({part})" if part else title,
        note=" ".join(filter(None, notes)),
        plots=tuple(plots),
        runs=tuple(runs),
    )


def _quality_panel(sweep: _Sweep, groups: Sequence[_Group], runs: Sequence[EvalRun]) -> Plot | None:
    name = main_quality(runs)
    if name is None:
        return None
    if all(run.quality is None for run in runs):
        return Missing(measure(name).words, MECHANICS_ONLY)
    return _panel(name, sweep, groups)


def _panel(name: str, sweep: _Sweep, groups: Sequence[_Group]) -> Panel | None:
    curves = []
    for group in groups:
        points = [
            point
            for place, members in sorted(group.places.items())
            if (point := _point(place, [value_of(run, name) for run in members])) is not None
        ]
        if points:
            curves.append(Curve(group.name, group.colour, tuple(points)))
        level = _point(0.0, [value_of(run, name) for run in group.elsewhere])
        if level is not None:
            curves.append(Curve(group.name, group.colour, (level,), "level"))
    if not any(curve.kind == "line" for curve in curves):
        return None
    what = measure(name)
    return Panel(what.words, sweep.words, what.unit, tuple(curves))


def _point(place: float, values: Iterable[float | None], words: str = "") -> Point | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    several = len(known) > 1
    return Point(
        x=place,
        y=statistics.fmean(known),
        low=min(known) if several else None,
        high=max(known) if several else None,
        label=words,
    )


def _throughput_bars(rates: Sequence[Throughput], colours: Mapping[str, int]) -> Bars:
    bars = []
    for rate in rates:
        name = label(rate.knobs, list(rate.knobs))
        text = f"{rate.throughput:.3g}/s, limit {format_figure(rate.limit_ms, 'ms')} ms"
        shown = name or "these settings"
        bars.append(Bar(shown, rate.throughput, None, None, text, colour=colours.get(name, 0)))
    return Bars("throughput under the TTFT limit", "requests per second", tuple(bars))


def delay_and_quality(runs: Sequence[EvalRun], numbers: dict[str, int]) -> list[Figure]:
    """Draw delay against quality by configuration (RAGServe, figures 4 and 5).

    Args:
        runs: The runs of one data set.
        numbers: The runs' numbers in the report, by their folders.
    """
    facts = facts_of(runs)
    name = main_quality(runs)
    if name is None or not _CONFIGURATION & set(differing_knobs(facts)):
        return []
    title = f"{measure(name).words} over end-to-end latency"
    curves = _scattered(runs, facts, name, numbers)
    plot: Plot = Missing(title, MECHANICS_ONLY)
    note = "As RAGServe, figures 4 and 5."
    if curves:
        plot = Panel(title, "end to end, ms, mean", "score", tuple(curves), "ms")
        note += (
            " Each dot is a run by its number; the grey edge joins those that no other run beats "
            f"in both. {FOLLOWED}"
        )
    return [Figure("delay-quality", "Delay against quality", note, (plot,), tuple(runs))]


def _scattered(
    runs: Sequence[EvalRun], facts: Sequence[dict[str, Any]], name: str, numbers: dict[str, int]
) -> list[Curve]:
    kinds: dict[str, list[Point]] = defaultdict(list)
    differing = differing_knobs(facts)
    by = [knob for knob in ("synthesis", "retriever", "model") if knob in differing][:1]
    for run, known in zip(runs, facts, strict=True):
        delay, quality = value_of(run, "end_to_end_ms_mean"), value_of(run, name)
        if delay is not None and quality is not None:
            words = str(numbers[str(run.path)])
            kinds[label(known, by)].append(Point(delay, quality, label=words))
    curves = [
        Curve(kind, number % PALETTE_SIZE, tuple(points), "dots")
        for number, (kind, points) in enumerate(kinds.items())
    ]
    edge: list[Point] = []
    for point in sorted(itertools.chain(*kinds.values()), key=_by_delay):
        if not edge or point.y > edge[-1].y:
            edge.append(Point(point.x, point.y))
    if len(edge) > 1:
        curves.insert(0, Curve("", 0, tuple(edge), "edge"))
    return curves


def _by_delay(point: Point) -> tuple[float, float]:
    return point.x, -point.y


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
