"""``ragcache cache-report``: what a cache of answers would have served on your own log."""

from __future__ import annotations

import argparse

from ragcache_integrations.cli.options import add_json, check_file

from .shared import WORDS, add_command, add_options, present

__all__ = ["add_cache_report"]


def add_cache_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = add_command(commands, "cache-report", _report)
    add_options(parser, WORDS["cache-report"]["options"])
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
