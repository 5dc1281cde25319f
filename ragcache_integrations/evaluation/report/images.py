"""Plots of a report as PNG files, for papers and slides."""

from __future__ import annotations

import math
from io import BytesIO
from typing import Any

from ragcache_integrations.core.extras import require
from ragcache_integrations.evaluation.report.data import Bars, Curve, Figure, Missing, Panel, Plot
from ragcache_integrations.evaluation.report.plots import axes, bar_axis, x_values

__all__ = ["PALETTE", "png"]

PALETTE = (
    *("#0b7a75", "#c2560c", "#4a55c8", "#b3265e", "#2f7fd1", "#6b7a00", "#8a5a2b", "#5b6472"),
)
"""Colours of curves on a light ground, as on the page."""

INK, SOFT, LINE = "#1b1f27", "#5b6472", "#e2e6ec"
BETTER, WORSE = "#0b7a75", "#b42318"
WIDTH, HEIGHT, ROW = 4.6, 3.3, 0.3
COLUMNS = 2
DPI = 150
LEGEND_COLUMNS = 3


def png(figure: Figure) -> bytes:
    """A figure with all of its plots as a PNG file, on white.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require("matplotlib", feature="PNG files of a report", extra="eval")
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
    from matplotlib.figure import Figure as Canvas  # noqa: PLC0415 - an extra

    columns = min(COLUMNS, len(figure.plots))
    rows = math.ceil(len(figure.plots) / columns)
    legend = figure.legend()
    heights = [
        max(map(_height, figure.plots[columns * row : columns * (row + 1)])) for row in range(rows)
    ]
    named = 0.3 * math.ceil(len(legend) / LEGEND_COLUMNS) if legend else 0
    size = (max(WIDTH * columns, 6.0), sum(heights) + 0.5 + named)
    canvas = Canvas(figsize=size, facecolor="white", layout="constrained")
    FigureCanvasAgg(canvas)
    places = list(canvas.subplots(rows, columns, squeeze=False, height_ratios=heights).flat)
    for place in places:
        place.set_visible(False)
    for place, plot in zip(places, figure.plots, strict=False):
        place.set_visible(True)
        _draw(place, plot)
    canvas.suptitle(figure.title, x=0.01, ha="left", color=INK, fontsize=12, weight="bold")
    if legend:
        canvas.legend(
            handles=[_handle(one) for one in legend],
            loc="outside lower left",
            ncols=LEGEND_COLUMNS,
            frameon=False,
            fontsize=8,
            labelcolor=SOFT,
        )
    file = BytesIO()
    canvas.savefig(file, dpi=DPI, format="png")
    return file.getvalue()


def _height(plot: Plot) -> float:
    return 0.9 + ROW * len(plot.bars) if isinstance(plot, Bars) else HEIGHT


def _draw(place: Any, plot: Plot) -> None:
    place.set_title(plot.title, loc="left", fontsize=10, color=INK)
    for side in place.spines.values():
        side.set_visible(False)
    place.tick_params(labelsize=8, colors=SOFT, length=0)
    place.set_axisbelow(True)
    if isinstance(plot, Missing):
        place.set_xticks([])
        place.set_yticks([])
        middle = {"ha": "center", "va": "center", "transform": place.transAxes}
        place.text(0.5, 0.5, plot.text, color=SOFT, fontsize=11, style="italic", **middle)
        return
    place.set_xlabel(plot.x_label, color=SOFT, fontsize=8.5)
    place.grid(axis="x" if isinstance(plot, Bars) else "y", color=LINE, linewidth=0.8)
    if isinstance(plot, Bars):
        _draw_bars(place, plot)
    else:
        _draw_panel(place, plot)


def _draw_panel(place: Any, panel: Panel) -> None:
    x, y = axes(panel)
    for scale, values, set_scale, set_limits, set_ticks in (
        (x, x_values(panel, x), place.set_xscale, place.set_xlim, place.set_xticks),
        (y, y.values(), place.set_yscale, place.set_ylim, place.set_yticks),
    ):
        set_scale("log" if scale.log else "linear")
        set_limits(scale.low, scale.high)
        set_ticks(values, [scale.text(one) for one in values])
    place.minorticks_off()
    for curve in panel.curves:
        _draw_curve(place, curve)
    for at in panel.breaks:
        place.axvline(at, color=SOFT, linewidth=1.1, linestyle=(0, (4, 3)))


def _draw_curve(place: Any, curve: Curve) -> None:
    colour = PALETTE[curve.colour]
    xs, ys = [one.x for one in curve.points], [one.y for one in curve.points]
    if curve.kind == "level":
        place.axhline(ys[0], color=colour, linewidth=1.6, linestyle=(0, (6, 4)))
    elif curve.kind == "edge":
        place.plot(xs, ys, color=SOFT, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
    elif curve.kind == "path":
        place.plot(xs, ys, color=colour, linewidth=1.8)
    else:
        many = len(xs) > 40  # noqa: PLR2004 - so many dots of the full size would hide each other
        size = 2.5 if many else 5
        width = 1.8 if curve.kind == "line" else 0
        place.plot(xs, ys, "o-", color=colour, linewidth=width, markersize=size, clip_on=False)
    for one in curve.points:
        if one.low is not None and one.high is not None:
            place.plot([one.x, one.x], [one.low, one.high], color=colour, linewidth=1)
        if one.label:
            place.annotate(
                one.label, (one.x, one.y), (5, 4), textcoords="offset points", fontsize=8, color=INK
            )


def _draw_bars(place: Any, plot: Bars) -> None:
    axis = bar_axis(plot)
    place.set_xscale("log" if axis.log else "linear")
    place.set_xlim(axis.low, axis.high)
    values = axis.values()
    place.set_xticks(values, [axis.text(one) for one in values])
    place.minorticks_off()
    for row, bar in enumerate(plot.bars):
        if plot.baseline is None:
            place.barh(row, bar.value, 0.55, color=PALETTE[bar.colour])
            continue
        colour = {True: BETTER, False: WORSE, None: SOFT}[bar.better]
        place.plot([bar.low, bar.high], [row, row], color=colour, linewidth=2)
        place.plot([bar.value], [row], "o", color=colour, markersize=5)
    if plot.baseline is not None:
        place.axvline(plot.baseline, color=SOFT, linewidth=1, zorder=0)
    place.set_yticks(range(len(plot.bars)), [f"{one.label}\n{one.text}" for one in plot.bars])
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
