"""``ragcache report``: runs of ``ragcache eval`` side by side, on one page."""

from __future__ import annotations

import argparse
import sys

from .shared import WORDS, add_command, add_options

__all__ = ["add_report"]


def add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    add_options(add_command(commands, "report", _report), WORDS["report"]["options"])


def _report(options: argparse.Namespace) -> None:
    from ragcache_workbench.evaluation import write_report  # noqa: PLC0415 - takes a while

    page = write_report(
        options.runs, options.out, baseline=options.baseline, images=not options.no_images
    )
    sys.stdout.write(f"Report: {page}\n")
