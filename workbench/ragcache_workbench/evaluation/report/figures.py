"""Chooses the figures of a report by the knobs that differ between its runs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ragcache_workbench.evaluation.runs import EvalRun

from .comparisons import Compared, comparisons
from .courses import courses, distributions
from .data import Figure
from .sweeps import delay_and_quality, sweeps

__all__ = ["Section", "sections"]

NAME_LENGTH = 120


@dataclass(frozen=True, slots=True)
class Section:
    """The runs of one data set.

    Attributes:
        title: Name of the data set.
        runs: The runs, in the order of the report.
        figures: The papers' figures, of sweeps and configurations.
        compared: Comparisons of runs.
        courses: The courses of single runs.
    """

    title: str
    runs: tuple[EvalRun, ...]
    figures: tuple[Figure, ...]
    compared: tuple[Compared, ...]
    courses: tuple[Figure, ...]

    def all_figures(self) -> tuple[Figure, ...]:
        """Every figure, in the order of the page."""
        return (*self.figures, *(compared.figure for compared in self.compared), *self.courses)


def sections(runs: Sequence[EvalRun], numbers: dict[str, int]) -> list[Section]:
    """Draw runs by their data sets.

    Args:
        runs: At least one run, of any data sets.
        numbers: The runs' numbers in the report, by their folders.
    """
    by_dataset: dict[str, list[EvalRun]] = defaultdict(list)
    for run in runs:
        by_dataset[run.config["dataset"]["name"]].append(run)
    taken: Counter[str] = Counter()
    return [_section(name, members, numbers, taken) for name, members in by_dataset.items()]


def _section(
    name: str, runs: list[EvalRun], numbers: dict[str, int], taken: Counter[str]
) -> Section:
    def named(figure: Figure) -> Figure:
        """Give it a name that a file can have, and no other figure has."""
        slug = re.sub(r"[^\w.=+-]+", "_", f"{name}-{figure.name}")[:NAME_LENGTH]
        taken[slug] += 1
        return replace(figure, name=slug if taken[slug] == 1 else f"{slug}-{taken[slug]}")

    compared = [
        replace(comparison, figure=named(comparison.figure))
        for comparison in comparisons(runs, numbers)
    ]
    return Section(
        title=runs[0].config["dataset"]["title"],
        runs=tuple(runs),
        figures=tuple(map(named, [*sweeps(runs), *delay_and_quality(runs, numbers)])),
        compared=tuple(compared),
        courses=tuple(map(named, [*distributions(runs), *courses(runs)])),
    )
