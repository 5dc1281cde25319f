"""The figures of runs that reports show: their titles, units and formats."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from ragcache_workbench.evaluation.runs import EvalRun

__all__ = [
    "FOLLOWED",
    "MEASURES",
    "SHOWN",
    "Measure",
    "Unit",
    "format_figure",
    "main_quality",
    "measure",
    "qualities",
    "value_of",
]

Unit = Literal["share", "ms", "count", "money", "score"]

FOLLOWED = (
    "The runs followed one another: what else the machine did may explain differences in time."
)
"""What a reader has to know of runs' times."""

TIERS = ("gpu_hit_rate", "host_hit_rate")


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a run.

    Attributes:
        name: Its name in ``summary.json``.
        words: Its title.
        unit: Its unit; a ``share`` is from 0 to 1, and so is a ``score``, usually.
    """

    name: str
    words: str
    unit: Unit


SHOWN: dict[str, dict[str, Any]] = tomllib.loads(
    files(__package__).joinpath("shown.toml").read_text("utf-8")
)
"""Measures, qualities and sweeps that are shown, with their words."""

MEASURES = {name: Measure(name, *shown) for name, shown in SHOWN["measures"].items()}
"""The figures that are shown, in this order."""


def measure(name: str) -> Measure:
    """Return a figure by its name; an unknown name is that of a quality."""
    known = MEASURES.get(name)
    return known or Measure(name, SHOWN["qualities"].get(name, name.replace("_", " ")), "score")


def qualities(runs: Sequence[EvalRun]) -> list[str]:
    """Return the names of the qualities of runs, also of those with random weights."""
    names: dict[str, None] = {}
    for run in runs:
        scores = run.quality or (run.scores[0].scores if run.scores else {})
        names |= {name: None for name in scores if name != "by_group"}
    return list(names)


def main_quality(runs: Sequence[EvalRun]) -> str | None:
    """Return the name of the quality that figures show.

    It is ROUGE-L for data sets of summaries; else F1, as in the papers, if there is one; else the
    first quality.
    """
    names = qualities(runs)
    return next((name for name in ("rouge_l", "f1", *names) if name in names), None)


def value_of(run: EvalRun, name: str) -> float | None:
    """Return a figure of a run; ``None`` if it lacks it, like quality with random weights."""
    if name == "tier_hit_rate":
        rates = [run.figures.get(tier) for tier in TIERS]
        return sum(rate or 0.0 for rate in rates) if rates[0] is not None else None
    if name in MEASURES or name in run.figures:
        return run.figures.get(name)
    value = None if run.quality is None else run.quality.get(name)
    return None if value is None else float(value)


def format_figure(value: float | None, unit: Unit) -> str:
    """Format a figure by its unit; ``None`` as an empty text."""
    if value is None:
        return ""
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "score":
        return f"{value:.3f}"
    if unit == "count":
        return f"{value:,.0f}"
    return f"{value:,.{_decimals(value)}f}"


def _decimals(value: Any) -> int:
    """Number of decimals that shows about three digits."""
    steps = ((100, 0), (10, 1), (1, 2))
    return next((decimals for least, decimals in steps if abs(value) >= least), 3)
