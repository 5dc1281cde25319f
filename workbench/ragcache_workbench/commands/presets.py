"""``ragcache eval --preset``: a paper's experiment, ours next to its figures."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from ragcache_integrations.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_presets", "check_presets", "run_preset"]


def add_presets(parser: argparse.ArgumentParser) -> None:
    """Add the options of presets to ``ragcache eval``."""
    group = parser.add_argument_group("the papers' experiments")
    group.add_argument(
        "--preset",
        metavar="NAME",
        help=(
            "run the settings of a paper's experiment, and compare with its figures: proximity, "
            "ragcache, metis or prompt-cache; the last line is JSON"
        ),
    )
    group.add_argument(
        "--quick",
        action="store_true",
        default=None,
        help=(
            "for --preset: the small form, which takes minutes (default: for the bundled sample, "
            "and the full form with --data)"
        ),
    )
    group.add_argument(
        "--full", dest="quick", action="store_false", help="for --preset: the full form"
    )
    group.add_argument(
        "--seeds", type=int, metavar="N", help="for --preset: number of seeds (default: 1 or 3)"
    )
    group.add_argument(
        "--dry-run", action="store_true", help="for --preset: list the runs, and start none"
    )


def check_presets(options: argparse.Namespace) -> None:
    """Check that the options of presets come with one, and no sweep does.

    Raises:
        ConfigurationError: They do not.
    """
    if options.preset is not None:
        if options.sweep:
            msg = "--preset decides what is swept: leave out --sweep, or --preset"
            raise ConfigurationError(msg)
        return
    flags = {
        "--quick": options.quick is True,
        "--full": options.quick is False,
        "--seeds": options.seeds is not None,
        "--dry-run": options.dry_run,
    }
    typed = next((flag for flag, is_typed in flags.items() if is_typed), None)
    if typed is not None:
        msg = f"{typed} needs --preset, the name of a paper's experiment"
        raise ConfigurationError(msg)


def run_preset(options: argparse.Namespace, arguments: dict[str, Any], console: Console) -> None:
    """List the runs of a preset, do them, and write tables and their headline.

    Args:
        options: The options of the command.
        arguments: Arguments and knobs of
            :func:`~ragcache_workbench.evaluation.evaluate_preset`.
        console: The terminal.
    """
    # These import what reads settings, which takes a while.
    from ragcache_workbench.evaluation import (  # noqa: PLC0415 - slow to import
        evaluate_preset,
        plan_preset,
        write_report,
    )
    from ragcache_workbench.evaluation.presets import (  # noqa: PLC0415 - slow to import
        knobs_among,
        show_tables,
    )

    form: dict[str, Any] = {"quick": options.quick, "seeds": options.seeds}
    knobs = knobs_among(arguments)
    plan = plan_preset(options.dataset, options.preset, **form, **knobs)
    console.print(plan.describe(), highlight=False, markup=False, soft_wrap=True)
    if options.dry_run:
        return
    result = evaluate_preset(options.dataset, options.preset, **form, **arguments)
    show_tables(result.tables, result.remarks, console)
    page = write_report(result.runs, options.out, images=False)
    for kind, path in zip(
        ("Tables", "Data", "Report"), (*result.write(options.out), page), strict=True
    ):
        console.print(f"{kind}: {path}", highlight=False, markup=False, soft_wrap=True)
    sys.stdout.write(json.dumps(result.headline) + "\n")
