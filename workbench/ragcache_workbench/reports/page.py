"""Pages that need nothing but a browser, and the tables and figures on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ragcache_integrations import __version__
from ragcache_integrations.core.files import replacing
from ragcache_integrations.core.texts import without_surrogates
from ragcache_integrations.errors import ConfigurationError

from .colours import DARK, LIGHT, PALETTE_SIZE

__all__ = ["Cell", "Table", "Tile", "percent", "render_page", "write_page"]


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
        "light": LIGHT,
        "dark": DARK,
        "curves": [*(f"c{number}" for number in range(PALETTE_SIZE)), "other"],
    }
    return environment


def _source(template: str) -> str:
    return files("ragcache_workbench").joinpath(template).read_text(encoding="utf-8")
