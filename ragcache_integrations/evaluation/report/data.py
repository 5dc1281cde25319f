"""What a report draws, as plain numbers; a page and pictures are made of the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ragcache_integrations.evaluation.runs import EvalRun

from .measures import Unit

__all__ = ["Bar", "Bars", "Curve", "Figure", "Missing", "Panel", "Plot", "Point"]


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve.

    Attributes:
        x: Its place on the horizontal axis, in the panel's ``x_unit``.
        y: Its value, in the panel's ``unit``.
        low: Least value of several runs, as of several seeds.
        high: Largest value of these.
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
        name: For the legend; empty for none.
        colour: From 0 to 7; the same number is the same thing in all plots of a figure.
        points: In the order of their places.
        kind: A ``line`` has its points marked; a ``path`` has many of them; ``level`` is one value
            for the whole axis; ``dots`` are not joined; an ``edge`` joins what is drawn elsewhere.
    """

    name: str
    colour: int
    points: tuple[Point, ...]
    kind: Literal["line", "path", "level", "dots", "edge"] = "line"

    @property
    def style(self) -> str:
        """Its CSS classes in a legend."""
        return f"c{self.colour}" + {"level": " dashed", "dots": " dots"}.get(self.kind, "")


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over an axis.

    Attributes:
        title: Name of the values, with their unit.
        x_label: Name of the horizontal axis, with its unit.
        unit: What the values are: decides the vertical scale and how numbers are written.
        curves: At least one curve, the first one drawn first.
        x_unit: What the places are; ``number`` for the values of a knob.
        breaks: Places where a run was interrupted and resumed.
    """

    title: str
    x_label: str
    unit: Unit
    curves: tuple[Curve, ...]
    x_unit: Unit | Literal["number"] = "number"
    breaks: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a plot with one row for each run.

    Attributes:
        label: What it is of.
        value: Where the row's dot, or the end of its bar, is.
        low: Lower end of its interval.
        high: Upper end of its interval.
        text: The value in words.
        better: Whether the whole interval is better than the baseline, or worse; ``None`` where
            neither is known.
        colour: Where there is no baseline: from 0 to 7, as of a curve.
    """

    label: str
    value: float
    low: float | None
    high: float | None
    text: str
    better: bool | None = None
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Bars:
    """A row for each run.

    Attributes:
        title: Name of the values.
        x_label: Name of the axis, with its unit.
        bars: At least one row, from top to bottom.
        baseline: Where the value is that of the baseline; ``None`` where bars begin at 0.
        log: Whether equal ratios are equal distances.
    """

    title: str
    x_label: str
    bars: tuple[Bar, ...]
    baseline: float | None = None
    log: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """What would be drawn, and why it is not."""

    title: str
    text: str


Plot = Panel | Bars | Missing


@dataclass(frozen=True, slots=True)
class Figure:
    """Plots with one title, of the same runs.

    Attributes:
        name: For files and links.
        title: What the plots have in common.
        note: How to read it.
        plots: At least one plot, in the order of the page.
        runs: Those that it shows.
    """

    name: str
    title: str
    note: str
    plots: tuple[Plot, ...]
    runs: tuple[EvalRun, ...]

    def legend(self) -> Sequence[Curve]:
        """Curves with a name, each once; empty if there are not at least two."""
        panels = [plot for plot in self.plots if isinstance(plot, Panel)]
        curves = [curve for panel in panels for curve in panel.curves if curve.kind != "edge"]
        by_name = {curve.name: curve for curve in curves}
        return [curve for name, curve in by_name.items() if name] if len(by_name) > 1 else []
