"""What runs are called: by what is different from one to the other."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from ragcache_integrations.engine.engine import engine_settings
from ragcache_integrations.evaluation.runs import EvalRun
from ragcache_integrations.evaluation.settings import CACHE_KNOBS, ENGINE_KNOBS, EvalSettings
from ragcache_integrations.retrievers.cached import CacheKnobs

__all__ = [
    "call_of",
    "chosen_by",
    "differing",
    "facts_of",
    "in_order",
    "label",
    "number_of",
    "spelled",
]

Facts = Mapping[str, Any]

_ENGINE_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(engine_settings).parameters.items()
}


def facts_of(runs: Sequence[EvalRun]) -> list[dict[str, Any]]:
    """What is known of runs by the flat names of their knobs.

    Knobs that some of them set are there for all that have them, at their defaults. A retriever or
    a model that was passed as an object is there by its name.
    """
    flat = [run.settings.flat() for run in runs]
    named = {name for knobs in flat for name in knobs}
    return [_facts(run, knobs, named) for run, knobs in zip(runs, flat, strict=True)]


def _facts(run: EvalRun, flat: dict[str, Any], named: Iterable[str]) -> dict[str, Any]:
    passed = run.config.get("given", ())
    facts = {**flat, "label": run.config.get("label", ""), "model": run.config["model"]}
    if "retriever" in passed:
        facts["retriever"] = run.config["retriever"]
    cached = "retriever" not in passed and run.settings.retriever == "cache"
    bundled = "model" not in passed and run.settings.base_url is None
    for name in named:
        if cached and name in CACHE_KNOBS:
            facts.setdefault(name, CacheKnobs.model_fields[name].get_default())
        if bundled and name in ENGINE_KNOBS:
            facts.setdefault(name, _ENGINE_DEFAULTS[name])
    return facts


def chosen_by(run: EvalRun) -> str:
    """The configurations that it chose, question by question, the most frequent first; or ``""``.

    For example ``stuff 2 (17), map_rerank 1 (3)``.
    """
    counts = run.summary.get("configurations", {}).items()
    ordered = sorted(counts, key=lambda entry: (-entry[1], entry[0]))
    return ", ".join(f"{name} ({count})" for name, count in ordered)


def differing(facts: Sequence[Facts]) -> list[str]:
    """Names of what is not the same everywhere."""
    names = sorted({name for known in facts for name in known})
    return [name for name in names if len({repr(known.get(name, _ABSENT)) for known in facts}) > 1]


_ABSENT = object()


def label(facts: Facts, names: Sequence[str]) -> str:
    """What a run is called, by some of its knobs; those that it has not are left out."""
    shown = [f"{name}={spelled(facts[name])}" for name in names if name in facts]
    return ", ".join(text for text in shown if text != "label=")


def spelled(value: Any) -> str:
    """A knob's value, as it would be typed."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    return PurePath(text).name if "/" in text and "://" not in text else text


def number_of(value: Any) -> float | None:
    """A knob's value as a place on an axis; ``None`` where it has none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def in_order(runs: Sequence[EvalRun]) -> list[EvalRun]:
    """Runs in the order of their knobs: numbers by size, and after them the rest."""
    facts = facts_of(runs)
    names = differing(facts)

    def place(number: int) -> list[tuple[int, float, str]]:
        return [_place(facts[number].get(name)) for name in names]

    return [runs[number] for number in sorted(range(len(runs)), key=place)]


def _place(value: Any) -> tuple[int, float, str]:
    number = number_of(value)
    return (1, 0.0, spelled(value)) if number is None else (0, number, "")


def call_of(run: EvalRun) -> str:
    """What was typed to make a run; for one made from Python, the call."""
    typed = str(run.environment.get("command") or "")
    if typed:
        return typed
    usual = EvalSettings(dataset=run.settings.dataset).flat()
    knobs = {
        name: value
        for name, value in run.settings.flat().items()
        if name != "dataset" and (name not in usual or value != usual[name])
    }
    arguments = [repr(run.settings.dataset)]
    arguments += [f"{part}=..." for part in run.config.get("given", ())]
    arguments += [f"{name}={value!r}" for name, value in knobs.items()]
    return f"evaluate({', '.join(arguments)})"
