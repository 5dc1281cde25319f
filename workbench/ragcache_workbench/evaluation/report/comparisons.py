"""Compares runs with the first run of the same questions, with paired-bootstrap intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ragcache_workbench.evaluation.runs import Comparison, EvalRun, answer_scores, compare
from ragcache_workbench.evaluation.scores import MECHANICS_ONLY

from .data import Bar, Bars, Figure, Missing, Plot
from .labels import labels_of
from .measures import FOLLOWED, MEASURES, main_quality, measure

__all__ = ["TIMES", "Compared", "comparisons"]

TIMES = {
    "ttft_ms": "TTFT, times as fast",
    "end_to_end_ms": "end to end, times as fast",
    "retrieval_ms": "retrieval, times as fast",
}
"""Times that are compared, with the words for their ratios."""
SHARES = ("cache_hit_rate", "k_recall")


@dataclass(frozen=True, slots=True)
class Compared:
    """Runs of the same questions.

    Attributes:
        figure: The figure that compares them, the baseline first.
        rows: Every comparison, with the other run's label.
    """

    figure: Figure
    rows: tuple[tuple[str, Comparison], ...]


def comparisons(runs: Sequence[EvalRun], numbers: dict[str, int]) -> list[Compared]:
    """Compare runs of one data set, each with the first run of the same questions.

    Args:
        runs: The runs of one data set.
        numbers: The runs' numbers in the report, by their folders.
    """
    groups: dict[str, list[EvalRun]] = defaultdict(list)
    for run in runs:
        groups[run.config["workload"]["digest"]].append(run)
    several = [members for members in groups.values() if len(members) > 1]
    return [_compared(members, numbers) for members in several]


def _compared(runs: list[EvalRun], numbers: dict[str, int]) -> Compared:
    baseline = runs[0]
    labels = {
        str(run.path): f"{numbers[str(run.path)]}: {label or 'the same settings'}"
        for run, label in zip(runs, labels_of(runs), strict=True)
    }
    all_comparisons = compare(runs, metrics=[*answer_scores(runs), *SHARES, *TIMES])
    by_metric: dict[str, list[Comparison]] = defaultdict(list)
    for comparison in all_comparisons:
        by_metric[comparison.metric].append(comparison)
    plots: list[Plot] = []
    name = main_quality(runs)
    if name in by_metric:
        plots.append(_differences(name, by_metric[name], labels))
    elif name is not None:
        plots.append(Missing(f"{measure(name).words}, difference", MECHANICS_ONLY))
    plots += [_ratios(name, by_metric[name], labels) for name in TIMES if by_metric[name]]
    differ = [
        name
        for name in SHARES
        if any(any(comparison.difference.as_list()) for comparison in by_metric[name])
    ]
    plots += [_differences(name, by_metric[name], labels) for name in differ]
    plots = [plot for plot in plots if not isinstance(plot, Bars) or plot.bars]
    number = numbers[str(baseline.path)]
    figure = Figure(
        f"compared-{number}",
        f"Compared with run {labels[str(baseline.path)]}",
        "Question by question, with 95 % intervals of a paired bootstrap. Coloured where the whole "
        f"interval is on one side; times never are. {FOLLOWED}",
        tuple(plots),
        tuple(runs),
    )
    rows = tuple((labels[str(comparison.other.path)], comparison) for comparison in all_comparisons)
    return Compared(figure, rows)


def _differences(name: str, members: Sequence[Comparison], labels: dict[str, str]) -> Bars:
    share = name in MEASURES
    scale, unit = (100, " points") if share else (1, "")
    bars = []
    for comparison in members:
        digits = 1 if share else 3
        # Adding 0 turns a minus zero into a zero.
        value, low, high = (
            round(scale * end, digits) + 0.0 for end in comparison.difference.as_list()
        )
        text = f"{value:+.{digits}f}{unit} [{low:+.{digits}f}, {high:+.{digits}f}]"
        better = None if low <= 0 <= high else low > 0
        bars.append(Bar(labels[str(comparison.other.path)], value, low, high, text, better))
    title = f"{measure(name).words}, difference"
    return Bars(title, "percentage points" if share else "difference", tuple(bars), 0.0)


def _ratios(name: str, members: Sequence[Comparison], labels: dict[str, str]) -> Bars:
    bars = []
    for comparison in members:
        if comparison.ratio is not None:
            value, low, high = comparison.ratio.as_list()
            text = f"{value:.2f} [{low:.2f}, {high:.2f}]"
            # Without a colour: the runs followed one another, and the machine may have changed.
            bars.append(Bar(labels[str(comparison.other.path)], value, low, high, text))
    return Bars(TIMES[name], "times as fast as the baseline", tuple(bars), 1.0, log=True)
