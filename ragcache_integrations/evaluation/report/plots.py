"""Plots of a report for its page: paths and places in per cent, which a template draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragcache_integrations.core.plots import Axis, Chart, Series, Tick, dots, line
from ragcache_integrations.evaluation.report.data import Bar, Bars, Curve, Panel, Point
from ragcache_integrations.evaluation.report.measures import Unit, written

__all__ = [
    "DrawnBar",
    "DrawnBars",
    "DrawnPanel",
    "Label",
    "axes",
    "bar_axis",
    "drawn",
    "drawn_bars",
    "x_values",
]

LOG_RANGE = (30.0, 1e9)
"""A scale is logarithmic where the largest value is so many times the least."""
LOG_RATIOS_FROM = 5.0
MARGIN = 0.06
ZOOM_FROM = 0.8
"""Shares that are all above it fill their plot."""
NEAREST_TICKS = 7.0
"""Labels of an axis are at least so many per cent of it apart."""
TEN_THOUSAND = 10_000


@dataclass(frozen=True, slots=True)
class Label:
    """Words beside a point, their place in per cent from the left and the top."""

    text: str
    left: float
    top: float


@dataclass(frozen=True, slots=True)
class DrawnPanel:
    """A panel for the template.

    Attributes:
        chart: Its curves, axes and words.
        labels: Words beside points.
        described: What it shows, for those who do not see it.
    """

    chart: Chart
    labels: tuple[Label, ...]
    described: str


@dataclass(frozen=True, slots=True)
class DrawnBar:
    """A row for the template: its CSS class, and places in per cent from the left."""

    bar: Bar
    style: str
    place: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class DrawnBars:
    """Rows for the template."""

    bars: Bars
    rows: tuple[DrawnBar, ...]
    ticks: tuple[Tick, ...]
    baseline: float | None


def axes(panel: Panel) -> tuple[Axis, Axis]:
    """The scales of a panel, with a little space around what is drawn."""
    points = [point for curve in panel.curves for point in curve.points]
    placed = [point.x for curve in panel.curves for point in _placed(curve)]
    values = [value for one in points for value in (one.y, one.low, one.high) if value is not None]
    x = _places(panel, [*placed, *panel.breaks])
    return x, _values(panel.unit, values)


def _places(panel: Panel, placed: Sequence[float]) -> Axis:
    low, high = min(placed), max(placed)
    if panel.x_unit == "count":
        return Axis(low, max(high, low + 1), text=_number)
    paths = all(curve.kind == "path" for curve in panel.curves)
    if _spreads(low, high, LOG_RANGE[0]):
        room = 1 if paths else (high / low) ** MARGIN
        return Axis(low / room, high * room, log=True, text=_number)
    room = 0 if paths else MARGIN * (high - low) or MARGIN * abs(high) or 1.0
    first = 0.0 if panel.x_unit == "ms" and low < (high - low) else low - room
    return Axis(first, max(high + room, first + 1e-9), text=_number)


def x_values(panel: Panel, x: Axis) -> list[float]:
    """Where the axis is labelled: at the very values that a knob was given, if there is room."""
    if panel.x_unit != "number":
        return x.values()
    found: list[float] = []
    for value in sorted({one.x for curve in panel.curves for one in _placed(curve)}):
        if not found or x.place(value) - x.place(found[-1]) >= NEAREST_TICKS:
            found.append(value)
    return found


def _placed(curve: Curve) -> Sequence[Point]:
    return () if curve.kind == "level" else curve.points


def _values(unit: Unit, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    text: Callable[[float], str] = _percent if unit == "share" else _number
    if unit == "share":
        top = min(1.0, 1.1 * high) if high > 0 else 1.0
        if low < ZOOM_FROM:
            return Axis(0, top, text=text)
        return Axis(min(low - MARGIN * (high - low), 0.9), top, text=text)
    if unit == "score":
        room = MARGIN * (high - low) or 0.05
        return Axis(max(0.0, low - room) if low >= 0 else low - room, high + room, text=text)
    if unit == "ms" and _spreads(low, high, LOG_RANGE[0]):
        return Axis(low / 1.2, high * 1.2, log=True, text=text)
    return Axis(min(0.0, low), 1.08 * high if high > 0 else 1.0, text=text)


def _spreads(low: float, high: float, least: float) -> bool:
    return low > 0 and least <= high / low <= LOG_RANGE[1]


def bar_axis(bars: Bars) -> Axis:
    """The scale of rows; the baseline, or 0, is on it."""
    ends = [end for bar in bars.bars for end in (bar.value, bar.low, bar.high) if end is not None]
    ends.append(0.0 if bars.baseline is None else bars.baseline)
    low, high = min(ends), max(ends)
    if bars.log and _spreads(low, high, LOG_RATIOS_FROM):
        room = max((high / low) ** MARGIN, 1.05)
        return Axis(low / room, high * room, log=True, text=_number)
    room = MARGIN * (high - low) or MARGIN
    return Axis(low if bars.baseline is None else low - room, high + room, text=_number)


def drawn(panel: Panel) -> DrawnPanel:
    """A panel as paths."""
    x, y = axes(panel)
    series = [series for curve in panel.curves for series in _series(curve, x, y)]
    series += [Series("", "break", line([(at, y.low), (at, y.high)], x, y)) for at in panel.breaks]
    labels = [
        Label(point.label, x.place(point.x), round(100 - y.place(point.y), 2))
        for curve in panel.curves
        for point in curve.points
        if point.label
    ]
    chart = Chart(
        title=panel.title,
        note="",
        x_label=panel.x_label,
        y_label="",
        series=tuple(series),
        x_ticks=tuple(Tick(x.text(one), x.place(one)) for one in x_values(panel, x)),
        y_ticks=y.ticks(downwards=True),
    )
    return DrawnPanel(chart, tuple(labels), _described(panel))


def _series(curve: Curve, x: Axis, y: Axis) -> list[Series]:
    style = f"c{curve.colour}"
    if curve.kind == "level":
        value = curve.points[0].y
        return [Series(curve.name, f"{style} level", line([(x.low, value), (x.high, value)], x, y))]
    points = [(one.x, one.y) for one in curve.points]
    if curve.kind == "edge":
        return [Series("", "edge", line(points, x, y))]
    if curve.kind == "path":
        return [Series(curve.name, style, line(points, x, y))]
    marks = Series(curve.name, style, dots(points, x, y), dots=True)
    if curve.kind == "dots":
        return [marks]
    ranges = "".join(_stroke(one, x, y) for one in curve.points)
    found = [Series(curve.name, style, line(points, x, y)), marks]
    return [*found, Series("", f"{style} range", ranges)] if ranges else found


def _stroke(point: Point, x: Axis, y: Axis) -> str:
    if point.low is None or point.high is None:
        return ""
    return line([(point.x, point.low), (point.x, point.high)], x, y)


def _described(panel: Panel) -> str:
    parts = []
    for curve in panel.curves:
        if curve.kind == "edge":
            continue
        first, last = curve.points[0], curve.points[-1]
        name = f"{curve.name}: " if curve.name else ""
        begin = written(first.y, panel.unit)
        if curve.kind == "level":
            parts.append(f"{name}{begin}")
        elif curve.kind == "dots":
            parts.append(f"{name}{len(curve.points)} dots")
        else:
            end = written(last.y, panel.unit)
            parts.append(f"{name}{begin} at {_number(first.x)} to {end} at {_number(last.x)}")
    return f"{panel.title} over {panel.x_label}. {'; '.join(parts)}"


_SIDES = {True: "better", False: "worse", None: "plain"}


def drawn_bars(bars: Bars) -> DrawnBars:
    """Rows as places."""
    axis = bar_axis(bars)
    origin = None if bars.baseline is None else axis.place(bars.baseline)
    rows = tuple(
        DrawnBar(
            bar,
            f"c{bar.colour}" if origin is None else _SIDES[bar.better],
            axis.place(bar.value),
            axis.place(bar.value if bar.low is None else bar.low),
            axis.place(bar.value if bar.high is None else bar.high),
        )
        for bar in bars.bars
    )
    return DrawnBars(bars, rows, axis.ticks(), origin)


def _percent(value: float) -> str:
    return f"{100 * value:g} %"


def _number(value: float) -> str:
    if abs(value) >= TEN_THOUSAND:
        return f"{value / 1000:g}k"
    return f"{value:.6g}" if math.isfinite(value) else ""
