"""Plots as plain data, which an HTML template draws in per cent of their area.

Lines and dots are SVG paths that may be stretched to any shape, labels are HTML text that is not:
so the same plot is legible on a wide and on a narrow screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = [
    "MAX_POINTS",
    "Axis",
    "Chart",
    "Label",
    "Series",
    "Tick",
    "dot_series",
]

MAX_POINTS = 400
"""More points in a line would only make the page larger."""
MANY_DOTS = 50
"""More dots are drawn smaller, as they would hide each other."""
_FEWEST_TICKS = 3


@dataclass(frozen=True, slots=True)
class Tick:
    """A label on an axis and its place, in per cent."""

    label: str
    at: float


@dataclass(frozen=True, slots=True)
class Label:
    """Words next to a point, their place in per cent from the left and the top."""

    text: str
    left: float
    top: float


@dataclass(frozen=True, slots=True)
class Series:
    """A line, or dots.

    Attributes:
        name: For the legend; empty for none.
        style: CSS classes: a colour, ``c0`` to ``c7`` or ``other``, and how it is drawn:
            ``dashed``, ``thin``, ``dots``, ``many``, ``edge`` or ``break``.
        points: Its points, in the scales of the plot; at least one.
    """

    name: str
    style: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from low to high; what lies outside is put on its end.

    Attributes:
        low: First value; above 0 on a logarithmic scale.
        high: Last value, above ``low``.
        log: Whether the scale is logarithmic.
        text: Writes a tick's label.
        label: What the scale is of, in words.
        marks: Where the ticks are; empty for round values.
    """

    low: float
    high: float
    log: bool = False
    text: Callable[[float], str] = "{:g}".format
    label: str = ""
    marks: tuple[float, ...] = ()

    def place(self, value: float) -> float:
        """Return a value's place, in per cent."""
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(100 * (value - low) / (high - low), 2)

    def ticks(self, *, downwards: bool = False) -> tuple[Tick, ...]:
        """Return the labels; ``downwards`` for an axis that runs from the top."""
        places = [(value, self.place(value)) for value in self.values()]
        return tuple(
            Tick(self.text(value), round(100 - place, 2) if downwards else place)
            for value, place in places
        )

    def values(self) -> Sequence[float]:
        """Return the values that are labelled."""
        return self.marks or (self._log_values() if self.log else self._round_values())

    def _round_values(self) -> list[float]:
        least = (self.high - self.low) / 4
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least)
        first, last = math.ceil(self.low / step), math.floor(self.high / step + 1e-9)
        return [step * number for number in range(first, last + 1)]

    def _log_values(self) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1,), (1, 3), (1, 2, 5)):
            values = [factor * 10.0**power for power in powers for factor in factors]
            inside = [value for value in values if self.low <= value <= self.high]
            if len(inside) >= _FEWEST_TICKS:
                break
        return inside


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot: y runs from the top, as in SVG.

    Attributes:
        title: What it shows.
        x: The horizontal scale.
        y: The vertical scale.
        series: In the order in which they are drawn; later ones are on top.
        note: How to read it.
        labels: Words next to points.
        description: For those who do not see it; empty for title, scales and note.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    note: str = ""
    labels: tuple[Label, ...] = ()
    description: str = ""

    @property
    def x_ticks(self) -> tuple[Tick, ...]:
        """Labels of the horizontal scale."""
        return self.x.ticks()

    @property
    def y_ticks(self) -> tuple[Tick, ...]:
        """Labels of the vertical scale."""
        return self.y.ticks(downwards=True)

    def path(self, series: Series) -> str:
        """Return a series as an SVG path.

        The lines of dots have next to no length: round caps, which keep their shape, make dots of
        them.
        """
        if "dots" in series.style:
            return "".join(f"M{self._place(point)}h.01" for point in series.points)
        step = -(-len(series.points) // MAX_POINTS)
        kept = [*series.points[:-1:step], series.points[-1]]
        return "M" + "L".join(map(self._place, kept))

    def _place(self, point: tuple[float, float]) -> str:
        return f"{self.x.place(point[0]):g},{round(100 - self.y.place(point[1]), 2):g}"


def dot_series(name: str, colour: str, points: Sequence[tuple[float, float]]) -> Series:
    """Return points as dots, smaller where there are many.

    Args:
        name: For the legend; empty for none.
        colour: ``c0`` to ``c7`` or ``other``.
        points: At least one.
    """
    size = " many" if len(points) > MANY_DOTS else ""
    return Series(name, f"{colour} dots{size}", points)
