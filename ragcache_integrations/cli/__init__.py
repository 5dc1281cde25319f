"""The command line: ``ragcache serve``, ``demo``, ``doctor`` and others."""

from .process import main

__all__ = ["main"]
