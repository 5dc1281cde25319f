"""The command line."""

from ragcache_integrations.cli.command import main

__all__ = ["main"]
