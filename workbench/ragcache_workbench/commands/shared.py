"""What several commands have: users' own functions by name, and how findings are shown."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragcache_integrations.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["imported", "present"]


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
        msg = f"{problem} ({type(error).__name__}: {error})"
        raise ConfigurationError(msg) from error
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
