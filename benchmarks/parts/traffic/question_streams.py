"""Streams of questions as in Proximity §4.2.2, in which no text occurs twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parts.traffic.near_duplicates import near_duplicates
from parts.traffic.questions import Question
from ragcache_workbench.evaluation.workloads import Kind, WorkloadKind, make_workload

__all__ = ["Stream", "uniform_stream", "zipf_stream"]


@dataclass(frozen=True)
class Stream:
    """Questions in their order.

    Attributes:
        texts: Their wordings.
        originals: The question that each is a rephrasing of.
    """

    texts: tuple[str, ...]
    originals: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def __add__(self, later: Stream) -> Stream:
        """Both, one after the other."""
        return Stream(self.texts + later.texts, self.originals + later.originals)


def zipf_stream(
    questions: Sequence[Question],
    length: int,
    kind: Kind,
    *,
    twins: int = 0,
    exponent: float = 0.8,
    seed: int = 0,
) -> Stream:
    """Draw questions independently by Zipf's law, each time in other words; each at least once.

    Args:
        questions: The questions; which of them are popular is drawn.
        length: Length of the stream.
        kind: How they are rephrased.
        twins: Near-duplicates with another meaning to add to the questions; they are drawn, and
            rephrased, like any other.
        exponent: Zipf's; 0.8 in the paper.
        seed: The same seed draws the same stream.

    Raises:
        ConfigurationError: The stream is too short for each question to come once, or a question
            has not enough rephrasings.
    """
    return _stream(
        questions, twins, "zipf", length=length, rephrasing=kind, exponent=exponent, seed=seed
    )


def uniform_stream(
    questions: Sequence[Question], *, variants: int = 4, twins: int = 0, seed: int = 0
) -> Stream:
    """Repeat every question equally often, each time after other short beginnings, shuffled.

    Args:
        questions: The questions.
        variants: How often each comes.
        twins: As for :func:`zipf_stream`.
        seed: The same seed draws the same stream.
    """
    return _stream(questions, twins, "uniform", variants=variants, seed=seed)


def _stream(
    questions: Sequence[Question], twins: int, kind: WorkloadKind, *, seed: int, **knobs: Any
) -> Stream:
    topics = [topic.text for topic in (*questions, *near_duplicates(questions, twins, seed))]
    items = make_workload(topics, kind, seed=seed, **knobs).items
    return Stream(
        tuple(item.text for item in items), tuple(topics[item.question] for item in items)
    )
