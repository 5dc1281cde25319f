"""The figures of a report, chosen by the knobs that differ between its runs.

The papers' figures are drawn over those knobs, then runs are compared with the first one of the
same questions, then come the distributions of latencies, and the courses of runs, question by
question.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ragcache_workbench.evaluation.runs import (
    Comparison,
    EvalRun,
    Throughput,
    answer_scores,
    compare,
    series,
    throughputs,
)
from ragcache_workbench.evaluation.scores import MECHANICS_ONLY
from ragcache_workbench.reports import (
    PALETTE_SIZE,
    Bar,
    Bars,
    Curve,
    Missing,
    Panel,
    Plot,
    Point,
    curve_of,
)

from .labels import (
    FOLLOWED,
    MEASURES,
    SHOWN,
    differing_knobs,
    facts_of,
    format_figure,
    format_knob,
    label,
    labels_of,
    main_quality,
    measure,
    number_of,
    value_of,
)

__all__ = ["TIMES", "Compared", "Figure", "Section", "comparisons", "sections", "sweeps"]

NAME_LENGTH = 120


@dataclass(frozen=True, slots=True)
class Figure:
    """Plots with one title, of the same runs.

    Attributes:
        name: Its name in files and links.
        title: What the plots have in common.
        note: How to read it.
        plots: At least one plot, in the order of the page.
        runs: The runs that it shows.
    """

    name: str
    title: str
    note: str
    plots: tuple[Plot, ...]
    runs: tuple[EvalRun, ...]

    def legend(self) -> Sequence[Curve]:
        """Curves with a name, each once; empty if there are not at least two."""
        panels = [plot for plot in self.plots if isinstance(plot, Panel)]
        by_name = {curve.name: curve for panel in panels for curve in panel.legend}
        return list(by_name.values()) if len(by_name) > 1 else []


@dataclass(frozen=True, slots=True)
class Compared:
    """Runs of the same questions.

    Attributes:
        figure: The figure that compares them, the baseline first.
        rows: Every comparison, with the other run's label.
    """

    figure: Figure
    rows: tuple[tuple[str, Comparison], ...]


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


def _colour(number: int) -> str:
    return f"c{number % PALETTE_SIZE}"


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
    colour: str
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
        group = groups.setdefault(name, _Group(name, _colour(len(groups))))
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


def _throughput_bars(rates: Sequence[Throughput], colours: Mapping[str, str]) -> Bars:
    bars = []
    for rate in rates:
        name = label(rate.knobs, list(rate.knobs))
        text = f"{rate.throughput:.3g}/s, limit {format_figure(rate.limit_ms, 'ms')} ms"
        shown = name or "these settings"
        bars.append(Bar(shown, rate.throughput, None, None, text, colour=colours.get(name, "c0")))
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
        Curve(kind, _colour(number), tuple(points), "dots")
        for number, (kind, points) in enumerate(kinds.items())
    ]
    edge: list[Point] = []
    dots = itertools.chain(*kinds.values())
    for point in sorted(dots, key=lambda point: (point.x, -point.y)):
        if not edge or point.y > edge[-1].y:
            edge.append(Point(point.x, point.y))
    if len(edge) > 1:
        curves.insert(0, Curve("", "soft", tuple(edge), "edge"))
    return curves


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
            times = [time for time in series(run, latency) if time is not None]
            if times:
                quantiles = np.quantile(times, shares := np.linspace(0, 1, 101)).tolist()
                points = zip(quantiles, shares.tolist(), strict=True)
                curves.append(curve_of(name, _colour(number), points))
        if curves:
            panels.append(Panel(words, "ms", "share", tuple(curves), "ms"))
    note = "Share of the questions that took at most this long."
    figure = Figure("latencies", "Distribution of latencies", note, tuple(panels), tuple(runs))
    return [figure] if panels else []


def courses(runs: Sequence[EvalRun]) -> list[Figure]:
    """Draw the courses of a single run, and of runs that were interrupted."""
    alone = len(runs) == 1
    shown = [run for run in runs if alone or run.summary["breaks"]][:MOST_COURSES]
    names = dict(zip(map(id, runs), labels_of(runs), strict=True))
    return [_course(run, names[id(run)], number) for number, run in enumerate(shown)]


def _course(run: EvalRun, name: str, number: int) -> Figure:
    sessions = [record.session for record in run.records]
    places = [
        (place + 0.5, 0.0)
        for place, (before, after) in enumerate(pairwise(sessions))
        if after > before
    ]
    breaks = (curve_of("", "soft", places, "break"),) if places else ()
    drawings = _dots(run, "ttft", breaks), _dots(run, "retrieval", breaks), _running(run, breaks)
    note = "The questions in their order."
    if len(run.records) > MOST_DOTS:
        note += f" {MOST_DOTS} of them are drawn."
    if run.summary["breaks"]:
        note += " Dashed lines mark where the run was interrupted and resumed."
    title = "Course of the run" + (f": {name}" if name else "")
    slug = "course" if number == 0 else f"course-{number + 1}"
    return Figure(slug, title, note, tuple(filter(None, drawings)), (run,))


def _dots(run: EvalRun, latency: str, breaks: tuple[Curve, ...]) -> Panel | None:
    kinds = {"miss": False, "hit of the query cache": True, "": None}
    curves = []
    for number, (kind, hit) in enumerate(kinds.items()):
        of_kind = [
            (float(record.number), time)
            for record, time in zip(run.records, series(run, latency), strict=True)
            if time is not None and record.hit is hit
        ]
        step = -(-len(run.records) // MOST_DOTS)
        if of_kind:
            curves.append(curve_of(kind, _colour(number % 2), of_kind[::step], "dots"))
    if not curves:
        return None
    return Panel(f"{_SHOWN[latency]}, ms", "question", "ms", (*curves, *breaks), "count")


def _running(run: EvalRun, breaks: tuple[Curve, ...]) -> Panel | None:
    """Hits and reused tokens, as shares of all questions so far."""
    shares = {
        "cache hit rate so far": [
            (record.number, record.hit, 1) for record in run.records if record.hit is not None
        ],
        "prompt tokens saved so far": [
            (record.number, record.cached_tokens, record.prompt_tokens)
            for record in run.records
            if record.cached_tokens is not None and record.prompt_tokens
        ],
    }
    curves = []
    for number, (name, rows) in enumerate(shares.items(), start=2):
        if rows:
            places, parts, wholes = np.array(rows, float).T
            so_far = np.cumsum(parts) / np.cumsum(wholes)
            points = zip(places.tolist(), so_far.tolist(), strict=True)
            curves.append(curve_of(name, _colour(number), points))
    if not curves:
        return None
    return Panel("share so far", "question", "share", (*curves, *breaks), "count")


# Comparisons with the first run, with paired-bootstrap intervals.

TIMES = {
    "ttft_ms": "TTFT, times as fast",
    "end_to_end_ms": "end to end, times as fast",
    "retrieval_ms": "retrieval, times as fast",
}
"""Times that are compared, with the words for their ratios."""
SHARES = ("cache_hit_rate", "k_recall")


def comparisons(runs: Sequence[EvalRun], numbers: dict[str, int]) -> list[Compared]:
    """Compare runs of one data set, each with the first run of the same questions.

    Args:
        runs: The runs of one data set.
        numbers: The runs' numbers in the report, by their folders.
    """
    groups: dict[str, list[EvalRun]] = defaultdict(list)
    for run in runs:
        groups[run.config["workload"]["digest"]].append(run)
    several = [members for members in groups.values() if len(members) > 1]
    return [_compared(members, numbers) for members in several]


def _compared(runs: list[EvalRun], numbers: dict[str, int]) -> Compared:
    baseline = runs[0]
    labels = {
        str(run.path): f"{numbers[str(run.path)]}: {label or 'the same settings'}"
        for run, label in zip(runs, labels_of(runs), strict=True)
    }
    all_comparisons = compare(runs, metrics=[*answer_scores(runs), *SHARES, *TIMES])
    by_metric: dict[str, list[Comparison]] = defaultdict(list)
    for comparison in all_comparisons:
        by_metric[comparison.metric].append(comparison)
    plots: list[Plot] = []
    name = main_quality(runs)
    if name in by_metric:
        plots.append(_differences(name, by_metric[name], labels))
    elif name is not None:
        plots.append(Missing(f"{measure(name).words}, difference", MECHANICS_ONLY))
    plots += [_ratios(name, by_metric[name], labels) for name in TIMES if by_metric[name]]
    differ = [
        name
        for name in SHARES
        if any(any(comparison.difference.as_list()) for comparison in by_metric[name])
    ]
    plots += [_differences(name, by_metric[name], labels) for name in differ]
    plots = [plot for plot in plots if not isinstance(plot, Bars) or plot.bars]
    number = numbers[str(baseline.path)]
    figure = Figure(
        f"compared-{number}",
        f"Compared with run {labels[str(baseline.path)]}",
        "Question by question, with 95 % intervals of a paired bootstrap. Coloured where the whole "
        f"interval is on one side; times never are. {FOLLOWED}",
        tuple(plots),
        tuple(runs),
    )
    rows = tuple((labels[str(comparison.other.path)], comparison) for comparison in all_comparisons)
    return Compared(figure, rows)


def _differences(name: str, members: Sequence[Comparison], labels: dict[str, str]) -> Bars:
    share = name in MEASURES
    scale, unit = (100, " points") if share else (1, "")
    bars = []
    for comparison in members:
        digits = 1 if share else 3
        # Adding 0 turns a minus zero into a zero.
        value, low, high = (
            round(scale * end, digits) + 0.0 for end in comparison.difference.as_list()
        )
        text = f"{value:+.{digits}f}{unit} [{low:+.{digits}f}, {high:+.{digits}f}]"
        better = None if low <= 0 <= high else low > 0
        bars.append(Bar(labels[str(comparison.other.path)], value, low, high, text, better))
    title = f"{measure(name).words}, difference"
    return Bars(title, "percentage points" if share else "difference", tuple(bars), 0.0)


def _ratios(name: str, members: Sequence[Comparison], labels: dict[str, str]) -> Bars:
    bars = []
    for comparison in members:
        if comparison.ratio is not None:
            value, low, high = comparison.ratio.as_list()
            text = f"{value:.2f} [{low:.2f}, {high:.2f}]"
            # Without a colour: the runs followed one another, and the machine may have changed.
            bars.append(Bar(labels[str(comparison.other.path)], value, low, high, text))
    return Bars(TIMES[name], "times as fast as the baseline", tuple(bars), 1.0, log=True)
