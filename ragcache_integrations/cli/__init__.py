"""The command line: ``ragcache serve``, ``demo``, ``doctor`` and others."""

from .command import main

__all__ = ["main"]
