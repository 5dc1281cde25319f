"""Plots of a report as PNG files, for papers and slides."""

from __future__ import annotations

import math
from typing import Any

from ragcache_integrations.reports import LIGHT, PALETTE, Axis, Picture, strip_axes

from .data import Bars, Curve, Figure, Missing, Panel, Plot
from .plots import axes, bar_axis

__all__ = ["png"]

INK, SOFT, BETTER, WORSE = (LIGHT[name] for name in ("ink", "soft", "good", "bad"))
WIDTH, HEIGHT, ROW = 4.6, 3.3, 0.3
COLUMNS = 2
LEGEND_COLUMNS = 3


def png(figure: Figure) -> bytes:
    """A figure with all of its plots as a PNG file, on white.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    columns = min(COLUMNS, len(figure.plots))
    rows = math.ceil(len(figure.plots) / columns)
    legend = figure.legend()
    heights = [
        max(map(_height, figure.plots[columns * row : columns * (row + 1)])) for row in range(rows)
    ]
    legend_height = 0.3 * math.ceil(len(legend) / LEGEND_COLUMNS)
    width, height = max(WIDTH * columns, 6.0), sum(heights) + 0.5 + legend_height
    picture = Picture(width, height, figure.title, feature="PNG files of a report")
    grid = picture.figure.subplots(rows, columns, squeeze=False, height_ratios=heights)
    places = list(grid.flat)
    for place in places:
        place.set_visible(False)
    for place, plot in zip(places, figure.plots, strict=False):
        place.set_visible(True)
        _draw(place, plot)
    if legend:
        picture.add_legend([_handle(curve) for curve in legend], LEGEND_COLUMNS, 8)
    return picture.png()


def _height(plot: Plot) -> float:
    return 0.9 + ROW * len(plot.bars) if isinstance(plot, Bars) else HEIGHT


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
    x, y = axes(panel)
    for scale, name in ((x, "x"), (y, "y")):
        _set_scale(place, name, scale)
    for curve in panel.curves:
        _draw_curve(place, curve)
    for at in panel.breaks:
        place.axvline(at, color=SOFT, linewidth=1.1, linestyle=(0, (4, 3)))


def _set_scale(place: Any, name: str, scale: Axis) -> None:
    """Give the axis of that name, ``x`` or ``y``, a scale and its labels."""
    values = scale.values()
    limits = {f"{name}lim": (scale.low, scale.high), f"{name}ticks": values}
    labels = {f"{name}ticklabels": [scale.text(value) for value in values]}
    place.set(**{f"{name}scale": "log" if scale.log else "linear"}, **limits, **labels)
    place.minorticks_off()


def _draw_curve(place: Any, curve: Curve) -> None:
    colour = PALETTE[curve.colour]
    xs, ys = [point.x for point in curve.points], [point.y for point in curve.points]
    if curve.kind == "level":
        place.axhline(ys[0], color=colour, linewidth=1.6, linestyle=(0, (6, 4)))
    elif curve.kind == "edge":
        place.plot(xs, ys, color=SOFT, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
    elif curve.kind == "path":
        place.plot(xs, ys, color=colour, linewidth=1.8)
    else:
        many = len(xs) > 40  # noqa: PLR2004 - more dots of the full size would hide each other
        size = 2.5 if many else 5
        width = 1.8 if curve.kind == "line" else 0
        place.plot(xs, ys, "o-", color=colour, linewidth=width, markersize=size, clip_on=False)
    for point in curve.points:
        if point.low is not None and point.high is not None:
            place.plot([point.x, point.x], [point.low, point.high], color=colour, linewidth=1)
        if point.label:
            at = {"xy": (point.x, point.y), "xytext": (5, 4), "textcoords": "offset points"}
            place.annotate(point.label, **at, fontsize=8, color=INK)


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
    place.set_yticks(range(len(plot.bars)), [f"{bar.label}\n{bar.text}" for bar in plot.bars])
    place.tick_params(axis="y", labelsize=7)
    place.set_ylim(len(plot.bars) - 0.4, -0.6)


def _handle(curve: Curve) -> Any:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an extra

    lines: dict[str, Any] = {"level": (0, (6, 4)), "dots": "none"}
    return Line2D(
        [],
        [],
        color=PALETTE[curve.colour],
        label=curve.name,
        linewidth=1.8,
        linestyle=lines.get(curve.kind, "-"),
        marker="o" if curve.kind in {"line", "dots"} else None,
        markersize=5,
    )
