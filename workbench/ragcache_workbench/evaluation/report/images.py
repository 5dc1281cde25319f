"""Plots of a report as PNG files, for papers and slides."""

from __future__ import annotations

import math
from typing import Any

from ragcache_workbench.reports import LIGHT, PALETTE, Axis, Picture, strip_axes, wrapped

from .data import Bars, Curve, Figure, Missing, Panel, Plot
from .plots import bar_axis, drawn

__all__ = ["png"]

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
