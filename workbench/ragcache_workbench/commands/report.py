"""``ragcache report``: runs of ``ragcache eval`` side by side, on one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_report"]


def add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "report",
        help="compare runs of ragcache eval on one HTML page",
        description=(
            "Compare runs on a self-contained HTML page: the papers' figures, drawn for these "
            "runs, paired bootstrap intervals, a sortable table, and the command of each run. "
            "Which figures are drawn depends on the settings in which the runs differ."
        ),
    )
    parser.set_defaults(command=_report)
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="folder of a run, or a folder of runs such as the --out of ragcache eval",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        default=Path("ragcache-report"),
        help="folder for report.html and its figures as PNG files (default: %(default)s)",
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="RUN",
        help="the run with which the others are compared (default: the first)",
    )
    parser.add_argument("--no-images", action="store_true", help="write no PNG files")


def _report(options: argparse.Namespace) -> None:
    from ragcache_workbench.evaluation import write_report  # noqa: PLC0415 - takes a while

    page = write_report(
        options.runs, options.out, baseline=options.baseline, images=not options.no_images
    )
    sys.stdout.write(f"Report: {page}\n")
