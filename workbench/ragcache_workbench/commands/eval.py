"""``ragcache eval``: the papers' data sets, workloads and metrics on this machine."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import Any

from ragcache_integrations.cli.options import add_json
from ragcache_integrations.errors import ConfigurationError

from . import shared
from .shared import WORDS, add_command, imported, table

__all__ = ["add_eval", "add_options", "read_options"]

DATASETS = table("evaluation/datasets/published.toml")
FLAGS, PARTS = WORDS["eval"]["flags"], WORDS["eval"]["parts"]
"""Settings that have a flag of their own; all have a name for --set and --sweep."""


def add_eval(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = add_command(commands, "eval", _eval)
    # Not by `choices`: argparse does not say which name was meant.
    names = f"{{{','.join(DATASETS)}}}"
    words = "; ".join(facts["words"] for facts in DATASETS.values())
    parser.add_argument("dataset", metavar=names, help=words)
    shared.add_options(parser, WORDS["eval"]["alone"])
    parser.add_argument("--preset", action=_Moved, help=argparse.SUPPRESS)
    add_options(parser)
    add_json(parser)


class _Moved(argparse.Action):
    """Says which script of the repository has the papers' experiments."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del option_string
        script = shlex.join(["benchmarks/papers/run.py", values, namespace.dataset or "DATASET"])
        words = f"in a clone of the repository, run python {script}, with the same other options"
        parser.exit(2, f"ragcache: the papers' experiments are scripts: {words}\n")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose data, systems and knobs, and say where runs are kept."""
    for name, words in (FLAGS | PARTS).items():
        parser.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, **words)
    shared.add_options(parser, WORDS["eval"]["options"])


def read_options(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the knobs that were typed, and the other arguments of ``evaluate``.

    Raises:
        ConfigurationError: A value cannot be read, or a knob is given twice.
    """
    # These import what reads settings, which takes a while.
    from ragcache_workbench.evaluation.scores import read_prices  # noqa: PLC0415 - see above
    from ragcache_workbench.evaluation.settings import (  # noqa: PLC0415 - see above
        parse_assignment,
    )

    chosen = vars(options)
    typed = [f"{name}={chosen[name]}" for name in FLAGS if name in chosen]
    knobs = dict(map(parse_assignment, (*typed, *options.settings)))
    others = {
        "out": options.out,
        "prices": None if options.prices is None else read_prices(options.prices),
        "fresh": options.fresh,
        "checkpoint_seconds": options.checkpoint_seconds,
        "show_progress": True,
    }
    is_served = "base_url" in knobs
    for name in PARTS:
        if name not in chosen:
            continue
        part = chosen[name]
        if name in knobs:
            raise ConfigurationError(f"{name} must be given once, by --{name} or otherwise")
        # A server's names may have colons, too.
        if name != "model" or not is_served:
            part = _part(f"--{name}", part)
        (knobs if isinstance(part, str) else others)[name] = part
    return knobs, others


def _eval(options: argparse.Namespace) -> None:
    # These import what reads settings, which takes a while.
    from rich.console import Console  # noqa: PLC0415 - an extra

    from ragcache_workbench.evaluation import (  # noqa: PLC0415 - see above
        evaluate_grid,
        write_report,
    )
    from ragcache_workbench.evaluation.report import show  # noqa: PLC0415 - see above
    from ragcache_workbench.evaluation.settings import parse_sweep  # noqa: PLC0415 - see above

    knobs, others = read_options(options)
    sweep: dict[str, tuple[Any, ...]] = {}
    for text in options.sweep:
        name, values = parse_sweep(text)
        is_given = name in knobs or (name in PARTS and name in others)
        if is_given or name in sweep:
            raise ConfigurationError(f"{name} must be given once, by --sweep or otherwise")
        sweep[name] = values
    console = Console()
    command = shlex.join(["ragcache", *options.typed])
    runs = evaluate_grid(options.dataset, sweep, command=command, **others, **knobs)
    show(runs, console)
    for run in runs:
        console.print(f"Run: {run.path}", highlight=False, markup=False, soft_wrap=True)
    page = write_report(runs, options.out, images=False)
    console.print(f"Report: {page}", highlight=False, markup=False, soft_wrap=True)
    if options.json:
        content = {
            run.name: {"settings": run.settings.flat(), "quality": run.summary["quality"]}
            | {"figures": run.figures}
            for run in runs
        }
        sys.stdout.write(json.dumps(content) + "\n")


def _part(flag: str, value: str | None) -> Any:
    """What MODULE:FUNCTION names; everything else as it is."""
    module, mark, name = (value or "").partition(":")
    if not mark or not all(word.isidentifier() for word in (*module.split("."), name)):
        return value
    made = imported(f"{module}:{name}", f"{flag} {value} names no function that can be imported")
    if not callable(made):
        raise ConfigurationError(f"{flag} {value} must name a function, got {type(made).__name__}")
    return made
