"""The command line: ``ragcache serve``, ``demo``, ``eval``, ``lint``, ``profile``, ``report``."""

from ragcache_integrations.cli.command import main

__all__ = ["main"]
