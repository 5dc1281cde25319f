"""What several commands have: ``--json``, the user's own code, and files that are written."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ragcache_integrations.errors import ConfigurationError

__all__ = ["add_json", "check_file", "check_folder", "imported"]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    words = "also write the results as JSON, on the last line"
    parser.add_argument("--json", action="store_true", help=words)


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


def check_file(flag: str, path: Path) -> Path:
    """Return the absolute path of a file that an option names, if it can be written.

    Raises:
        ConfigurationError: It is a folder, or its own folder is missing or cannot be written to.
    """
    file = path.absolute()
    if file.is_dir() or not file.parent.is_dir():
        msg = f"{flag} must name a file in a folder that exists, got {path}"
        raise ConfigurationError(msg)
    check_folder(file.parent, f"name another {flag}")
    return file


def check_folder(folder: Path, remedy: str) -> None:
    """Find out before a measurement, not after it, that nothing can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        msg = f"cannot write to {folder} ({error.strerror}): {remedy}"
        raise ConfigurationError(msg) from error
