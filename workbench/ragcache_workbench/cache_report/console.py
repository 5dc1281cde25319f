"""The findings on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .replay import TOLERANCES
from .summary import Findings
from .tables import GROUP_HEADS, TOLERANCE_HEADS, group_row, group_tables, tolerance_row

__all__ = ["show"]

_STEP = 3
"""Every third tolerance is shown, and the one that is taken."""


def show(findings: Findings, console: Console) -> None:
    """Write the verdict, then the tables."""
    style = "bold green" if findings.pays else "bold red"
    console.print(findings.verdict(), style=style, highlight=False)
    console.print(findings.advice(), highlight=False)
    console.print()
    console.print(
        f"By tolerance, {len(findings.questions):,} questions: with {findings.guards}, and alone",
        style="bold",
        highlight=False,
    )
    console.print(_tolerances(findings))
    for title, (first, groups) in group_tables(findings).items():
        table = _table((first, *GROUP_HEADS))
        for group in groups:
            table.add_row(*map(escape, group_row(group)))
        console.print()
        console.print(title, style="bold", highlight=False)
        console.print(table)
    console.print()
    for note in findings.notes():
        console.print(f"• {escape(note)}", highlight=False, style="dim")


def _table(columns: tuple[str, ...]) -> Table:
    table = Table()
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _tolerances(findings: Findings) -> Table:
    table = _table(TOLERANCE_HEADS)
    taken = findings.guarded.proof.taken
    for place in range(len(TOLERANCES)):
        if place % _STEP == 0 or place == taken:
            style = "bold green" if place == taken else None
            table.add_row(*tolerance_row(findings, place), style=style)
    return table
