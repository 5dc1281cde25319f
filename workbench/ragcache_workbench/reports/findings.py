"""A report on a log: the same verdict, tables and notes on the terminal and on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .page import Cell, Table, Tile, render_page, write_page
from .plots import Axis, Chart, Series

if TYPE_CHECKING:
    from rich import console, table

__all__ = ["Report", "Section", "comparison", "marked", "percentage", "terminal_table"]

SIDES = ("c0", "other dashed")
"""How the line of ours and the line that it is compared with are drawn."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table under its title.

    Attributes:
        title: What the table is about.
        table: The table.
        note: How to read it; empty for nothing.
        every: The terminal shows one row of this many, and all that are marked.
    """

    title: str
    table: Table
    note: str = ""
    every: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found, ready to be shown.

    Attributes:
        question: What was asked, the title.
        lead: What was done to find it out.
        name: Name of the log.
        pays: Whether the verdict is a good one.
        verdict: What to do.
        advice: Why, and what else is possible.
        notes: What has to be known to read the figures.
        tiles: The main figures, on the page.
        charts: The plots, on the page.
        sections: The tables.
    """

    question: str
    lead: str
    name: str
    pays: bool
    verdict: str
    advice: str
    notes: Sequence[str]
    tiles: Sequence[Tile]
    charts: Sequence[Chart]
    sections: Sequence[Section]

    def render(self) -> str:
        """The report as HTML: no script, nothing loaded from anywhere."""
        return render_page("reports/findings.html.j2", report=self)

    def write(self, path: Path) -> None:
        """Write the report to an HTML file.

        Raises:
            ConfigurationError: The file cannot be written.
        """
        write_page(self.render(), path)

    def show(self, console: console.Console) -> None:
        """Write the report on the terminal, without the plots."""
        style = "bold green" if self.pays else "bold red"
        console.print(self.verdict, style=style, highlight=False, markup=False)
        console.print(self.advice, highlight=False, markup=False)
        for section in self.sections:
            console.print()
            console.print(section.title, style="bold", highlight=False, markup=False)
            if section.note:
                console.print(section.note, highlight=False, markup=False)
            console.print(terminal_table(section.table, every=section.every))
        console.print()
        for note in self.notes:
            console.print(f"• {note}", highlight=False, style="dim", markup=False)


def terminal_table(table: Table, title: str = "", *, every: int = 1) -> table.Table:
    """Return a table for the terminal.

    Args:
        table: The table.
        title: Its title; empty for none.
        every: One row of this many is shown, and all that are marked.
    """
    from rich.markup import escape  # noqa: PLC0415 - pages need no terminal
    from rich.table import Table as TerminalTable  # noqa: PLC0415 - as above

    shown = TerminalTable(title=title or None, title_justify="left", title_style="bold")
    for place, head in enumerate(table.heads):
        shown.add_column(head, justify="right" if place else "left", overflow="fold")
    for place, row in enumerate(table.rows):
        is_marked = any(cell.style == "good" for cell in row)
        if place % every == 0 or is_marked:
            cells = (escape(cell.text) for cell in row)
            shown.add_row(*cells, style="bold green" if is_marked else None)
    return shown


def marked(texts: Sequence[str], *, is_recommended: bool) -> tuple[Cell, ...]:
    """Return a row of a table, marked if it is the one that is recommended."""
    first, *rest = texts
    if not is_recommended:
        return tuple(map(Cell, texts))
    return tuple(Cell(text, style="good") for text in (f"{first} ← recommended", *rest))


def percentage(value: float) -> str:
    """A tick of a scale from 0 to 100 per cent."""
    return f"{value:g}%"


def comparison(
    title: str,
    note: str,
    x: Axis,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    recommended: float | None,
) -> Chart:
    """Return a plot of two shares in per cent.

    Args:
        title: What it shows.
        note: How to read it.
        x: The horizontal scale.
        lines: Ours, then what it is compared with, by name.
        recommended: Where a vertical line is drawn; ``None`` for none.
    """
    highest = max(share for line in lines.values() for _, share in line)
    y = Axis(0, min(100.0, 1.1 * highest) or 1.0, text=percentage)
    series = [
        Series(name, style, line) for (name, line), style in zip(lines.items(), SIDES, strict=True)
    ]
    if recommended is not None:
        ends = [(recommended, y.low), (recommended, y.high)]
        series.append(Series("recommended", "c1 thin", ends))
    return Chart(title, x, y, tuple(series), note)
