"""Runs and comparisons on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ragcache_integrations.evaluation.runs import Comparison, EvalRun, compare, throughputs
from ragcache_integrations.evaluation.scoring import MECHANICS_ONLY

__all__ = ["show"]

FIGURES = {
    "questions": "questions",
    "cache_hit_rate": "cache hit rate",
    "certified_share": "certified share of hits",
    "k_recall": "k-recall",
    "hit_k_recall": "k-recall of hits",
    "gold_recall": "gold documents retrieved",
    "retrieval_ms_median": "retrieval latency, ms, median",
    "ttft_ms_mean": "TTFT, ms, mean",
    "ttft_ms_p99": "TTFT, ms, 99th percentile",
    "tpot_ms_mean": "TPOT, ms, mean",
    "end_to_end_ms_mean": "end to end, ms, mean",
    "gpu_hit_rate": "documents' KV found in the GPU tier",
    "host_hit_rate": "documents' KV found in the host tier",
    "prompt_tokens": "prompt tokens",
    "tokens_saved": "prompt tokens saved",
    "cost": "cost",
    "money_saved": "money saved",
    "errors": "questions that failed",
    "disturbed": "questions whose times do not count",
}
"""Figures that are shown, with their words."""

MAX_COLUMNS = 6


def show(runs: Sequence[EvalRun], console: Console) -> None:
    """Write the figures of runs, and how they compare with the first."""
    for start in range(0, len(runs), MAX_COLUMNS):
        console.print(_figures(runs[start : start + MAX_COLUMNS], _labels(runs)[start:]))
    for run in runs:
        for number in run.summary["breaks"]:
            console.print(
                f"{run.name}: broken off after {number} answers and gone on with; KV caches were "
                "empty then",
                highlight=False,
                soft_wrap=True,
            )
    comparable = [one for one in runs if one.config["workload"] == runs[0].config["workload"]]
    if len(comparable) > 1:
        found = [one for one in compare(comparable) if one.metric in _COMPARED or not _usual(one)]
        console.print(
            _comparisons(found, dict(zip((r.name for r in runs), _labels(runs), strict=True)))
        )
    for one in throughputs(runs):
        knobs = (
            ", ".join(f"{name}={value}" for name, value in one.knobs.items()) or "these settings"
        )
        console.print(
            f"Throughput of {knobs}: {one.throughput:.3g} requests/s with a mean TTFT of at most "
            f"{one.limit_ms:,.0f} ms",
            highlight=False,
        )


_COMPARED = ("ttft_ms", "end_to_end_ms", "retrieval_ms", "k_recall")


def _usual(one: Comparison) -> bool:
    """Whether it is no quality of answers."""
    return one.metric.endswith("_ms") or one.metric in {
        "cache_hit_rate",
        "cached_tokens",
        "gold_recall",
        "k_recall",
    }


def _labels(runs: Sequence[EvalRun]) -> list[str]:
    """What is different from run to run."""
    flat = [one.settings.flat() for one in runs]
    names = sorted({name for one in flat for name in one})
    differing = [name for name in names if len({str(one.get(name)) for one in flat}) > 1]
    if not differing:
        return [one.config["dataset"]["title"] for one in runs]
    return ["\n".join(f"{name}={one.get(name)}" for name in differing) for one in flat]


def _figures(runs: Sequence[EvalRun], labels: Sequence[str]) -> Table:
    table = Table(title=runs[0].config["dataset"]["title"], title_justify="left")
    table.add_column("")
    for label in labels[: len(runs)]:
        table.add_column(label, justify="right")
    for name in _qualities(runs):
        cells = [
            MECHANICS_ONLY if one.quality is None else _number(one.quality.get(name))
            for one in runs
        ]
        table.add_row(name.replace("_", " "), *cells)
    for name, words in FIGURES.items():
        cells = [_number(one.figures.get(name)) for one in runs]
        empty = name in {"errors", "disturbed"} and set(cells) == {"0"}
        if any(cells) and not empty:
            table.add_row(words, *cells)
    return table


def _qualities(runs: Sequence[EvalRun]) -> list[str]:
    names = {
        name for one in runs for name in (one.quality or one.scores[0].scores) if name != "by_group"
    }
    return sorted(names)


def _comparisons(found: Sequence[Comparison], labels: dict[str, str]) -> Table:
    table = Table(title="Compared with the first, 95 % intervals", title_justify="left")
    for column in ("", "metric", "difference", "times as fast"):
        table.add_column(column)
    for one in found:
        label = labels[one.other.name].replace("\n", ", ")
        ratio = "" if one.ratio is None else str(one.ratio)
        table.add_row(label, one.metric, str(one.difference), ratio)
    return table


def _number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return f"{value:,}"
    digits = 4 if abs(value) < 1 else 3 if abs(value) < 10 else 1  # noqa: PLR2004 - as it reads well
    return f"{value:,.{digits}f}"
