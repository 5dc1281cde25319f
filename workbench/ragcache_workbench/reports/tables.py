"""Tables and figures in large type, as a page shows them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cell", "Table", "Tile"]


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
