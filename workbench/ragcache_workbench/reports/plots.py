"""Plots of reports, drawn by matplotlib: SVG in the colours of a page, and PNG files on white.

Points, curves and bars are plain numbers; their units decide how they are drawn.
"""

from __future__ import annotations

import math
import re
import textwrap
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from io import BytesIO
from itertools import starmap
from typing import Any, Literal, NamedTuple

__all__ = [
    "DARK",
    "LIGHT",
    "PALETTE_SIZE",
    "Bar",
    "Bars",
    "Curve",
    "Missing",
    "Panel",
    "Plot",
    "Point",
    "Unit",
    "add_legend",
    "curve_of",
    "new_picture",
    "picture",
    "png",
    "short_number",
    "strip_axes",
    "svg",
]

PALETTE_SIZE = 8
"""Number of colours that can be distinguished in one plot: ``c0`` to ``c7``."""

_COLOURS: dict[str, tuple[str, str]] = tomllib.loads(
    files(__package__).joinpath("colours.toml").read_text("utf-8")
)
LIGHT, DARK = ({name: pair[ground] for name, pair in _COLOURS.items()} for ground in (0, 1))
"""The colours of every report by name, for a light and a dark background. A page has each colour as
the CSS variable of its name; pictures have the light ones."""

Unit = Literal["share", "ms", "count", "money", "score"]
"""A ``share`` is from 0 to 1, and so is a ``score``, usually."""

Kind = Literal["line", "path", "level", "dots", "edge", "rule", "break"]

SPREAD = 30.0
"""A scale is logarithmic if the largest value is this many times the least."""
RATIO_SPREAD = 5.0
"""The same for ratios of times."""
ZOOM_FROM = 0.8
"""Shares that are all above it fill their plot."""
MOST_MARKS = 7
"""The most values of a knob that are marked on an axis; of more, round numbers are."""
MANY_DOTS = 50
"""More dots are drawn smaller, as they would hide each other."""
MAX_POINTS = 400
"""More points in a path would only make the page larger."""

DPI = 150
WIDTH, HEIGHT, ROW = 4.6, 3.0, 0.3  # inches
BAR_LABEL, BAR_LETTERS = 2.1, 7
"""Width of the label of a row in inches, and the size of its letters in points."""
COLUMNS = 2
LEGEND_COLUMNS, LEGEND_LETTERS = 3, 8
TITLE = 12
LINE = 1.25 / 72
"""Height of a line of text in inches for each point of its size."""
WIDEST = 0.0095
"""Width of a letter in inches for each point of its size, bold and on average."""
_STYLES: dict[Kind, dict[str, Any]] = {
    "line": {"linewidth": 1.8, "marker": "o", "markersize": 5},
    "path": {"linewidth": 1.8},
    "level": {"linewidth": 1.6, "linestyle": (0, (6, 4))},
    "edge": {"linewidth": 1, "linestyle": (0, (2, 2))},
    "rule": {"linewidth": 1},
    "break": {"linewidth": 1.1, "linestyle": (0, (4, 3))},
    "dots": {"linewidth": 0, "marker": "o", "markersize": 5},
}


