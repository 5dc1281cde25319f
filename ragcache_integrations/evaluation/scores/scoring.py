"""From the records of a complete run to its scores and its summary."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ragcache_integrations.evaluation.datasets import (
    Answer,
    EvalDataset,
    EvalQuestion,
    Scored,
    k_recall,
)
from ragcache_integrations.evaluation.records import Checkpoint, Record

from .figures import PriceTable, figures_of

__all__ = ["MECHANICS_ONLY", "Score", "score_record", "scores_of", "summarise"]

MECHANICS_ONLY = "mechanics only"
"""Stands where the quality of a model with random weights would."""


@dataclass(frozen=True, slots=True)
class Score:
    """What one answer is worth.

    Attributes:
        number: The question's place in the stream.
        question: Its id.
        group: The part of the data set that it is from.
        scores: By the metric's name; of an answer that failed, 0.
        prediction: What was understood of the answer.
        recall: Share of the store's own k documents that were retrieved; ``None`` where that is not
            known.
        gold_recall: Share of the documents known to answer the question that were retrieved.
    """

    number: int
    question: str
    group: str
    scores: Mapping[str, float] = field(default_factory=dict)
    prediction: str | None = None
    recall: float | None = None
    gold_recall: float | None = None


def score_record(
    dataset: EvalDataset,
    question: EvalQuestion,
    record: Record,
    *,
    k: int,
    nearest: Sequence[str] | None,
) -> Score:
    """Score one answer.

    Args:
        dataset: Knows how.
        question: The question.
        record: What became of it.
        k: Documents that were wanted.
        nearest: Ids of what the store itself returns; ``None`` where that is not known.
    """
    scored = (
        Scored(dict.fromkeys(dataset.metrics, 0.0))
        if record.error
        else dataset.score(question, Answer(record.answer, record.likeliest))
    )
    gold = set(question.gold_documents)
    return Score(
        number=record.number,
        question=question.id,
        group=question.group,
        scores=scored.scores,
        prediction=scored.prediction,
        recall=k_recall(record.documents, nearest, k) if nearest else None,
        gold_recall=len(gold & set(record.documents)) / len(gold) if gold else None,
    )


def scores_of(
    dataset: EvalDataset,
    questions: Sequence[EvalQuestion],
    records: Sequence[Record],
    *,
    k: int,
    reference: Callable[[str], list[str] | None],
    doubted: bool = False,
    done: Callable[[], object] = lambda: None,
) -> list[Score]:
    """Score all answers, in the order of the stream.

    What is retrieved without a query cache, or past it, is the store's own by definition: only hits
    are compared, and with ``doubted`` what comes of a retriever that does not tell its hits.

    Args:
        dataset: Knows how.
        questions: All that were asked.
        records: What became of them.
        k: Documents that were wanted.
        reference: Gives the ids of what the store itself returns.
        doubted: Whether a reference was given for a retriever of the user's own.
        done: Called after every record.
    """
    by_id = {one.id: one for one in questions}
    known = {document.id for document in dataset.documents}
    scores = []
    for record in sorted(records, key=lambda one: one.number):
        question = by_id[record.question]
        compared = record.hit or (record.hit is None and doubted)
        nearest = reference(record.text) if compared else list(record.documents[:k])
        score = score_record(dataset, question, record, k=k, nearest=nearest)
        if not set(question.gold_documents) <= known or not record.documents:
            score = replace(score, gold_recall=None)  # it could not have been retrieved
        scores.append(score)
        done()
    return scores


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
    """The figures of a run, for JSON.

    Args:
        dataset: What was asked.
        questions: All that were asked.
        records: What became of them; at least one.
        scores: What the answers are worth.
        checkpoint: The last one.
        random_weights: Whether the answers are noise, so that their quality says nothing.
        prices: What things cost.
    """
    recalls = {score.number: score.recall for score in scores if score.recall is not None}
    counts: Counter[str] = Counter()
    for session in checkpoint.sessions:
        counts.update(session.get("engine", {}))
    gold = [one.gold_recall for one in scores if one.gold_recall is not None]
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
        "breaks": [one["before"] for one in checkpoint.sessions[1:]],
    }


def _quality(
    dataset: EvalDataset, questions: Sequence[EvalQuestion], scores: Sequence[Score]
) -> dict[str, Any]:
    by_id = {question.id: question for question in questions}
    means: dict[str, Any] = {
        name: statistics.fmean(one.scores[name] for one in scores) for name in dataset.metrics
    }
    together = dataset.summary_scores(
        [by_id[score.question] for score in scores],
        [Scored(dict(one.scores), one.prediction) for one in scores],
    )
    groups: dict[str, list[Score]] = defaultdict(list)
    for one in scores:
        groups[one.group].append(one)
    if len(groups) > 1:
        means["by_group"] = {
            group: {
                name: statistics.fmean(member.scores[name] for member in members)
                for name in dataset.metrics
            }
            for group, members in sorted(groups.items())
        }
    return means | together
