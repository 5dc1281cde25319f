"""What every report is made of: a base page, plots, tables, and colours.

A report is a template that extends ``reports/base.html.j2`` and draws with the macros of
``reports/macros.html.j2``; :func:`render_page` makes the page. Reports on
logs are a :class:`Report`, which is shown on the terminal, too.
"""

from __future__ import annotations

from .colours import LIGHT, PALETTE, PALETTE_SIZE
from .findings import Report, Section, comparison, marked, percentage, terminal_table
from .page import Cell, Table, Tile, percent, render_page, write_page
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
    "Report",
    "Section",
    "Series",
    "Table",
    "Tick",
    "Tile",
    "comparison",
    "dot_series",
    "marked",
    "percent",
    "percentage",
    "render_page",
    "strip_axes",
    "terminal_table",
    "wrapped",
    "write_page",
]
