"""Runs presets, and makes their tables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragcache_integrations.core.files import replacing
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets import EvalDataset
from ragcache_workbench.evaluation.evaluate import (
    OUT,
    aevaluate_configurations,
    until_done,
)
from ragcache_workbench.evaluation.report import FOLLOWED, failures, interruptions
from ragcache_workbench.evaluation.runs import EvalRun
from ragcache_workbench.evaluation.scores import FEWEST, MECHANICS_ONLY

from .base import Table, Tables
from .pages import page_name
from .plan import PresetPlan, plan_preset
from .results import Results
from .tables import markdown

__all__ = ["PresetResult", "aevaluate_preset", "evaluate_preset", "knobs_among"]

_PARTS = (
    *("retriever", "model", "reference", "random_weights", "out", "prices", "fresh"),
    *("checkpoint_seconds", "show_progress", "label", "command"),
)
"""Arguments of :func:`~ragcache_workbench.evaluation.evaluate` that are no knobs."""

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

    @property
    def title(self) -> str:
        """Names the preset, the data set, the form, and knobs other than usual."""
        title = self.runs[0].config["dataset"]["title"]
        form = ", small form" if self.plan.form.quick else ""
        knobs = "".join(f", {name}={value}" for name, value in self.plan.changed.items())
        return f"{self.plan.preset.paper} on {title}{form}{knobs}"

    def markdown(self) -> str:
        """Return the tables and remarks as a page of Markdown."""
        return markdown(self.title, self.tables, self.remarks)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: the headline, the settings, and all tables."""
        return {
            **self.headline,
            "data": self.runs[0].settings.data,
            "changed": dict(self.plan.changed),
            "tables": [table.as_dict() for table in self.tables],
            "remarks": list(self.remarks),
        }

    def write(self, out: str | Path) -> tuple[Path, Path]:
        """Write the tables as ``PRESET-DATASET.md`` and ``.json``, with ``-quick`` if small.

        With other knobs than usual, the name has them and a hash: only the same knobs replace a
        page.

        Args:
            out: The folder; created if it does not exist.

        Returns:
            The paths of both files.

        Raises:
            ConfigurationError: ``out`` cannot be written to.
        """
        folder = Path(out)
        first = self.runs[0]
        name = page_name(
            self.plan, folder, data=first.settings.data, label=first.config.get("label", "")
        )
        texts = {
            folder / f"{name}.md": self.markdown(),
            folder / f"{name}.json": json.dumps(self.as_dict(), indent=1, default=str) + "\n",
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, text in texts.items():
                with replacing(path) as file:
                    file.write(text.encode())
        except OSError as error:
            msg = f"cannot write the tables to {folder} ({error.strerror or error})"
            raise ConfigurationError(msg) from error
        page, data = texts
        return page, data


def evaluate_preset(
    dataset: str | EvalDataset,
    preset: str,
    *,
    quick: bool | None = None,
    seeds: int | None = None,
    **arguments: Any,
) -> PresetResult:
    """Repeat a paper's experiment, and compare with the paper's figures.

    A preset is a number of runs of :func:`~ragcache_workbench.evaluation.evaluate`, each in its
    folder. The same call resumes them where they were interrupted, and reads those that are
    complete. All runs of a seed have the same questions in the same order, so that differences
    between settings are paired. The runs follow one another. ::

        result = evaluate_preset("nq", "proximity")
        print(result.markdown())

    Args:
        dataset: Name of a data set that the preset is for, or a data set of your own.
        preset: ``proximity``, ``ragcache``, ``metis`` or ``prompt-cache``.
        quick: Whether to run the small form, which takes minutes and shows the mechanics; ``None``
            for the small form of the bundled sample and the full one of other data.
        seeds: Number of seeds, from 1 to 100; ``None`` for the preset's own, and 1 of the small
            form.
        **arguments: Arguments and knobs of :func:`~ragcache_workbench.evaluation.evaluate`,
            except those that the preset decides.

    Raises:
        ConfigurationError: As for :func:`~ragcache_workbench.evaluation.evaluate`; the preset is
            unknown or not for the data set, or it decides one of the knobs itself. All of this
            before the first run.
        MissingExtraError: As for :func:`~ragcache_workbench.evaluation.evaluate`.
        Exception: The retriever or the model raised it. The call can be repeated to resume.
    """
    return until_done(
        lambda: aevaluate_preset(dataset, preset, quick=quick, seeds=seeds, **arguments)
    )


async def aevaluate_preset(
    dataset: str | EvalDataset,
    preset: str,
    *,
    quick: bool | None = None,
    seeds: int | None = None,
    **arguments: Any,
) -> PresetResult:
    """Async version of :func:`evaluate_preset`; arguments and errors as there."""
    knobs = knobs_among(arguments)
    parts = {name: value for name, value in arguments.items() if name not in knobs}
    plan = await asyncio.to_thread(plan_preset, dataset, preset, quick=quick, seeds=seeds, **knobs)
    names = plan.run_names(parts.get("label", ""))
    runs = await aevaluate_configurations(
        dataset, plan.configurations, names, **{"out": OUT, **parts}
    )
    return await asyncio.to_thread(_result, plan, tuple(runs))


def knobs_among(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the knobs among the arguments of :func:`evaluate_preset`.

    The name of a retriever or a model is a knob; an object or a function is a part of the user's.
    """
    named = {
        name: str(arguments[name])
        for name in ("retriever", "model")
        if isinstance(arguments.get(name), str | Path)
    }
    return {name: value for name, value in arguments.items() if name not in _PARTS} | named


def _result(plan: PresetPlan, runs: tuple[EvalRun, ...]) -> PresetResult:
    count = len(plan.variants)
    results = Results(
        plan.form.dataset,
        {variant.name: runs[place::count] for place, variant in enumerate(plan.variants)},
    )
    made: Tables = plan.preset.tables(results)
    first = results.first
    headline = {
        "preset": plan.preset.name,
        "dataset": plan.form.dataset,
        "quick": plan.form.quick,
        "seeds": len(plan.seeds),
        "runs": len(runs),
        "questions": len(first.records),
        "model": first.config["model"],
        **({"quality_is": MECHANICS_ONLY} if results.is_noise else {}),
        "headline": made.headline,
    }
    return PresetResult(
        plan=plan,
        runs=runs,
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
