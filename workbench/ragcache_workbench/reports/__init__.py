"""What every report is made of: a base page, plots, tables, and colours.

A report is a template that extends ``reports/base.html.j2`` and draws with the macros of
``reports/macros.html.j2``; :func:`render_page` makes the page. Reports on
logs are a :class:`Report`, which is shown on the terminal, too.
"""

from __future__ import annotations

from .page import (
    Cell,
    Report,
    Section,
    Table,
    Tile,
    comparison,
    marked,
    percent,
    render_page,
    terminal_table,
    write_page,
)
from .plots import (
    DARK,
    LIGHT,
    PALETTE_SIZE,
    Bar,
    Bars,
    Curve,
    Missing,
    Panel,
    Plot,
    Point,
    Unit,
    add_legend,
    curve_of,
    new_picture,
    picture,
    png,
    short_number,
    strip_axes,
    svg,
)

__all__ = [
    "DARK",
    "LIGHT",
    "PALETTE_SIZE",
    "Bar",
    "Bars",
    "Cell",
    "Curve",
    "Missing",
    "Panel",
    "Plot",
    "Point",
    "Report",
    "Section",
    "Table",
    "Tile",
    "Unit",
    "add_legend",
    "comparison",
    "curve_of",
    "marked",
    "new_picture",
    "percent",
    "picture",
    "png",
    "render_page",
    "short_number",
    "strip_axes",
    "svg",
    "terminal_table",
    "write_page",
]
