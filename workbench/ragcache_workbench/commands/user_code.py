"""Imports what users name as ``MODULE:NAME``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from ragcache_integrations.errors import ConfigurationError

__all__ = ["imported"]


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
