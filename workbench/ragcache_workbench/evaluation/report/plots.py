"""Plots of a report for its page: paths and places in per cent, which a template draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ragcache_workbench.reports import Axis, Chart, Label, Series, Tick, dot_series

from .data import Bar, Bars, Curve, Panel
from .measures import Unit, format_figure

__all__ = ["DrawnBar", "DrawnBars", "bar_axis", "drawn", "drawn_bars"]

LOG_RANGE = (30.0, 1e9)
"""A scale is logarithmic where the largest value is this many times the least."""
LOG_RATIOS_FROM = 5.0
MARGIN = 0.06
ZOOM_FROM = 0.8
"""Shares that are all above it fill their plot."""
NEAREST_TICKS = 7.0
"""Labels of an axis are at least this many per cent of it apart."""
TEN_THOUSAND = 10_000


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

    rows: tuple[DrawnBar, ...]
    ticks: tuple[Tick, ...]
    baseline: float | None


def axes(panel: Panel) -> tuple[Axis, Axis]:
    """The scales of a panel, with a little space around what is drawn."""
    points = [point for curve in panel.curves for point in curve.points]
    ends = [end for point in points for end in (point.y, point.low, point.high) if end is not None]
    x = _places(panel, [*_xs(panel), *panel.breaks])
    if panel.x_unit == "number":
        x = replace(x, marks=_marks(sorted(set(_xs(panel))), x))
    return replace(x, label=panel.x_label), _values(panel.unit, ends)


def _xs(panel: Panel) -> list[float]:
    """Where the points are; a level is everywhere."""
    return [point.x for curve in panel.curves if curve.kind != "level" for point in curve.points]


def _marks(values: Sequence[float], x: Axis) -> tuple[float, ...]:
    """The very values that a knob had, as far as there is room for their labels."""
    marks: list[float] = []
    for value in values:
        if not marks or x.place(value) - x.place(marks[-1]) >= NEAREST_TICKS:
            marks.append(value)
    return tuple(marks)


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


def drawn(panel: Panel) -> Chart:
    """A panel as paths."""
    x, y = axes(panel)
    series = [series for curve in panel.curves for series in _series(curve, x)]
    series += [Series("", "break", [(at, y.low), (at, y.high)]) for at in panel.breaks]
    labels = [
        Label(point.label, x.place(point.x), round(100 - y.place(point.y), 2))
        for curve in panel.curves
        for point in curve.points
        if point.label
    ]
    return Chart(
        panel.title, x, y, tuple(series), labels=tuple(labels), description=_description(panel)
    )


def _series(curve: Curve, x: Axis) -> list[Series]:
    colour = f"c{curve.colour}"
    points = [(point.x, point.y) for point in curve.points]
    if curve.kind == "level":
        value = curve.points[0].y
        return [Series(curve.name, curve.style, [(x.low, value), (x.high, value)])]
    if curve.kind == "edge":
        return [Series("", "edge", points)]
    dots, line = dot_series(curve.name, colour, points), Series(curve.name, colour, points)
    if curve.kind != "line":
        return [dots if curve.kind == "dots" else line]
    ranges = [
        Series("", f"{colour} thin", [(point.x, point.low), (point.x, point.high)])
        for point in curve.points
        if point.low is not None and point.high is not None
    ]
    return [line, dots, *ranges]


def _description(panel: Panel) -> str:
    parts = []
    for curve in panel.curves:
        if curve.kind == "edge":
            continue
        first, last = curve.points[0], curve.points[-1]
        name = f"{curve.name}: " if curve.name else ""
        begin = format_figure(first.y, panel.unit)
        if curve.kind == "level":
            parts.append(f"{name}{begin}")
        elif curve.kind == "dots":
            parts.append(f"{name}{len(curve.points)} dots")
        else:
            end = format_figure(last.y, panel.unit)
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
    return DrawnBars(rows, axis.ticks(), origin)


def _percent(value: float) -> str:
    return f"{100 * value:g} %"


def _number(value: float) -> str:
    if abs(value) >= TEN_THOUSAND:
        return f"{value / 1000:g}k"
    return f"{value:.6g}" if math.isfinite(value) else ""
