"""Scores and summarises the records of a complete run."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ragcache_workbench.evaluation.datasets import (
    Answer,
    EvalDataset,
    EvalQuestion,
    Scored,
    checked_metrics,
    checked_score,
    k_recall,
)
from ragcache_workbench.evaluation.records import Checkpoint, Number, Record, Share, Whole

from .figures import PriceTable, figures_of

__all__ = ["MECHANICS_ONLY", "Score", "scores_of", "summarise"]

MECHANICS_ONLY = "mechanics only"
"""Replaces the quality of a model with random weights."""


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of one answer.

    Attributes:
        number: The question's position in the stream, from 0.
        question: The question's id.
        group: The part of the data set that the question belongs to.
        scores: The scores, by the metric's name; 0 for an answer that failed.
        prediction: The option that the model chose, or its text; ``None`` if it chose none.
        recall: Share of the store's own k documents that were retrieved; ``None`` if unknown.
        gold_recall: Share of the documents known to answer the question that were retrieved;
            ``None`` if no such document is known.
    """

    number: Whole
    question: str
    group: str
    scores: Mapping[str, Number] = field(default_factory=dict)
    prediction: str | None = None
    recall: Share | None = None
    gold_recall: Share | None = None


def scores_of(
    dataset: EvalDataset,
    questions: Sequence[EvalQuestion],
    records: Sequence[Record],
    *,
    k: int,
    reference: Callable[[str], list[str] | None],
    doubted: bool = False,
) -> Iterator[Score]:
    """Score all answers, in the order of the stream.

    Documents that were retrieved without a query cache, or on a miss, are the store's own. So only
    hits are compared with the store; with ``doubted`` also the documents of retrievers that do not
    report their hits.

    Args:
        dataset: The data set, which scores answers.
        questions: All questions of the run.
        records: The records of their answers.
        k: Number of documents per question.
        reference: Returns the ids of the documents that the store itself returns.
        doubted: Whether the user passed a reference for a retriever.
    """
    by_id = {question.id: question for question in questions}
    known = {document.id for document in dataset.documents}
    for record in sorted(records, key=lambda record: record.number):
        question = by_id[record.question]
        compared = record.hit or (record.hit is None and doubted)
        nearest = reference(record.text) if compared else list(record.documents[:k])
        scored = Scored(dict.fromkeys(dataset.metrics, 0.0))  # of an answer that failed
        if not record.error:
            scored = checked_score(dataset, question, Answer(record.answer, record.likeliest))
        gold, retrieved = set(question.gold_documents), set(record.documents)
        retrievable = gold and gold <= known and retrieved
        yield Score(
            number=record.number,
            question=question.id,
            group=question.group,
            scores=scored.scores,
            prediction=scored.prediction,
            recall=k_recall(record.documents, nearest, k) if nearest else None,
            gold_recall=len(gold & retrieved) / len(gold) if retrievable else None,
        )


def summarise(
    dataset: EvalDataset,
    questions: Sequence[EvalQuestion],
    records: Sequence[Record],
    scores: Sequence[Score],
    checkpoint: Checkpoint,
    *,
    random_weights: bool,
    prices: PriceTable | None,
) -> dict[str, Any]:
    """Summarise a run as plain data for JSON.

    Args:
        dataset: The data set.
        questions: All questions of the run.
        records: The records of their answers; at least one.
        scores: The scores of the answers.
        checkpoint: The last checkpoint.
        random_weights: Whether the answers are noise, so that their quality has no meaning.
        prices: Prices of tokens and searches; ``None`` for no cost.
    """
    recalls = {score.number: score.recall for score in scores if score.recall is not None}
    counts: Counter[str] = Counter()
    for session in checkpoint.sessions:
        counts.update(session.get("engine", {}))
    gold = [score.gold_recall for score in scores if score.gold_recall is not None]
    figures = figures_of(records, recalls, counts, prices)
    if gold:
        figures["gold_recall"] = statistics.fmean(gold)
    return {
        "quality": MECHANICS_ONLY if random_weights else _quality(dataset, questions, scores),
        "figures": figures,
        "configurations": dict(
            Counter(record.configuration for record in records if record.configuration)
        ),
        "engine": dict(counts),
        "sessions": checkpoint.sessions,
        "breaks": [session["before"] for session in checkpoint.sessions[1:]],
    }


def _quality(
    dataset: EvalDataset, questions: Sequence[EvalQuestion], scores: Sequence[Score]
) -> dict[str, Any]:
    def means_of(members: Sequence[Score]) -> dict[str, Any]:
        return {
            name: statistics.fmean(score.scores[name] for score in members)
            for name in dataset.metrics
        }

    by_id = {question.id: question for question in questions}
    means = means_of(scores)
    together = dataset.summary_scores(
        [by_id[score.question] for score in scores],
        [Scored(dict(score.scores), score.prediction) for score in scores],
    )
    groups: dict[str, list[Score]] = defaultdict(list)
    for score in scores:
        groups[score.group].append(score)
    if len(groups) > 1:
        means["by_group"] = {group: means_of(groups[group]) for group in sorted(groups)}
    return means | checked_metrics(f"{type(dataset).__name__}.summary_scores", together)