class Point(NamedTuple):
    """A point of a curve.

    Attributes:
        x: Its position on the horizontal axis, in the panel's ``x_unit``.
        y: Its value, in the panel's ``unit``.
        low: The least value of several runs, such as runs with different seeds.
        high: The largest value of these runs.
        label: Text next to the point; empty for none.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """Points that belong together.

    Attributes:
        name: Its name in the legend; empty for none.
        colour: Its colour, ``c0`` to ``c7``, ``other`` or ``soft``, the same in all plots of a
            figure.
        points: Its points, in the order of ``x``.
        kind: A ``line`` has its points marked; a ``path`` has many of them; ``level`` is one value
            for the whole axis; ``dots`` are not joined; an ``edge`` joins what is drawn elsewhere;
            a ``rule`` is a vertical line at each point, and so is a ``break``, where a run was
            interrupted and resumed.
    """

    name: str
    colour: str
    points: tuple[Point, ...]
    kind: Kind = "line"

    @property
    def style(self) -> str:
        """Its CSS classes in a legend."""
        return self.colour + {"level": " dashed", "dots": " dots"}.get(self.kind, "")


def curve_of(
    name: str, colour: str, points: Iterable[tuple[float, float]], kind: Kind = "path"
) -> Curve:
    """Return a curve through pairs of numbers."""
    return Curve(name, colour, tuple(starmap(Point, points)), kind)


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over an axis.

    Attributes:
        title: Name of the values.
        x_label: Name of the horizontal axis, with its unit.
        unit: Unit of the values, which determines the vertical scale and the format of numbers.
        curves: At least one curve, the first one drawn first.
        x_unit: Unit of the positions; ``number`` for the values of a knob.
        y_label: Name of the vertical axis; empty if the title has it.
        note: How to read it.
    """

    title: str
    x_label: str
    unit: Unit
    curves: tuple[Curve, ...]
    x_unit: Unit | Literal["number"] = "number"
    y_label: str = ""
    note: str = ""

    @property
    def legend(self) -> list[Curve]:
        """Curves with a name."""
        return [curve for curve in self.curves if curve.name]


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a plot with one row for each run.

    Attributes:
        label: Label of the run.
        value: Position of the row's dot, or of the end of its bar.
        low: Lower end of its interval.
        high: Upper end of its interval.
        text: The value in words.
        better: Whether the whole interval is better than the baseline, or worse; ``None`` if it is
            neither.
        colour: Its colour without a baseline, as of a curve.
    """

    label: str
    value: float
    low: float | None
    high: float | None
    text: str
    better: bool | None = None
    colour: str = "c0"


@dataclass(frozen=True, slots=True)
class Bars:
    """A row for each run.

    Attributes:
        title: Name of the values.
        x_label: Name of the axis, with its unit.
        bars: At least one row, from top to bottom.
        baseline: The baseline's value; ``None`` if bars begin at 0.
        log: Whether the axis is logarithmic if its values are far apart.
    """

    title: str
    x_label: str
    bars: tuple[Bar, ...]
    baseline: float | None = None
    log: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """The title of a plot that cannot be drawn, and the reason."""

    title: str
    text: str


Plot = Panel | Bars | Missing


def short_number(number: float) -> str:
    """A number for an axis: 500, 20k, 1.5M."""
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:g}{suffix}"
    return f"{number:g}"


def svg(plot: Panel | Bars) -> str:
    """Return a plot, without its title and legend, as an SVG element in the colours of a page."""
    from matplotlib import rc_context  # noqa: PLC0415 - takes a while

    figure = new_picture(WIDTH, _height(plot))
    _draw(figure.subplots(), plot)
    file = BytesIO()
    # The salt makes ids that no other plot of a page has, and always the same.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": repr(plot)}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    drawn = file.getvalue().decode()
    # A page has a font and a style of its own, and its colours depend on its background.
    drawn = re.sub(r"(?s)<metadata>.*?</metadata>|<style.*?</style>", "", drawn)
    drawn = re.sub(r' id="(?!m[0-9a-f]{10}")[^"]*"|font-family: [^;]*; ', "", drawn)
    names = {colour: name for name, colour in reversed(LIGHT.items())}
    drawn = re.sub("#[0-9a-f]{6}", lambda hit: _variable(names, hit[0]), drawn)
    head = f'<svg viewBox="0 0 {72 * WIDTH:g} {72 * _height(plot):g}" role="img" aria-label="'
    content = drawn[drawn.index(">", drawn.index("<svg")) + 1 :]
    return f'{head}{escape(_described(plot))}">{content}'


def _described(plot: Panel | Bars) -> str:
    """A plot in words, for those who do not see it."""
    if isinstance(plot, Bars):
        rows = [f"{bar.label}: {bar.text}" for bar in plot.bars]
    else:
        rows = [
            f"{curve.name or 'values'} from {curve.points[0].y:.4g} at {curve.points[0].x:.4g} to "
            f"{curve.points[-1].y:.4g} at {curve.points[-1].x:.4g}"
            for curve in plot.curves
            if curve.kind in {"line", "path"}
        ]
    return f"{plot.title} over {plot.x_label}. {'; '.join(rows)}"


def _variable(names: dict[str, str], colour: str) -> str:
    return f"var(--{names[colour]})" if colour in names else colour


def png(title: str, plots: Sequence[Plot], legend: Sequence[Curve] = ()) -> bytes:
    """Return plots under a title, with a legend below them, as a PNG file on white."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - takes a while

    columns = min(COLUMNS, len(plots))
    rows = math.ceil(len(plots) / columns)
    heights = [max(map(_height, plots[columns * row : columns * (row + 1)])) for row in range(rows)]
    width = max(WIDTH * columns, 6.0)
    # Before each name there are the curve and a gap.
    names = [wrapped(one.name, width / LEGEND_COLUMNS - 0.6, LEGEND_LETTERS) for one in legend]
    legend_row = 0.3 + LINE * LEGEND_LETTERS * max((name.count("\n") for name in names), default=0)
    height = sum(heights) + 0.5 + legend_row * math.ceil(len(legend) / LEGEND_COLUMNS)
    figure = new_picture(width, height, title)
    places = list(figure.subplots(rows, columns, squeeze=False, height_ratios=heights).flat)
    for place, plot in zip(places, plots, strict=False):
        place.set_title(plot.title, loc="left", fontsize=10, color=LIGHT["ink"])
        _draw(place, plot)
    for place in places[len(plots) :]:
        place.set_visible(False)
    handles = [
        Line2D([], [], label=name, **_style(curve))
        for curve, name in zip(legend, names, strict=True)
    ]
    add_legend(figure, handles, LEGEND_COLUMNS, LEGEND_LETTERS)
    return picture(figure)


