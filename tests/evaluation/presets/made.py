"""Runs that nobody ran: their records are made up, so that tables can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ragcache_workbench.evaluation import EvalRun, Record, Score
from ragcache_workbench.evaluation.scores import MECHANICS_ONLY
from ragcache_workbench.evaluation.settings import EvalSettings


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
