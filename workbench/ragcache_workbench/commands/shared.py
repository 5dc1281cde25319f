"""What several commands have: users' own functions by name, and how findings are shown."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from ragcache_integrations.errors import ConfigurationError

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


def present(findings: Any, package: str, report: Path | None, *, as_json: bool) -> None:
    """Show findings on the terminal, and write their page and their JSON if they are asked for.

    Args:
        findings: What a command found.
        package: The package of this distribution with the modules ``console`` and ``report``, which
            are imported here, as they need extras.
        report: The page to write; ``None`` for none.
        as_json: Whether to write the findings as JSON, on the last line.
    """
    from rich.console import Console  # noqa: PLC0415 - an extra

    def module(name: str) -> Any:
        return importlib.import_module(f"ragcache_workbench.{package}.{name}")

    console = Console()
    module("console").show(findings, console)
    if report is not None:
        module("report").write_report(findings, report)
        console.print(f"\nReport: {report}", highlight=False, soft_wrap=True)
    if as_json:
        sys.stdout.write(json.dumps(findings.as_dict()) + "\n")
