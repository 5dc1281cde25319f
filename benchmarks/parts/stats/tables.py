"""Tables of figures on the console."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Cell", "print_table"]

Cell = str | int | float | None


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table at once, so that a long run shows what it has so far.

    Args:
        title: Its heading.
        head: Names of the columns; the first ones may hold text.
        rows: Cells; a ``float`` is shown with four significant digits, ``None`` as a dash.
    """
    shown = [[_show(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *shown, strict=True)]
    lines = ["", title]
    for cells in (head, *shown):
        pairs = zip(cells, widths, strict=True)
        lines.append("  ".join(cell.rjust(width) for cell, width in pairs))
    print("\n".join(lines), flush=True)


def _show(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
