"""Tables of presets as Markdown, and on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from .base import Table

__all__ = ["markdown", "show_tables"]


def markdown(title: str, tables: Sequence[Table], remarks: Sequence[str]) -> str:
    """Write a page of Markdown.

    Args:
        title: The page's title.
        tables: The tables.
        remarks: Paragraphs at the end.
    """
    parts = [f"# {title}"]
    for table in tables:
        lines = [
            _line(table.columns),
            _line(["---", *(["---:"] * (len(table.columns) - 1))]),
            *(_line([cell.text for cell in row]) for row in table.rows),
        ]
        parts += [f"## {table.title}", "\n".join(lines), *table.notes]
    return "\n\n".join([*parts, *remarks]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def show_tables(tables: Sequence[Table], remarks: Sequence[str], console: Console) -> None:
    """Write tables and remarks on the terminal.

    Args:
        tables: The tables.
        remarks: Sentences after them.
        console: The terminal.
    """
    for table in tables:
        shown = RichTable(
            title=escape(table.title),
            title_justify="left",
            box=SIMPLE_HEAD,
            collapse_padding=True,
            caption=escape(" ".join(table.notes)) or None,
            caption_justify="left",
        )
        # Rows of text alone, such as the papers' figures, are read from the left.
        numbers = any(not isinstance(cell.value, str) for row in table.rows for cell in row[1:-1])
        for place, words in enumerate(table.columns):
            right = place and numbers
            shown.add_column(words, justify="right" if right else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*(escape(cell.text) for cell in row))
        console.print(shown)
    for remark in remarks:
        console.print(remark, highlight=False, markup=False)