def new_picture(width: float, height: float, title: str = "") -> Any:
    """Return an empty figure of matplotlib.

    Args:
        width: Width in inches.
        height: Height in inches, with a title of one line; further lines add to it.
        title: Title above the plots; one that is too long for a line is wrapped.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - takes a while
    from matplotlib.figure import Figure  # noqa: PLC0415 - takes a while

    title = wrapped(title, width, TITLE)
    height += 1.2 * TITLE / 72 * title.count("\n")
    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, x=0.01, ha="left", color=LIGHT["ink"], fontsize=TITLE, weight="bold")
    return figure


def add_legend(figure: Any, handles: Sequence[Any], columns: int, size: float) -> None:
    """Put a legend of artists below the plots, if there are any, in letters of a size."""
    if handles:
        figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=columns,
            frameon=False,
            fontsize=size,
            labelcolor=LIGHT["soft"],
        )


def picture(figure: Any) -> bytes:
    """Return a figure as a PNG file."""
    file = BytesIO()
    figure.savefig(file, dpi=DPI, format="png")
    return file.getvalue()


def wrapped(text: str, width: float, size: float) -> str:
    """Break a text into lines.

    One that is wider than its place would be cut off, or leave no room for the plot next to it.

    Args:
        text: The text.
        width: Width of its place in inches.
        size: Size of the letters in points.
    """
    return textwrap.fill(text, max(1, int(width / (WIDEST * size))), break_on_hyphens=False)


def strip_axes(axes: Any, *, grid: Literal["x", "y", ""] = "") -> None:
    """Remove the frame and the tick marks of a plot.

    Args:
        axes: The plot, as matplotlib's axes.
        grid: The axis whose values have lines across the plot; empty for none.
    """
    axes.spines[:].set_visible(False)
    axes.patch.set_visible(False)
    axes.tick_params(labelsize=8, colors=LIGHT["soft"], length=0)
    axes.minorticks_off()
    axes.set_axisbelow(True)
    if grid:
        # Nothing is clipped: a page loads nothing, and clipping names a path by its address.
        axes.grid(axis=grid, color=LIGHT["line"], linewidth=0.8, clip_on=False)


def _height(plot: Plot) -> float:
    if not isinstance(plot, Bars):
        return HEIGHT
    lines = max(label.count("\n") for label in _bar_labels(plot))  # 1 where nothing is wrapped
    return 0.9 + (ROW + LINE * BAR_LETTERS * (lines - 1)) * len(plot.bars)


def _bar_labels(plot: Bars) -> list[str]:
    return [f"{wrapped(bar.label, BAR_LABEL, BAR_LETTERS)}\n{bar.text}" for bar in plot.bars]


def _draw(place: Any, plot: Plot) -> None:
    soft = LIGHT["soft"]
    if isinstance(plot, Missing):
        place.set(xticks=[], yticks=[])
        middle = {"ha": "center", "va": "center", "transform": place.transAxes}
        place.text(0.5, 0.5, plot.text, color=soft, fontsize=11, style="italic", **middle)
        strip_axes(place)
        return
    place.set_xlabel(plot.x_label, color=soft, fontsize=8.5)
    place.margins(0.06)
    if isinstance(plot, Bars):
        _draw_bars(place, plot)
        strip_axes(place, grid="x")
        place.tick_params(axis="y", labelsize=BAR_LETTERS)
    else:
        place.set_ylabel(plot.y_label, color=soft, fontsize=8.5)
        _draw_panel(place, plot)
        strip_axes(place, grid="y")


def _style(curve: Curve) -> dict[str, Any]:
    return {"color": LIGHT[curve.colour], "clip_on": False, **_STYLES[curve.kind]}


def _draw_panel(place: Any, panel: Panel) -> None:
    for curve in panel.curves:
        _draw_curve(place, curve)
    curves = [curve for curve in panel.curves if curve.kind not in {"rule", "break"}]
    _scale_values(place, panel.unit, [point.y for curve in curves for point in curve.points])
    curves = [curve for curve in curves if curve.kind != "level"]
    placed = sorted({point.x for curve in curves for point in curve.points})
    if panel.x_unit != "count" and _spreads(placed[0], placed[-1], SPREAD):
        place.set_xscale("log")
    elif panel.x_unit == "ms":
        place.set_xlim(left=0)
    if panel.x_unit == "count" or all(curve.kind == "path" for curve in curves):
        place.margins(x=0)
    if panel.x_unit == "count":
        place.locator_params(axis="x", integer=True)
    if panel.x_unit == "number" and len(placed) <= MOST_MARKS:
        place.set_xticks(placed)  # the very values that a knob had
    for axis, unit in ((place.xaxis, panel.x_unit), (place.yaxis, panel.unit)):
        axis.set_major_formatter("{x:.0%}" if unit == "share" else _tick)


def _scale_values(place: Any, unit: Unit, values: Sequence[float]) -> None:
    if unit == "ms" and _spreads(min(values), max(values), SPREAD):
        place.set_yscale("log")
    elif unit != "score" and not (unit == "share" and min(values) >= ZOOM_FROM):
        place.set_ylim(bottom=min(0, *values))
    if unit == "share":
        place.set_ylim(top=min(1, place.get_ylim()[1]))


def _draw_curve(place: Any, curve: Curve) -> None:
    many = curve.kind == "dots" and len(curve.points) > MANY_DOTS
    style = _style(curve) | ({"markersize": 2.5} if many else {})
    step = -(-len(curve.points) // MAX_POINTS) if curve.kind == "path" else 1
    kept = [*curve.points[:-1:step], curve.points[-1]]
    if curve.kind == "level":
        place.axhline(kept[0].y, **style)
    elif curve.kind in {"rule", "break"}:
        for point in kept:
            place.axvline(point.x, **style)
    else:
        place.plot([point.x for point in kept], [point.y for point in kept], **style)
    for x, y, low, high, label in curve.points:
        if low is not None and high is not None:
            place.plot([x, x], [low, high], color=style["color"], linewidth=1, clip_on=False)
        if label:
            shift = {"xytext": (5, 4), "textcoords": "offset points"}
            place.annotate(label, (x, y), **shift, fontsize=8, color=LIGHT["ink"])


def _tick(value: float, _: int) -> str:
    return short_number(value)


def _spreads(low: float, high: float, least: float) -> bool:
    """Whether values are so far apart that a scale is to be logarithmic."""
    return low > 0 and least <= high / low <= 1e9  # noqa: PLR2004 - no scale has as many decades


def _draw_bars(place: Any, plot: Bars) -> None:
    values = [bar.value for bar in plot.bars]
    if plot.log and _spreads(min(values), max(values), RATIO_SPREAD):
        place.set_xscale("log")
    for row, bar in enumerate(plot.bars):
        if plot.baseline is None:
            place.barh(row, bar.value, 0.55, color=LIGHT[bar.colour], clip_on=False)
            continue
        colour = LIGHT[{True: "good", False: "bad", None: "soft"}[bar.better]]
        place.plot([bar.low, bar.high], [row, row], color=colour, linewidth=2, clip_on=False)
        place.plot([bar.value], [row], "o", color=colour, markersize=5, clip_on=False)
    if plot.baseline is not None:
        place.axvline(plot.baseline, color=LIGHT["soft"], linewidth=1, zorder=0, clip_on=False)
    place.xaxis.set_major_formatter(_tick)
    place.set_yticks(range(len(plot.bars)), _bar_labels(plot))
    place.set_ylim(len(plot.bars) - 0.4, -0.6)
