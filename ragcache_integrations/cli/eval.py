"""``ragcache eval``: the papers' data sets, workloads and metrics on this machine."""

from __future__ import annotations

import argparse
import importlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from ragcache_integrations.core.extras import require
from ragcache_integrations.errors import ConfigurationError

from .options import add_json

__all__ = ["add_eval"]

# As in evaluation.datasets, which the command line does not import before it is needed.
DATASETS = {
    "nq": "Natural Questions: short answers, exact match and F1",
    "mmlu": "MMLU: four options, accuracy by their log-probabilities, few-shot",
    "pubmedqa": "PubMedQA: yes, no or maybe, accuracy and macro-F1",
    "qmsum": "QMSum: what was said in meetings, ROUGE-L",
}

FLAGS: dict[str, tuple[str, str]] = {
    "data": (
        "PATH",
        "folder of the data set; hub or hub:NAME for the Hugging Face hub (default: a sample)",
    ),
    "documents": ("FILE", "JSON lines of passages to retrieve from instead"),
    "sample": (
        "N",
        "number of questions at random, over a part of the documents (--set corpus=all for all)",
    ),
    "seed": ("N", "decides sample, stream and hyperplanes (default: 0)"),
    "workload": ("NAME", "as_is, uniform or zipf (default: as_is)"),
    "length": ("N", "number of questions in the stream (default: depends on the workload)"),
    "rate": ("R", "requests per second, arriving as a Poisson process (default: one by one)"),
    "minutes": ("M", "length of a trace at --rate; RAGCache has 60"),
    "framework": ("NAME", "langchain or llama_index (default: langchain)"),
    "k": ("N", "documents per question (default: 5)"),
    "base_url": ("URL", "ask an OpenAI-compatible server instead of the bundled engine"),
    "max_tokens": ("N", "the most tokens of an answer (default: the data set's)"),
}
"""Settings that have a flag of their own; all have a name for --set and --sweep."""


def add_eval(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "eval",
        help="measure quality and speed on the papers' data sets",
        description=(
            "Ask a data set's questions of a retriever and a model, ours by default, and say how "
            "well and how fast they were answered. A run is a folder; it resumes when "
            "you repeat the command. DIR/report.html compares the runs of this command, ragcache "
            "report any others."
        ),
    )
    parser.set_defaults(command=_eval)
    parser.add_argument("dataset", choices=DATASETS, help="; ".join(DATASETS.values()))
    for name, (metavar, words) in FLAGS.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, metavar=metavar, default=argparse.SUPPRESS, help=words)
    parser.add_argument(
        "--retriever",
        metavar="NAME",
        default="cache",
        help=(
            "cache, plain or none; or MODULE:FUNCTION, which is given settings and documents and "
            "returns a retriever of either framework (default: cache)"
        ),
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help=(
            "path or hub name for the bundled engine, the bundled model where none is given; or "
            "MODULE:FUNCTION as for --retriever"
        ),
    )
    parser.add_argument(
        "--set",
        dest="settings",
        metavar="KNOB=VALUE",
        action="append",
        default=[],
        help="any other knob of workload, query cache or engine; a wrong name lists them all",
    )
    parser.add_argument(
        "--sweep",
        metavar="KNOB=VALUE,...",
        action="append",
        default=[],
        help="a run for each value, such as tolerance=0,0.2,0.4; several make a grid",
    )
    parser.add_argument(
        "--prices",
        metavar="PRICES",
        help=(
            "input=0.15,cached_input=0.075,output=0.6 per million tokens, search=1 per thousand "
            "searches; or a JSON file of these"
        ),
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        default=Path("ragcache-eval"),
        help="folder for runs (default: %(default)s)",
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        metavar="S",
        default=10.0,
        help="so much is asked again after a break (default: %(default)g)",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="start over instead of resuming the run that is there"
    )
    add_json(parser)


def _eval(options: argparse.Namespace) -> None:
    # These import what reads settings, which takes a while.
    from ragcache_integrations.evaluation import (  # noqa: PLC0415 - see above
        evaluate_grid,
        write_report,
    )
    from ragcache_integrations.evaluation.scores import read_prices  # noqa: PLC0415 - see above
    from ragcache_integrations.evaluation.settings import (  # noqa: PLC0415 - see above
        parse_assignment,
        parse_sweep,
    )

    chosen = vars(options)
    typed = [f"{name}={chosen[name]}" for name in FLAGS if name in chosen]
    knobs = dict(map(parse_assignment, (*typed, *options.settings)))
    sweep: dict[str, tuple[Any, ...]] = {}
    for text in options.sweep:
        name, values = parse_sweep(text)
        if name in sweep or name in knobs:
            msg = f"{name} must be given once, by --sweep or otherwise"
            raise ConfigurationError(msg)
        sweep[name] = values
    prices = None if options.prices is None else read_prices(options.prices)
    for module in ("rich", "jinja2"):
        require(module, feature="ragcache eval", extra="eval")
    from rich.console import Console  # noqa: PLC0415 - an extra

    from ragcache_integrations.evaluation.report import show  # noqa: PLC0415 - an extra

    runs = evaluate_grid(
        options.dataset,
        sweep,
        retriever=_part("--retriever", options.retriever),
        # A server's names may have colons, too.
        model=options.model if "base_url" in knobs else _part("--model", options.model),
        out=options.out,
        prices=prices,
        fresh=options.fresh,
        checkpoint_seconds=options.checkpoint_seconds,
        show_progress=True,
        command=shlex.join(["ragcache", *options.typed]),
        **knobs,
    )
    console = Console()
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
    try:
        made = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"{flag} {value}: there is no such function ({error})"
        raise ConfigurationError(msg) from error
    if not callable(made):
        msg = f"{flag} {value} must name a function, got {type(made).__name__}"
        raise ConfigurationError(msg)
    return made
