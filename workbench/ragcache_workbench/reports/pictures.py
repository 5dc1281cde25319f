"""Pictures for papers and slides: PNG files on white, in the colours of the pages."""

from __future__ import annotations

import textwrap
from io import BytesIO
from typing import Any

from .colours import LIGHT

__all__ = ["Picture", "strip_axes", "wrapped"]

DPI = 150
TITLE = 12  # points
WIDEST = 0.0095
"""Width of a letter in inches for each point of its size, bold and on average."""


class Picture:
    """A picture: a title, plots, and a legend below them.

    Args:
        width: Width in inches.
        height: Height in inches, with a title of one line; further lines add to it.
        title: Title above the plots; what is too long for a line is wrapped.

    Attributes:
        figure: The figure of matplotlib.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - an extra
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

        title = wrapped(title, width, TITLE)
        height += 1.2 * TITLE / 72 * title.count("\n")
        self.figure: Any = Figure(figsize=(width, height), facecolor="white", layout="constrained")
        FigureCanvasAgg(self.figure)
        self.figure.suptitle(
            title, x=0.01, ha="left", color=LIGHT["ink"], fontsize=TITLE, weight="bold"
        )

    def add_legend(self, handles: list[Any], columns: int, size: float) -> None:
        """Put a legend below the plots.

        Args:
            handles: The artists of matplotlib that it explains.
            columns: Number of entries in a row.
            size: Size of the letters in points.
        """
        self.figure.legend(
            handles=handles,
            loc="outside lower left",
            ncols=columns,
            frameon=False,
            fontsize=size,
            labelcolor=LIGHT["soft"],
        )

    def png(self) -> bytes:
        """Return the picture as a PNG file."""
        file = BytesIO()
        self.figure.savefig(file, dpi=DPI, format="png")
        return file.getvalue()


def wrapped(text: str, width: float, size: float) -> str:
    """Break a text into lines.

    What is wider than its place would be cut off, or leave no room for the plot next to it.

    Args:
        text: The text.
        width: Width of its place in inches.
        size: Size of the letters in points.
    """
    return textwrap.fill(text, max(1, int(width / (WIDEST * size))), break_on_hyphens=False)


def strip_axes(axes: Any, title: str, *, grid: str = "") -> None:
    """Set the title of a plot, and remove its frame and tick marks.

    Args:
        axes: The plot, as matplotlib's axes.
        title: Title above the plot, on the left.
        grid: The axis whose values have lines across the plot, ``x`` or ``y``; empty for none.
    """
    axes.set_title(title, loc="left", fontsize=10, color=LIGHT["ink"])
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(labelsize=8, colors=LIGHT["soft"], length=0)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=LIGHT["line"], linewidth=0.8)
