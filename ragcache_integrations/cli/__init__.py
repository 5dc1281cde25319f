"""The command line: ``ragcache serve``, ``demo``, ``eval``, ``lint``, ``profile``, ``report``."""

from .command import main

__all__ = ["main"]
