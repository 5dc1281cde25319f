"""``ragcache cache-report``: what a cache of answers would have served on your own log."""

from __future__ import annotations

import argparse
from pathlib import Path

from ragcache_integrations.cli.options import add_json, check_file

from .shared import present

__all__ = ["add_cache_report"]

ERROR = 0.01


def add_cache_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "cache-report",
        help="say which answers a cache would have served on your own log, and which wrongly",
        description=(
            "Ask the questions of a log again in front of caches with different tolerances. Report "
            "how many calls each would have saved, how many of its answers were another "
            "question's, and the largest tolerance that is proven to stay below an error. No model "
            "but the bundled embedding model runs."
        ),
    )
    parser.set_defaults(command=_report)
    parser.add_argument(
        "log",
        type=Path,
        metavar="LOG",
        help=(
            'JSON lines of {"question": ..., "answer": ..., "documents": [ids or {"id", "text"}], '
            '"tenant": ..., "time": ..., "seconds": ..., "cost": ...}, plain or gzipped, of which '
            "only the question is needed; or a log of requests that ragcache lint reads"
        ),
    )
    parser.add_argument(
        "--error",
        type=float,
        default=ERROR,
        metavar="E",
        help=f"share of wrong answers among those served to stay below (default: {ERROR})",
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="HTML report to write")
    add_json(parser)


def _report(options: argparse.Namespace) -> None:
    report = None if options.report is None else check_file("--report", options.report)
    from ragcache_workbench.cache_report.report import report_of  # noqa: PLC0415 - an extra
    from ragcache_workbench.cache_report.run import (  # noqa: PLC0415 - no other command needs it
        report_on_log,
    )

    findings = report_on_log(options.log, options.error, show_progress=True)
    shown = report_of(findings)
    present(findings, shown.show, shown.write, report, as_json=options.json)
