"""Presets over a small store, and made-up runs, whose tables can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from papers.outcome import PresetResult, run_plan
from papers.plan import plan_preset

from ragcache_workbench.evaluation import EvalRun, Record, Score
from ragcache_workbench.evaluation.scores import MECHANICS_ONLY
from ragcache_workbench.evaluation.settings import EvalSettings
from tests.evaluation.world import make_retriever, store


def retriever(settings: EvalSettings, documents: object) -> Any:
    """Make a retriever over the small store."""
    if settings.retriever == "plain":
        return store().as_retriever(search_kwargs={"k": settings.k})
    return make_retriever(settings, documents)


def run_preset(preset: str, model: Any, out: Path, **arguments: Any) -> PresetResult:
    """Run the small form of a preset on the bundled questions.

    Args:
        preset: Its name.
        model: The model.
        out: The folder of the runs.
        **arguments: Knobs, and other arguments of ``evaluate``.
    """
    others = {"model": model, "out": out, "retriever": retriever, "checkpoint_seconds": 0}
    for name in ("retriever", "prices", "random_weights"):
        if not isinstance(arguments.get(name), str | None):
            others[name] = arguments.pop(name)
    plan = plan_preset("nq", preset, **arguments)
    return run_plan(plan, **others)


def made_run(
    quality: Sequence[float],
    *,
    questions: Sequence[str] | None = None,
    settings: EvalSettings | None = None,
    figures: dict[str, float] | None = None,
    noise: bool = False,
    digest: str = "the same",
    **columns: Sequence[Any] | float | bool,
) -> EvalRun:
    """Make a run with an F1 for each question.

    Args:
        quality: The scores of the answers.
        questions: Ids of the questions; all different by default.
        settings: The configuration.
        figures: Figures of the whole run.
        noise: Whether the model has random weights.
        digest: Names the stream of questions.
        **columns: Fields of records, as a value for each or for all; ``recall`` is the scores'.
    """
    names = questions or [f"q{number}" for number in range(len(quality))]
    recalls = columns.pop("recall", None)

    def at(values: Any, number: int) -> Any:
        return values[number] if isinstance(values, list | tuple) else values

    records = tuple(
        Record(
            number=number,
            question=name,
            text=name,
            session=1,
            sequence=number,
            **{field: at(values, number) for field, values in columns.items()},
        )
        for number, name in enumerate(names)
    )
    scores = tuple(
        Score(number, name, "", {"f1": score}, recall=at(recalls, number))
        for number, (name, score) in enumerate(zip(names, quality, strict=True))
    )
    mean = sum(quality) / len(quality)
    return EvalRun(
        path=Path("made"),
        config={
            "dataset": {"name": "nq", "title": "Made up", "questions": 1, "documents": 1},
            "workload": {"questions": len(names), "digest": digest},
            "model": "made",
            "random_weights": noise,
        },
        settings=settings or EvalSettings(dataset="nq"),
        summary={
            "quality": MECHANICS_ONLY if noise else {"f1": mean},
            "figures": figures or {},
            "breaks": [],
        },
        records=records,
        scores=scores,
    )
