"""What every report is made of: a base page, plots, tables, and colours.

A report is a template that extends ``reports/base.html.j2`` and draws with the macros of
``reports/macros.html.j2``; :func:`render_page` makes the page.
"""

from __future__ import annotations

from .colours import LIGHT, PALETTE, PALETTE_SIZE
from .page import render_page, write_page
from .pictures import Picture, strip_axes, wrapped
from .plots import (
    MAX_POINTS,
    Axis,
    Chart,
    Label,
    Series,
    Tick,
    dot_series,
)
from .tables import Cell, Table, Tile
from .words import percent

__all__ = [
    "LIGHT",
    "MAX_POINTS",
    "PALETTE",
    "PALETTE_SIZE",
    "Axis",
    "Cell",
    "Chart",
    "Label",
    "Picture",
    "Series",
    "Table",
    "Tick",
    "Tile",
    "dot_series",
    "percent",
    "render_page",
    "strip_axes",
    "wrapped",
    "write_page",
]
