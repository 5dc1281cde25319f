"""Runs and comparisons on the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ragcache_workbench.evaluation.runs import EvalRun, answer_scores, compare, throughputs
from ragcache_workbench.evaluation.scores import MECHANICS_ONLY

from .comparisons import TIMES
from .labels import chosen_by, labels_of
from .measures import (
    FOLLOWED,
    MEASURES,
    format_figure,
    main_quality,
    measure,
    qualities,
    value_of,
)
from .verdict import verdicts

__all__ = ["show"]

MAX_COLUMNS = 3
STYLES = {True: "bold green", False: "bold red", None: "bold"}
_OVERVIEW = {
    "cache_hit_rate": "cache hit rate",
    "k_recall": "k-recall",
    "retrieval_ms_mean": "retrieval",
    "ttft_ms_mean": "TTFT",
    "end_to_end_ms_mean": "end to end",
    "gpu_hit_rate": "KV in GPU tier",
    "money_saved": "money saved",
}
"""The figures in a table with a row for each run."""


def show(runs: Sequence[EvalRun], console: Console) -> None:
    """Write what to do, the figures of runs, and their comparisons with the first.

    All figures of a few runs, the most important ones of many.
    """
    for verdict in verdicts(runs):
        console.print(escape(verdict.text), style=STYLES[verdict.pays], highlight=False)
    console.print(_figures(runs) if len(runs) <= MAX_COLUMNS else _overview(runs))
    for run in runs:
        for number in run.summary["breaks"]:
            console.print(
                f"{run.name}: interrupted after {number} answer{'' if number == 1 else 's'} and "
                "resumed; KV caches were empty then",
                highlight=False,
                soft_wrap=True,
            )
        if chosen := chosen_by(run):
            console.print(f"{run.name} chose {chosen}", highlight=False, soft_wrap=True)
    comparable = [run for run in runs if run.config["workload"] == runs[0].config["workload"]]
    if len(comparable) > 1:
        console.print(_comparisons(comparable))
    for measured in throughputs(runs):
        knobs = (
            ", ".join(f"{name}={value}" for name, value in measured.knobs.items())
            or "these settings"
        )
        console.print(
            f"Throughput of {knobs}: {measured.throughput:.3g} requests/s with a mean TTFT of at "
            f"most {measured.limit_ms:,.0f} ms",
            highlight=False,
        )


def _labels(runs: Sequence[EvalRun]) -> list[str]:
    return [
        label.replace(", ", "\n") or run.config["dataset"]["title"]
        for label, run in zip(labels_of(runs), runs, strict=True)
    ]


def _overview(runs: Sequence[EvalRun]) -> Table:
    title = f"{runs[0].config['dataset']['title']}, {len(runs)} runs; mean times in ms"
    name = main_quality(runs)
    if name is not None and all(run.quality is None for run in runs):
        title, name = f"{title}; {measure(name).words}: {MECHANICS_ONLY}", None
    labels = _labels(runs)
    # Eight columns fit 80 characters this way.
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    table.add_column("", min_width=max(len(line) for words in labels for line in words.split("\n")))
    heads = [measure(name).words] if name else []
    shown = [figure for figure in _OVERVIEW if any(figure in run.figures for run in runs)]
    for words in (*heads, *(_OVERVIEW[figure] for figure in shown)):
        table.add_column(words, justify="right")
    for run, words in zip(runs, labels, strict=True):
        cells = [_quality(run, name)] if name else []
        cells += [format_figure(run.figures.get(figure), MEASURES[figure].unit) for figure in shown]
        table.add_row(words, *cells)
    return table


def _quality(run: EvalRun, name: str) -> str:
    return MECHANICS_ONLY if run.quality is None else format_figure(value_of(run, name), "score")


def _figures(runs: Sequence[EvalRun]) -> Table:
    table = Table(title=runs[0].config["dataset"]["title"], title_justify="left")
    table.add_column("")
    for words in _labels(runs):
        table.add_column(words, justify="right", overflow="fold")
    for name in qualities(runs):
        table.add_row(measure(name).words, *(_quality(run, name) for run in runs))
    for name, shown in MEASURES.items():
        cells = [format_figure(run.figures.get(name), shown.unit) for run in runs]
        empty = name in {"errors", "disturbed"} and set(cells) == {"0"}
        if any(cells) and not empty:
            table.add_row(shown.words, *cells)
    return table


def _comparisons(runs: Sequence[EvalRun]) -> Table:
    names = [*answer_scores(runs), "k_recall", *TIMES]
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for comparison in compare(runs, metrics=names):
        shown = comparison.difference if comparison.ratio is None else comparison.ratio
        digits = 3 if comparison.ratio is None else 2
        value, low, high = (f"{end:.{digits}f}" for end in shown.as_list())
        cells[comparison.metric][comparison.other.name] = f"{value}\n[{low}, {high}]"
    table = Table(
        title="Compared with the first, 95 % intervals",
        title_justify="left",
        caption=FOLLOWED,
        caption_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
    )
    table.add_column("", overflow="fold")
    for name in cells:
        words = TIMES.get(name) or f"{measure(name).words}, difference"
        table.add_column(words, justify="right", overflow="fold")
    for run, words in zip(runs[1:], _labels(runs)[1:], strict=True):
        table.add_row(words, *(row.get(run.name, "") for row in cells.values()))
    return table
