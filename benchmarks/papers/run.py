"""Repeats a paper's experiment, and shows ours next to the paper's figures.

    python benchmarks/papers/run.py proximity --quick
    python benchmarks/papers/run.py metis qmsum --data PATH

Each run is a folder: repeat the command to resume it. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))

from papers.outcome import run_plan, show_tables
from papers.plan import PRESETS, plan_preset
from ragcache_integrations.core.interrupts import INTERRUPTED
from ragcache_integrations.errors import RAGCacheError
from ragcache_workbench.commands.eval import add_options, read_options
from ragcache_workbench.evaluation import write_report

USAGE_ERROR = 2


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the options: those of ``ragcache eval``, and of presets."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # Not by `choices`: argparse does not say which name was meant.
    presets = "; ".join(
        f"{preset.name}: {preset.measures} ({', '.join(preset.datasets)})"
        for preset in PRESETS.values()
    )
    parser.add_argument("preset", metavar=f"{{{','.join(PRESETS)}}}", help=presets)
    parser.add_argument(
        "dataset", metavar="DATASET", nargs="?", default="nq", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        default=None,
        help=(
            "the small form, which takes minutes (default: for the bundled sample, and the full "
            "form with --data)"
        ),
    )
    parser.add_argument("--full", dest="quick", action="store_false", help="the full form")
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds (default: 1 or 3)")
    parser.add_argument("--dry-run", action="store_true", help="list the runs, and start none")
    add_options(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """List the runs, do them, and write tables and their headline; the exit status."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    options = make_parser().parse_args(typed)
    try:
        _run(options, shlex.join(["python", "benchmarks/papers/run.py", *typed]))
    except RAGCacheError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _run(options: argparse.Namespace, command: str) -> None:
    knobs, others = read_options(options)
    plan = plan_preset(
        options.dataset, options.preset, quick=options.quick, seeds=options.seeds, **knobs
    )
    console = Console()
    console.print(plan.describe(), highlight=False, markup=False, soft_wrap=True)
    if options.dry_run:
        return
    result = run_plan(plan, command=command, **others)
    show_tables(result.tables, result.remarks, console)
    report = write_report(result.runs, options.out, images=False)
    page, data = result.write(options.out)
    for kind, path in {"Tables": page, "Data": data, "Report": report}.items():
        console.print(f"{kind}: {path}", highlight=False, markup=False, soft_wrap=True)
    print(json.dumps(result.headline))


if __name__ == "__main__":
    sys.exit(main())
