"""``ragcache demo``: a chain before and after the swap, or a query's timeline."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields, replace
from functools import partial

from ragcache_integrations.cli.options import add_json, check_file
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.demo.settings import FLAGS, DemoSettings
from ragcache_workbench.demo.speculative import (
    SpeculativeSettings,
    draw_timeline,
    most_eventful,
    pairs_as_dict,
    run_speculative,
)

from .shared import WORDS, add_command, add_options, present

__all__ = ["add_demo"]

QUICK_QUESTIONS = 4


def add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = add_command(commands, "demo", _demo)
    add_options(parser, WORDS["demo"]["options"])
    add_json(parser)
    usual = DemoSettings()
    for name, words in FLAGS.items():
        value = getattr(usual, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=str if value is None else type(value),
            default=argparse.SUPPRESS,
            help=words + ("" if value is None else f" (default: {value})"),
        )


def _demo(options: argparse.Namespace) -> None:
    if options.speculative:
        _speculative(options)
        return
    settings = DemoSettings()
    if options.quick:
        settings = settings.quick()
    flags = {name: getattr(options, name) for name in FLAGS if hasattr(options, name)}
    settings = replace(settings, **flags)
    report = check_file("--report", options.report)
    from rich.console import Console  # noqa: PLC0415 - an extra, and seconds to import

    from ragcache_workbench.demo.report import (  # noqa: PLC0415 - slow
        show,
        show_conditions,
        write_report,
    )
    from ragcache_workbench.demo.run import run_demo  # noqa: PLC0415 - slow

    show_conditions(settings, Console())
    found = run_demo(settings)
    present(found, partial(show, found), partial(write_report, found), report, as_json=options.json)


def _speculative(options: argparse.Namespace) -> None:
    names = [field.name for field in fields(SpeculativeSettings)]
    for name in FLAGS:
        if hasattr(options, name) and name not in names:
            msg = f"--{name.replace('_', '-')} has no meaning with --speculative"
            raise ConfigurationError(msg)
    flags = {
        name: getattr(options, name) for name in names if getattr(options, name, None) is not None
    }
    if options.quick:
        flags.setdefault("questions", QUICK_QUESTIONS)
    settings = SpeculativeSettings(**flags)
    picture = check_file("--picture", options.picture)
    from rich.console import Console  # noqa: PLC0415 - an extra, and seconds to import

    from ragcache_workbench.demo.report import show_pairs  # noqa: PLC0415 - slow

    pairs = run_speculative(settings)
    show_pairs(pairs, settings.search_ms, Console())
    draw_timeline(most_eventful(pairs), picture)
    sys.stdout.write(f"\nTimeline of one of them: {picture}\n")
    if options.json:
        sys.stdout.write(json.dumps(pairs_as_dict(pairs)) + "\n")
