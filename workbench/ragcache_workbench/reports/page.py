"""Pages that need nothing but a browser."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ragcache_integrations import __version__
from ragcache_integrations.core.files import replacing
from ragcache_integrations.core.texts import without_surrogates
from ragcache_integrations.errors import ConfigurationError

from .colours import DARK, LIGHT, PALETTE_SIZE

__all__ = ["render_page", "write_page"]


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
