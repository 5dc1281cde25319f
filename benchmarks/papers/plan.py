"""The runs of a preset, checked before the first of them starts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragcache_integrations.core.checks import check_choice, check_int
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets import BUNDLED, EvalDataset, load_dataset
from ragcache_workbench.evaluation.evaluate import run_name
from ragcache_workbench.evaluation.settings import EvalSettings

from .base import Form, Preset, Variant
from .metis import METIS
from .prompt_cache import PROMPT_CACHE
from .proximity import PROXIMITY
from .ragcache import RAGCACHE

__all__ = ["PRESETS", "PresetPlan", "plan_preset"]

PRESETS = {preset.name: preset for preset in (PROXIMITY, RAGCACHE, METIS, PROMPT_CACHE)}
MOST_SEEDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetPlan:
    """The runs of a preset, none of which has started.

    Attributes:
        preset: The preset.
        form: In which form it is run.
        seeds: The seeds, each of which is a run of every variant.
        variants: The settings, in the order of the runs.
        configurations: The configuration of every run: all variants of the first seed, then those
            of the next.
        changed: Knobs in which it differs from the preset's usual form, the source of the data
            aside; ``seeds`` if their number does.
    """

    preset: Preset
    form: Form
    seeds: tuple[int, ...]
    variants: tuple[Variant, ...]
    configurations: tuple[EvalSettings, ...]
    changed: Mapping[str, Any]

    def run_names(self) -> list[str]:
        """Return the name of every run's folder, with the knobs in which the settings differ."""
        names = sorted({name for variant in self.variants for name in variant.knobs})
        differing = [
            name
            for name in names
            if len({repr(variant.knobs.get(name, _ABSENT)) for variant in self.variants}) > 1
        ]
        return [
            run_name(settings, [*(name for name in differing if name in variant.knobs), "seed"])
            for settings, variant in self._runs()
        ]

    def describe(self) -> str:
        """List the runs, one a line, after a line that says how many there are."""
        form = "small form" if self.form.quick else "full form"
        count = len(self.configurations)
        seeds = "a single seed" if len(self.seeds) == 1 else f"each of {len(self.seeds)} seeds"
        shared = _assignments(self.form.knobs)
        lines = [
            f"{self.preset.name} ({self.preset.paper}) on {self.form.dataset}, {form}: {count} "
            f"runs, one after another; {len(self.variants)} settings with {seeds}"
            + (f"; {shared}" if shared else "")
        ]
        lines += [
            f"{number:4}. {variant.name}: seed={settings.seed} {_assignments(variant.knobs)}"
            for number, (settings, variant) in enumerate(self._runs(), 1)
        ]
        return "\n".join(lines)

    def _runs(self) -> Iterator[tuple[EvalSettings, Variant]]:
        return zip(self.configurations, itertools.cycle(self.variants), strict=False)


_ABSENT = object()


def _assignments(knobs: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(knobs.items()))


def plan_preset(
    dataset: str,
    preset: str,
    *,
    quick: bool | None = None,
    seeds: int | None = None,
    **knobs: Any,
) -> PresetPlan:
    """Plan the runs of a preset without starting any.

    Args:
        dataset: Name of a data set that the preset is for.
        preset: Name of the preset.
        quick: Whether to plan the small form, which takes minutes and shows the mechanics;
            ``None`` for the small form of the bundled sample and the full one of other data.
        seeds: Number of seeds, from 1 to 100; ``None`` for the preset's own, and 1 of the small
            form.
        **knobs: Settings of all runs by their flat names.

    Raises:
        ConfigurationError: The preset is unknown or not for the data set, it decides one of the
            knobs itself, a knob is unknown or out of its range, or the data is not there.
    """
    check_choice("preset", preset, list(PRESETS))
    chosen = PRESETS[preset]
    check_choice(f"the data set of {preset}", dataset, list(chosen.datasets))
    if quick is None:
        quick = str(knobs.get("data", BUNDLED)) == BUNDLED
    usual_seeds = 1 if quick else chosen.seeds
    usual = chosen.usual_quick if quick else chosen.usual
    form = Form(dataset, quick, {**usual, **knobs})
    variants = chosen.variants(form)
    _check_knobs(chosen, variants, usual, knobs)
    count = usual_seeds if seeds is None else check_int("seeds", seeds, 1, MOST_SEEDS)
    first = _settings(form, variants[0], 0)
    documents = None if first.documents is None else Path(first.documents)
    questions = load_dataset(dataset, first.data, documents)
    form = Form(dataset, quick, {**form.knobs, **_sample(questions, first, "sample" in knobs)})
    changed = _changed(form, {**usual, **_usual_sample(questions, usual)})
    return PresetPlan(
        preset=chosen,
        form=form,
        seeds=tuple(range(count)),
        variants=variants,
        configurations=tuple(
            _settings(form, variant, seed) for seed in range(count) for variant in variants
        ),
        changed=changed | ({} if count == usual_seeds else {"seeds": count}),
    )


def _check_knobs(
    preset: Preset,
    variants: tuple[Variant, ...],
    usual: Mapping[str, Any],
    knobs: Mapping[str, Any],
) -> None:
    """Check that no knob of the user is the preset's own."""
    own = {"seed", *(name for variant in variants for name in variant.knobs)} - set(usual)
    both = sorted(own & set(knobs))
    if both:
        raise ConfigurationError(
            f"preset {preset.name!r} decides {', '.join(both)} itself: leave it out, or run your "
            "own sweep by ragcache eval"
        )


def _settings(form: Form, variant: Variant, seed: int) -> EvalSettings:
    shared = {name: value for name, value in form.knobs.items() if name not in variant.without}
    return EvalSettings(dataset=form.dataset).set(**{**shared, **variant.knobs, "seed": seed})


def _sample(dataset: EvalDataset, first: EvalSettings, chosen: bool) -> dict[str, int]:
    """Check the number of questions; a usual sample is at most all of them.

    Returns:
        The sample as a knob; empty for all questions.
    """
    if first.sample is None:
        return {}
    if chosen:
        return {"sample": len(dataset.sampled(first.sample, first.seed))}
    return _usual_sample(dataset, {"sample": first.sample})


def _usual_sample(dataset: EvalDataset, usual: Mapping[str, Any]) -> dict[str, int]:
    sample = usual.get("sample")
    return {} if sample is None else {"sample": min(sample, len(dataset.questions))}


def _changed(form: Form, usual: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs whose values are not the usual ones, by name."""
    defaults = {**EvalSettings(dataset=form.dataset).flat(), **usual}
    return {
        name: value
        for name, value in sorted(form.knobs.items())
        if name != "data" and defaults.get(name, _ABSENT) != value
    }
