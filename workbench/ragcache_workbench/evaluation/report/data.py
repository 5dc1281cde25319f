"""The figures of a report as plain numbers, from which the page and the pictures are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ragcache_workbench.evaluation.runs import EvalRun

from .measures import Unit

__all__ = ["Bar", "Bars", "Curve", "Figure", "Missing", "Panel", "Plot", "Point"]


@dataclass(frozen=True, slots=True)
class Point:
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
        colour: Its colour, 0 to 7, which means the same in all plots of a figure.
        points: Its points, in the order of ``x``.
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
        unit: Unit of the values, which determines the vertical scale and the format of numbers.
        curves: At least one curve, the first one drawn first.
        x_unit: Unit of the positions; ``number`` for the values of a knob.
        breaks: Positions at which a run was interrupted and resumed.
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
        label: Label of the run.
        value: Position of the row's dot, or of the end of its bar.
        low: Lower end of its interval.
        high: Upper end of its interval.
        text: The value in words.
        better: Whether the whole interval is better than the baseline, or worse; ``None`` if it is
            neither.
        colour: Its colour without a baseline, 0 to 7, as of a curve.
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
        baseline: The baseline's value; ``None`` if bars begin at 0.
        log: Whether the axis is logarithmic.
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
        curves = [curve for panel in panels for curve in panel.curves if curve.kind != "edge"]
        by_name = {curve.name: curve for curve in curves}
        return [curve for name, curve in by_name.items() if name] if len(by_name) > 1 else []
