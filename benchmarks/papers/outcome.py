"""Runs a plan; its tables as Markdown, as JSON and on the terminal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from ragcache_integrations.core.files import replacing
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets import BUNDLED
from ragcache_workbench.evaluation.evaluate import aevaluate_configurations, digest_name
from ragcache_workbench.evaluation.records import read_json_file
from ragcache_workbench.evaluation.report import FOLLOWED, failures, interruptions
from ragcache_workbench.evaluation.runs import EvalRun
from ragcache_workbench.evaluation.scores import FEWEST, MECHANICS_ONLY

from .base import Table
from .plan import PresetPlan
from .results import Results

__all__ = ["PresetResult", "markdown", "page_name", "run_plan", "show_tables"]

NOISE = (
    "The model has random weights: the best setting is that of the largest gain, and nothing shows "
    "that it answers as well."
)

FEW = (
    f"There are fewer than {FEWEST} different questions: answers that do not differ show the "
    "mechanics, and no equal quality."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetResult:
    """The complete runs of a preset, and what they show.

    Attributes:
        plan: What was run.
        runs: The runs, in their order.
        tables: The tables, the last of which has the paper's figures, too.
        remarks: What a reader of the tables has to know: what differs from the paper, how times
            were measured.
        headline: The most important figures, as plain data for JSON.
    """

    plan: PresetPlan
    runs: tuple[EvalRun, ...]
    tables: tuple[Table, ...]
    remarks: tuple[str, ...]
    headline: dict[str, Any]

    def markdown(self) -> str:
        """Return the tables and remarks as a page of Markdown.

        Its title names the preset, the data set, the form, and knobs other than usual.
        """
        title = self.runs[0].config["dataset"]["title"]
        form = ", small form" if self.plan.form.quick else ""
        knobs = "".join(f", {name}={value}" for name, value in self.plan.changed.items())
        title = f"{self.plan.preset.paper} on {title}{form}{knobs}"
        return markdown(title, self.tables, self.remarks)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write the tables as ``PRESET-DATASET.md`` and ``.json``, with ``-quick`` if small.

        With other knobs than usual, the name has them and a hash: only the same knobs replace a
        page.

        Args:
            folder: The folder; created if it does not exist.

        Returns:
            The paths of both files.

        Raises:
            ConfigurationError: The folder cannot be written to.
        """
        data = self.runs[0].settings.data
        content = {
            **self.headline,
            "data": data,
            "changed": dict(self.plan.changed),
            "tables": [table.as_dict() for table in self.tables],
            "remarks": list(self.remarks),
        }
        name = page_name(self.plan, folder, data)
        page, data_file = folder / f"{name}.md", folder / f"{name}.json"
        texts = {
            page: self.markdown(),
            data_file: json.dumps(content, indent=1, default=str) + "\n",
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, text in texts.items():
                with replacing(path) as file:
                    file.write(text.encode())
        except OSError as error:
            msg = f"cannot write the tables to {folder} ({error.strerror or error})"
            raise ConfigurationError(msg) from error
        return page, data_file


def run_plan(plan: PresetPlan, **arguments: Any) -> PresetResult:
    """Run what is planned, one run after another, and compare with the paper's figures.

    Each run has its folder. The same call resumes those that were interrupted, and reads those that
    are complete. All runs of a seed have the same questions in the same order, so that differences
    between settings are paired.

    Args:
        plan: The runs.
        **arguments: Arguments of :func:`~ragcache_workbench.evaluation.evaluate` that are no
            knobs.

    Raises:
        ConfigurationError: As for :func:`~ragcache_workbench.evaluation.evaluate`; before the
            first run.
        MissingExtraError: As there.
        Exception: The retriever or the model raised it.
    """
    names = plan.run_names()
    runs = asyncio.run(
        aevaluate_configurations(plan.form.dataset, plan.configurations, names, **arguments)
    )
    count = len(plan.variants)
    results = Results(
        plan.form.dataset,
        {variant.name: tuple(runs[place::count]) for place, variant in enumerate(plan.variants)},
    )
    made = plan.preset.tables(results)
    headline = {
        "preset": plan.preset.name,
        "dataset": plan.form.dataset,
        "quick": plan.form.quick,
        "seeds": len(plan.seeds),
        "runs": len(runs),
        "questions": len(results.first.records),
        "model": results.first.config["model"],
        **({"quality_is": MECHANICS_ONLY} if results.is_noise else {}),
        "headline": made.headline,
    }
    return PresetResult(
        plan=plan,
        runs=tuple(runs),
        tables=made.tables,
        remarks=(_differences(plan, runs), FOLLOWED, *_troubles(results), *_doubts(results)),
        headline=headline,
    )


def _troubles(results: Results) -> list[str]:
    """Which settings were interrupted, and in which questions failed."""
    runs = [run for members in results.runs.values() for run in members]

    def which(troubled: Sequence[EvalRun]) -> str:
        if len(troubled) == len(runs):
            return "All runs"
        paths = {run.path for run in troubled}
        return "; ".join(
            name
            for name, members in results.runs.items()
            if any(run.path in paths for run in members)
        )

    return [*interruptions(runs, which), *failures(runs, which)]


def _doubts(results: Results) -> list[str]:
    """What forbids to speak of equal quality."""
    if results.is_noise:
        return [NOISE]
    return [FEW] if min(map(results.questions, results.runs)) < FEWEST else []


def _differences(plan: PresetPlan, runs: Sequence[EvalRun]) -> str:
    """A few sentences about model, machine and data."""
    run = runs[0]
    # Runs that were complete before may be of another machine.
    machines = " or ".join(dict.fromkeys(map(_machine, runs)))
    data = run.config["dataset"]
    noise = ", random weights" if run.config["random_weights"] else ""
    on_disk = run.settings.store == "disk" and "retriever" not in run.config.get("given", [])
    read = ", whose vectors every search reads from the disk" if on_disk else ""
    return (
        f"The paper uses {plan.preset.setting}. These runs use {run.config['model']}{noise} on "
        f"{machines}, and {data['questions']:,} questions per seed over {data['documents']:,} "
        f"documents of {data['title']}{read}. {plan.preset.differs}"
    )


def _machine(run: EvalRun) -> str:
    machine: Mapping[str, Any] = run.environment
    return f"{machine.get('cores', 'unknown')} cores ({machine.get('device') or 'no GPU'})"


def page_name(plan: PresetPlan, folder: Path, data: str = BUNDLED) -> str:
    """Name the page of a preset's tables, without a suffix.

    The usual form is ``PRESET-DATASET``, with ``-quick`` if small. If the folder has such a page
    of other data, and for other knobs or another number of seeds, the name says which, and ends
    with their hash: the same settings replace their own page, and no other. An example is
    ``metis-nq-quick-sample=5-1f2e3d4c``.

    Args:
        plan: What was run.
        folder: Where the page will be.
        data: The source of the data set.
    """
    usual = f"{plan.preset.name}-{plan.form.dataset}{'-quick' if plan.form.quick else ''}"
    if not plan.changed and _is_free(folder, usual, data):
        return usual
    knobs = dict(plan.changed)
    if data != BUNDLED:
        knobs["data"] = Path(data).name
    words = [usual, *(f"{name}={value}" for name, value in knobs.items())]
    content = json.dumps([data, plan.changed], sort_keys=True, default=str)
    return digest_name("-".join(words), content)


def _is_free(folder: Path, name: str, data: str) -> bool:
    """Whether there is no page of this name, or it is of the same data."""
    page, content = folder / f"{name}.md", folder / f"{name}.json"
    if not page.exists() and not content.exists():
        return True
    try:
        known = read_json_file(content, links=True)
    except ConfigurationError:
        return False
    return isinstance(known, dict) and known.get("data") == data


def markdown(title: str, tables: Sequence[Table], remarks: Sequence[str]) -> str:
    """Write a page of Markdown.

    Args:
        title: The page's title.
        tables: The tables.
        remarks: Paragraphs at the end.
    """
    parts = [f"# {title}"]
    for table in tables:
        lines = [
            _line(table.columns),
            _line(["---", *(["---:"] * (len(table.columns) - 1))]),
            *(_line([cell.text for cell in row]) for row in table.rows),
        ]
        parts += [f"## {table.title}", "\n".join(lines), *table.notes]
    return "\n\n".join([*parts, *remarks]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def show_tables(tables: Sequence[Table], remarks: Sequence[str], console: Console) -> None:
    """Write tables and remarks on the terminal.

    Args:
        tables: The tables.
        remarks: Sentences after them.
        console: The terminal.
    """
    for table in tables:
        shown = RichTable(
            title=escape(table.title),
            title_justify="left",
            box=SIMPLE_HEAD,
            collapse_padding=True,
            caption=escape(" ".join(table.notes)) or None,
            caption_justify="left",
        )
        # Rows of text alone, such as the papers' figures, are read from the left.
        numbers = any(not isinstance(cell.value, str) for row in table.rows for cell in row[1:-1])
        for place, words in enumerate(table.columns):
            right = place and numbers
            shown.add_column(words, justify="right" if right else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*(escape(cell.text) for cell in row))
        console.print(shown)
    for remark in remarks:
        console.print(remark, highlight=False, markup=False)
