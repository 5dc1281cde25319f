"""Plots of a report: as paths in per cent, which its template draws, and as PNG files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ragcache_workbench.reports import (
    LIGHT,
    PALETTE,
    Axis,
    Chart,
    Label,
    Picture,
    Series,
    dot_series,
    strip_axes,
    wrapped,
)

from .data import Bars, Curve, Figure, Missing, Panel, Plot
from .measures import Unit, format_figure

__all__ = ["bar_axis", "drawn", "png"]

LOG_RANGE = (30.0, 1e9)
"""A scale is logarithmic where the largest value is this many times the least."""
LOG_RATIOS_FROM = 5.0
MARGIN = 0.06
ZOOM_FROM = 0.8
"""Shares that are all above it fill their plot."""
NEAREST_TICKS = 7.0
"""Labels of an axis are at least this many per cent of it apart."""
TEN_THOUSAND = 10_000


def _axes(panel: Panel) -> tuple[Axis, Axis]:
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
    x, y = _axes(panel)
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


def _percent(value: float) -> str:
    return f"{100 * value:g} %"


def _number(value: float) -> str:
    if abs(value) >= TEN_THOUSAND:
        return f"{value / 1000:g}k"
    return f"{value:.6g}" if math.isfinite(value) else ""


# Pictures, for papers and slides.

INK, SOFT, BETTER, WORSE = (LIGHT[name] for name in ("ink", "soft", "good", "bad"))
WIDTH, HEIGHT, ROW = 4.6, 3.3, 0.3
BAR_LABEL, BAR_LETTERS = 2.1, 7
"""Width of the label of a row in inches, and the size of its letters in points."""
COLUMNS = 2
LEGEND_COLUMNS, LEGEND_LETTERS = 3, 8
LINE = 1.25 / 72
"""Height of a line of text in inches for each point of its size."""
_LINES: dict[str, dict[str, Any]] = {
    "": {"linewidth": 1.8},
    "dashed": {"linewidth": 1.6, "linestyle": (0, (6, 4))},
    "thin": {"linewidth": 1},
    "edge": {"linewidth": 1, "linestyle": (0, (2, 2))},
    "break": {"linewidth": 1.1, "linestyle": (0, (4, 3))},
    "dots": {"linewidth": 0, "marker": "o", "markersize": 5, "clip_on": False},
    "dots many": {"linewidth": 0, "marker": "o", "markersize": 2.5, "clip_on": False},
}
"""How series are drawn, by their style without its colour."""


def png(figure: Figure) -> bytes:
    """A figure with all of its plots as a PNG file, on white."""
    columns = min(COLUMNS, len(figure.plots))
    rows = math.ceil(len(figure.plots) / columns)
    legend = figure.legend()
    heights = [
        max(map(_height, figure.plots[columns * row : columns * (row + 1)])) for row in range(rows)
    ]
    width = max(WIDTH * columns, 6.0)
    # Before each name there are the curve and a gap.
    names = [wrapped(one.name, width / LEGEND_COLUMNS - 0.6, LEGEND_LETTERS) for one in legend]
    legend_row = 0.3 + LINE * LEGEND_LETTERS * max((name.count("\n") for name in names), default=0)
    height = sum(heights) + 0.5 + legend_row * math.ceil(len(legend) / LEGEND_COLUMNS)
    picture = Picture(width, height, figure.title)
    grid = picture.figure.subplots(rows, columns, squeeze=False, height_ratios=heights)
    places = list(grid.flat)
    for place in places:
        place.set_visible(False)
    for place, plot in zip(places, figure.plots, strict=False):
        place.set_visible(True)
        _draw(place, plot)
    if legend:
        handles = [_handle(curve, name) for curve, name in zip(legend, names, strict=True)]
        picture.add_legend(handles, LEGEND_COLUMNS, LEGEND_LETTERS)
    return picture.png()


def _height(plot: Plot) -> float:
    if not isinstance(plot, Bars):
        return HEIGHT
    lines = max(label.count("\n") for label in _bar_labels(plot))  # 1 where nothing is wrapped
    return 0.9 + (ROW + LINE * BAR_LETTERS * (lines - 1)) * len(plot.bars)


def _bar_labels(plot: Bars) -> list[str]:
    return [f"{wrapped(bar.label, BAR_LABEL, BAR_LETTERS)}\n{bar.text}" for bar in plot.bars]


def _draw(place: Any, plot: Plot) -> None:
    if isinstance(plot, Missing):
        strip_axes(place, plot.title)
        place.set_xticks([])
        place.set_yticks([])
        middle = {"ha": "center", "va": "center", "transform": place.transAxes}
        place.text(0.5, 0.5, plot.text, color=SOFT, fontsize=11, style="italic", **middle)
        return
    place.set_xlabel(plot.x_label, color=SOFT, fontsize=8.5)
    strip_axes(place, plot.title, grid="x" if isinstance(plot, Bars) else "y")
    if isinstance(plot, Bars):
        _draw_bars(place, plot)
    else:
        _draw_panel(place, plot)


def _draw_panel(place: Any, panel: Panel) -> None:
    chart = drawn(panel)
    _set_scale(place, "x", chart.x)
    _set_scale(place, "y", chart.y)
    for series in chart.series:
        place.plot(*zip(*series.points, strict=True), **_line(series.style))
    for label in chart.labels:
        at = {"xy": (label.left / 100, 1 - label.top / 100), "xycoords": "axes fraction"}
        shift = {"xytext": (5, 4), "textcoords": "offset points"}
        place.annotate(label.text, **at, **shift, fontsize=8, color=INK)


def _line(style: str) -> dict[str, Any]:
    """What matplotlib calls a style; one without a colour is drawn in a soft one."""
    colour, _, kind = style.partition(" ") if style.startswith("c") else (SOFT, "", style)
    return {"color": LIGHT.get(colour, colour), **_LINES[kind]}


def _set_scale(place: Any, name: str, scale: Axis) -> None:
    """Give the axis of that name, ``x`` or ``y``, a scale and its labels."""
    values = scale.values()
    limits = {f"{name}lim": (scale.low, scale.high), f"{name}ticks": values}
    labels = {f"{name}ticklabels": [scale.text(value) for value in values]}
    place.set(**{f"{name}scale": "log" if scale.log else "linear"}, **limits, **labels)
    place.minorticks_off()


def _draw_bars(place: Any, plot: Bars) -> None:
    _set_scale(place, "x", bar_axis(plot))
    for row, bar in enumerate(plot.bars):
        if plot.baseline is None:
            place.barh(row, bar.value, 0.55, color=PALETTE[bar.colour])
            continue
        colour = {True: BETTER, False: WORSE, None: SOFT}[bar.better]
        place.plot([bar.low, bar.high], [row, row], color=colour, linewidth=2)
        place.plot([bar.value], [row], "o", color=colour, markersize=5)
    if plot.baseline is not None:
        place.axvline(plot.baseline, color=SOFT, linewidth=1, zorder=0)
    place.set_yticks(range(len(plot.bars)), _bar_labels(plot))
    place.tick_params(axis="y", labelsize=BAR_LETTERS)
    place.set_ylim(len(plot.bars) - 0.4, -0.6)


def _handle(curve: Curve, name: str) -> Any:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra

    return Line2D([], [], label=name, **_line(curve.style))
