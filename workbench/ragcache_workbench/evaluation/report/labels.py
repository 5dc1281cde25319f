"""The words of a report: labels of runs by their knobs; titles, units and formats of figures."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from ragcache_integrations.core.checks import is_number
from ragcache_integrations.engine.arguments import EngineKnobs
from ragcache_integrations.retrievers.cached import CacheKnobs
from ragcache_workbench.evaluation.runs import EvalRun
from ragcache_workbench.evaluation.settings import CACHE_KNOBS, ENGINE_KNOBS, EvalSettings
from ragcache_workbench.reports import Unit

__all__ = [
    "FOLLOWED",
    "MEASURES",
    "SHOWN",
    "Measure",
    "call_of",
    "changed_knobs",
    "chosen_by",
    "differing_knobs",
    "facts_of",
    "format_figure",
    "format_knob",
    "in_order",
    "label",
    "labels_of",
    "main_quality",
    "measure",
    "number_of",
    "qualities",
    "rephrased_by",
    "value_of",
]

Facts = Mapping[str, Any]


def facts_of(runs: Sequence[EvalRun]) -> list[dict[str, Any]]:
    """Return the knobs of runs by their flat names.

    A knob that only some of them set has its default for the others to which it applies. A
    retriever or a model that was passed as an object is represented by its name.
    """
    flat = [run.settings.flat() for run in runs]
    named = {name for knobs in flat for name in knobs}
    return [_facts(run, knobs, named) for run, knobs in zip(runs, flat, strict=True)]


def _facts(run: EvalRun, flat: dict[str, Any], named: Iterable[str]) -> dict[str, Any]:
    passed = run.config.get("given", ())
    facts = {**flat, "label": run.config.get("label", ""), "model": run.config["model"]}
    if "retriever" in passed:
        facts["retriever"] = run.config["retriever"]
    if run.settings.synthesis_config is not None:
        facts["intermediate_length"] = run.settings.synthesis_config.intermediate_length
    cached = "retriever" not in passed and run.settings.retriever == "cache"
    bundled = "model" not in passed and run.settings.base_url is None
    for name in named:
        if cached and name in CACHE_KNOBS:
            facts.setdefault(name, CacheKnobs.model_fields[name].get_default())
        if bundled and name in ENGINE_KNOBS:
            facts.setdefault(name, EngineKnobs.model_fields[name].default)
    return facts


def chosen_by(run: EvalRun) -> str:
    """Return the configurations that a run chose for its questions, most frequent first; or ``""``.

    For example ``stuff 2 (17), map_rerank 1 (3)``.
    """
    counts = run.summary.get("configurations", {}).items()
    ordered = sorted(counts, key=lambda entry: (-entry[1], entry[0]))
    return ", ".join(f"{name} ({count})" for name, count in ordered)


def rephrased_by(runs: Sequence[EvalRun]) -> str:
    """Say what rephrased the questions of runs, such as ``by rules``.

    Of a model's, it says how many were refused and why: ``by the model; 3 of 12 refused (another
    answer 2, no new words 1) and made by rules``.

    Args:
        runs: At least one run, all of them rephrased by the same; of the same stream one counts.
    """
    streams = {run.config["workload"]["digest"]: run.config["workload"] for run in runs}
    refused: Counter[str] = Counter()
    for stream in streams.values():
        if "refused" not in stream:
            return "by rules"
        refused.update(stream["refused"])
    total = sum(stream["questions"] for stream in streams.values())
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in refused.most_common())
    instead = f" ({reasons}) and made by rules" if refused else ""
    return f"by the model; {refused.total():,} of {total:,} refused{instead}"


def differing_knobs(facts: Sequence[Facts]) -> list[str]:
    """Return the names of the knobs that are not the same in all runs."""
    names = sorted({name for known in facts for name in known})
    return [name for name in names if len({repr(known.get(name, _ABSENT)) for known in facts}) > 1]


_ABSENT = object()


def label(facts: Facts, names: Sequence[str]) -> str:
    """Return the label of a run by some of its knobs; knobs that it lacks are left out."""
    shown = [
        facts[name] if name == "label" else f"{name}={format_knob(facts[name])}"
        for name in names
        if name in facts
    ]
    return ", ".join(filter(None, shown))


def labels_of(runs: Sequence[EvalRun]) -> list[str]:
    """Return the label of each run, by the knobs that differ between them."""
    facts = facts_of(runs)
    names = differing_knobs(facts)
    return [label(known, names) for known in facts]


def format_knob(value: Any) -> str:
    """Return a knob's value as on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    return PurePath(text).name if "/" in text and "://" not in text else text


def number_of(value: Any) -> float | None:
    """Return a knob's value as a number on an axis; ``None`` if it is no number."""
    return float(value) if is_number(value) else None


def in_order(runs: Sequence[EvalRun]) -> list[EvalRun]:
    """Sort runs by their knobs: first numbers by size, then other values."""
    facts = facts_of(runs)
    names = differing_knobs(facts)

    def place(number: int) -> list[tuple[int, float, str]]:
        return [_place(facts[number].get(name)) for name in names]

    return [runs[number] for number in sorted(range(len(runs)), key=place)]


def _place(value: Any) -> tuple[int, float, str]:
    number = number_of(value)
    return (1, 0.0, format_knob(value)) if number is None else (0, number, "")


def call_of(run: EvalRun) -> str:
    """Return the command line that made a run; for a run made from Python, the call."""
    command = str(run.environment.get("command") or "")
    if command:
        return command
    arguments = [repr(run.settings.dataset)]
    arguments += [f"{part}=..." for part in run.config.get("given", ())]
    arguments += [f"{name}={value!r}" for name, value in changed_knobs(run).items()]
    return f"evaluate({', '.join(arguments)})"


def changed_knobs(run: EvalRun) -> dict[str, Any]:
    """Return the knobs of a run that do not have their default values."""
    usual = EvalSettings(dataset=run.settings.dataset).flat()
    return {
        name: value
        for name, value in run.settings.flat().items()
        if name not in usual or value != usual[name]
    }


# Figures of runs.

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
    # About three digits.
    steps = ((100, 0), (10, 1), (1, 2))
    decimals = next((decimals for least, decimals in steps if abs(value) >= least), 3)
    return f"{value:,.{decimals}f}"
