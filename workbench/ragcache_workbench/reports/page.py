"""Pages that need nothing but a browser, and what is on them; reports on logs also on terminals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ragcache_integrations import __version__
from ragcache_integrations.core.files import replacing
from ragcache_integrations.core.texts import without_surrogates
from ragcache_integrations.errors import ConfigurationError

from .plots import DARK, LIGHT, PALETTE_SIZE, Panel, curve_of, svg

if TYPE_CHECKING:
    from rich import console, table

__all__ = [
    "Cell",
    "Report",
    "Section",
    "Table",
    "Tile",
    "comparison",
    "marked",
    "percent",
    "render_page",
    "terminal_table",
    "write_page",
]


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What it shows.
        key: The number that a column is sorted by; ``None`` for the text.
        style: CSS classes: ``strong``, ``good`` or ``words``.
        link: Id of the element on the page that a row's name links to; empty for none.
    """

    text: str
    key: float | None = None
    style: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under heads.

    Attributes:
        heads: Names of the columns.
        rows: As many cells as there are heads; the first one names its row.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure in large type.

    Attributes:
        label: What it is the figure of.
        value: The figure, with its unit.
        note: Explanation below it; empty for none.
        before: The figure that it is compared with; empty for none.
    """

    label: str
    value: str
    note: str = ""
    before: str = ""


def percent(share: float) -> str:
    """A share as text, with two digits."""
    return f"{share:.0%}" if share >= 0.095 else f"{100 * share:.2g}%"  # noqa: PLR2004 - 9.5 %


def render_page(template: str, **values: Any) -> str:
    """Render a template of this package; every text in it is escaped.

    Args:
        template: Its path below the package, such as ``demo/report.html.j2``.
        values: Its variables; all that it names must be there.

    Returns:
        One HTML file, which loads nothing. Single surrogates, which no file can hold, are U+FFFD.
    """
    html: str = _environment().get_template(template).render(values)
    return without_surrogates(html)


def write_page(html: str, path: Path) -> None:
    """Write a page to a file, all of it or nothing.

    Args:
        html: The page.
        path: The file, which is replaced if it exists; its folder must exist.

    Raises:
        ConfigurationError: It cannot be written.
    """
    try:
        with replacing(path) as file:
            file.write(html.encode())
    except OSError as error:
        msg = f"cannot write the report {path} ({error.strerror or error}): name another file"
        raise ConfigurationError(msg) from error


@cache
def _environment() -> Any:
    # Imported here, since the commands' options are known without it.
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # noqa: PLC0415 - as above

    environment = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "version": __version__,
        "svg": svg,
        "light": LIGHT,
        "dark": DARK,
        "curves": [*(f"c{number}" for number in range(PALETTE_SIZE)), "other"],
    }
    return environment


def _source(template: str) -> str:
    return files("ragcache_workbench").joinpath(template).read_text(encoding="utf-8")


# Reports on logs.

SIDES = ("c0", "other")
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
    charts: Sequence[Panel]
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


def comparison(
    title: str,
    note: str,
    x_label: str,
    lines: Mapping[str, Iterable[tuple[float, float]]],
    recommended: float | None,
    x_unit: Literal["share", "number"] = "number",
) -> Panel:
    """Return a plot of two shares.

    Args:
        title: What it shows.
        note: How to read it.
        x_label: Name of the horizontal axis.
        lines: Ours, then what it is compared with, by name.
        recommended: Where a vertical line is drawn; ``None`` for none.
        x_unit: Unit of the positions.
    """
    curves = [
        curve_of(name, colour, line)
        for (name, line), colour in zip(lines.items(), SIDES, strict=True)
    ]
    if recommended is not None:
        curves.append(curve_of("recommended", "c1", [(recommended, 0)], "rule"))
    return Panel(title, x_label, "share", tuple(curves), x_unit, note=note)
