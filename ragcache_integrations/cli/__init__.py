"""The command line: ``ragcache serve``, ``demo``, ``doctor`` and others."""

from .command import run_process as main

__all__ = ["main"]
