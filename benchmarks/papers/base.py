"""What a preset is: settings to run, and tables that compare them with the paper's figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ragcache_workbench.evaluation.report import format_figure
from ragcache_workbench.evaluation.scores import MECHANICS_ONLY, Interval

from .results import Results

__all__ = [
    "Cell",
    "Claim",
    "Form",
    "Preset",
    "Table",
    "Tables",
    "Unit",
    "Variant",
    "claims_table",
    "quality_cell",
]

Unit = Literal["share", "score", "difference", "ms", "count", "money", "times"]

MISSING = "-"


@dataclass(frozen=True, slots=True)
class Variant:
    """A setting of a preset, which is a run for each seed.

    Attributes:
        name: Its name in tables, such as ``FLAT, tolerance 0.2``.
        knobs: The settings that the preset decides, by their flat names.
        without: Knobs of the user that do not apply to it, and are left out.
    """

    name: str
    knobs: Mapping[str, Any]
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """In which form a preset is run.

    Attributes:
        dataset: Name of the data set.
        quick: Whether it is the small form, for the mechanics.
        knobs: The knobs that all runs share: the preset's usual ones, or the user's instead.
    """

    dataset: str
    quick: bool
    knobs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure in a table.

    Attributes:
        value: With its interval if it has one; a text; or ``None`` if it is unknown.
        unit: Its unit; a ``share`` is from 0 to 1.
    """

    value: Interval | float | str | None
    unit: Unit = "score"

    @property
    def text(self) -> str:
        """The figure as tables show it."""
        if self.value is None:
            return MISSING
        if isinstance(self.value, str):
            return self.value
        if not isinstance(self.value, Interval):
            return self._number(self.value)
        value, low, high = map(self._number, self.value.as_list())
        return f"{value} [{low.removesuffix(' %')}, {high.removesuffix(' %')}]"

    def _number(self, value: float) -> str:
        if self.unit == "times":
            return f"{value:.2f}"
        if self.unit == "difference":
            return f"{value:+.3f}"
        return format_figure(value, self.unit)

    @property
    def plain(self) -> Any:
        """The figure for JSON: a number, a text, or the value with both ends of its interval."""
        return self.value.as_list(6) if isinstance(self.value, Interval) else self.value


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        title: What it shows.
        columns: The heads; the first is that of the rows' names.
        rows: The rows, each as long as the heads.
        notes: Sentences below it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [[cell.plain for cell in row] for row in self.rows],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure of the paper, and ours.

    Attributes:
        words: What it says.
        paper: The paper's figure.
        source: Where the paper has it, such as ``figure 6(b), §4.3.3``.
        ours: The same of these runs.
    """

    words: str
    paper: str
    source: str
    ours: Cell


@dataclass(frozen=True, slots=True)
class Tables:
    """What the runs of a preset show.

    Attributes:
        tables: The tables; the last one compares with the paper.
        headline: The most important figures, as plain data for JSON.
    """

    tables: tuple[Table, ...]
    headline: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A paper's experiment as runs of :func:`~ragcache_workbench.evaluation.evaluate`.

    Attributes:
        name: Its name on the command line.
        paper: The paper and its section.
        measures: What its tables show, in a few words.
        datasets: Names of the data sets that it is for.
        setting: The paper's model, machine and data.
        differs: What else differs from the paper's experiment, in sentences.
        variants: Returns the settings to run, in their order.
        tables: Makes the tables of complete runs.
        usual: Knobs of all runs, which the user may replace. A ``sample`` of more questions than
            there are is one of all.
        usual_quick: The same of the small form.
        seeds: Number of seeds; the small form has a single one.
    """

    name: str
    paper: str
    measures: str
    datasets: tuple[str, ...]
    setting: str
    differs: str
    variants: Callable[[Form], tuple[Variant, ...]]
    tables: Callable[[Results], Tables]
    usual: Mapping[str, Any]
    usual_quick: Mapping[str, Any]
    seeds: int = 3


def claims_table(paper: str, claims: tuple[Claim, ...]) -> Table:
    """The table of ours next to the paper's figures.

    Args:
        paper: Name of the paper.
        claims: The figures.
    """
    return Table(
        f"Ours and {paper}'s",
        ("figure", "paper", "where", "ours"),
        tuple(
            (Cell(claim.words), Cell(claim.paper), Cell(claim.source), claim.ours)
            for claim in claims
        ),
    )


def quality_cell(quality: Interval | None) -> Cell:
    """A quality; of a model with random weights that it has none."""
    return Cell(MECHANICS_ONLY if quality is None else quality)
