"""``ragcache profile --workload``: what caches would save in your own traffic."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from ragcache_integrations.cli.options import check_file
from ragcache_integrations.errors import ConfigurationError

from .shared import WORDS, add_options, present

__all__ = ["add_workload"]

Command = Callable[[argparse.Namespace], int | None]


def add_workload(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the options to ``ragcache profile``, which then also reads logs."""
    parser = commands.choices["profile"]
    parser.set_defaults(command=partial(_profile, parser.get_default("command")))
    add_options(parser, WORDS["profile"]["options"])


def _profile(measure: Command, options: argparse.Namespace) -> int | None:
    if options.rate is not None and options.replicas is None:
        msg = f"--rate is the rate of simulated replicas: it needs --replicas, got {options.rate:g}"
        raise ConfigurationError(msg)
    if options.workload is not None:
        _characterise(options)
        return None
    for option, value in {
        "--report shows": options.report,
        "--replicas shows": options.replicas,
        "--requests-per-day belongs to": options.requests_per_day,
    }.items():
        if value is not None:
            raise ConfigurationError(f"{option} a workload: name one with --workload")
    return measure(options)


def _characterise(options: argparse.Namespace) -> None:
    measuring = ("max_tokens", "repeats", "kv_cache_gib", "output", "overwrite")
    flags = [f"--{name.replace('_', '-')}" for name in measuring if getattr(options, name)]
    if flags:
        msg = f"{' and '.join(flags)} would measure a model, which --workload does not"
        raise ConfigurationError(msg)
    report = None if options.report is None else check_file("--report", options.report)
    from ragcache_workbench.workload_report.report import report_of  # noqa: PLC0415 - an extra
    from ragcache_workbench.workload_report.run import (  # noqa: PLC0415 - not for measuring
        REQUESTS_PER_DAY,
        characterise_workload,
    )

    per_day = options.requests_per_day
    findings = characterise_workload(
        options.workload,
        options.model,
        replicas=options.replicas,
        rate=options.rate,
        requests_per_day=REQUESTS_PER_DAY if per_day is None else per_day,
        show_progress=True,
    )
    shown = report_of(findings)
    present(findings, shown.show, shown.write, report, as_json=options.json)
