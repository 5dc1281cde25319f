"""What commands have in common: the table of options, users' functions, how findings are shown."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragcache_integrations.cli.options import at_least
from ragcache_integrations.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["WORDS", "add_command", "add_options", "imported", "present", "table"]

_TYPES: dict[str, Callable[[str], Any]] = {
    "number": float,
    "path": Path,
    "positive": at_least(1),
    "whole": int,
}


def table(path: str) -> dict[str, dict[str, Any]]:
    """Read a table of this distribution, without importing what it is for, which takes a while."""
    return tomllib.loads(files("ragcache_workbench").joinpath(path).read_text("utf-8"))


WORDS = table("commands/options.toml")
"""The words and the options of each command."""


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int | None],
) -> argparse.ArgumentParser:
    """Add a command to the command line, with its words but without options."""
    words = WORDS[name]
    parser = commands.add_parser(name, help=words["help"], description=words["description"])
    parser.set_defaults(command=run)
    return parser


def add_options(parser: argparse.ArgumentParser, options: Mapping[str, dict[str, Any]]) -> None:
    """Add options of the table; the names of their types are those of this module."""
    for name, facts in options.items():
        kind = {"type": _TYPES[facts["type"]]} if "type" in facts else {}
        parser.add_argument(name, **(facts | kind))


def imported(source: str, problem: str) -> Any:
    """Return what ``MODULE:NAME`` names; the module may be a file in the current folder.

    Args:
        source: A module and a name in it, which may have dots.
        problem: What to say if it cannot be imported; the reason follows in parentheses.

    Raises:
        ConfigurationError: The module or the name is not there, or the module raises an error.
    """
    module, _, name = source.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as python -m has it
    try:
        member: Any = importlib.import_module(module)
        for attribute in name.split("."):
            member = getattr(member, attribute)
    except (Exception, SystemExit) as error:  # the module is the user's and may do anything
        raise ConfigurationError(f"{problem} ({type(error).__name__}: {error})") from error
    return member


def present(
    findings: Any,
    show: Callable[[Console], None],
    write: Callable[[Path], None],
    report: Path | None,
    *,
    as_json: bool,
) -> None:
    """Show findings on the terminal, and write their page and their JSON if they are asked for.

    Args:
        findings: What a command found.
        show: Shows them on a console.
        write: Writes their page to a file.
        report: The page to write; ``None`` for none.
        as_json: Whether to write the findings as JSON, on the last line.
    """
    from rich import console as terminal  # noqa: PLC0415 - an extra

    console = terminal.Console()
    show(console)
    if report is not None:
        write(report)
        console.print(f"\nReport: {report}", highlight=False, soft_wrap=True)
    if as_json:
        sys.stdout.write(json.dumps(findings.as_dict()) + "\n")
