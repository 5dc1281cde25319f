"""Labels runs by the knobs that differ between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from ragcache_integrations.core.checks import is_number
from ragcache_integrations.engine.engine import SETTINGS
from ragcache_integrations.retrievers.cached import CacheKnobs
from ragcache_workbench.evaluation.runs import EvalRun
from ragcache_workbench.evaluation.settings import CACHE_KNOBS, ENGINE_KNOBS, EvalSettings

__all__ = [
    "call_of",
    "changed_knobs",
    "chosen_by",
    "differing_knobs",
    "facts_of",
    "format_knob",
    "in_order",
    "label",
    "labels_of",
    "number_of",
    "rephrased_by",
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
            facts.setdefault(name, SETTINGS[name])
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
