"""Streams of questions as in Proximity §4.2.2, in which no text occurs twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parts.traffic.near_duplicates import near_duplicates
from parts.traffic.questions import Question
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.evaluation.workloads.rephrasing import Kind, rephrase

__all__ = ["Stream", "uniform_stream", "zipf_stream"]


@dataclass(frozen=True)
class Stream:
    """Questions in the order in which they are asked.

    Attributes:
        texts: The questions as asked.
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
        questions: What is asked; which of them are popular is drawn.
        length: How many questions are asked.
        kind: How they are rephrased.
        twins: Near-duplicates with another meaning to add to the questions; they are asked, and
            rephrased, like any other.
        exponent: Zipf's; 0.8 in the paper.
        seed: The same seed draws the same stream.

    Raises:
        ConfigurationError: The stream is too short for each question to come once, or a question
            has not enough rephrasings.
    """
    topics = [*questions, *near_duplicates(questions, twins, seed)]
    if not 0 < len(topics) <= length:
        msg = f"a stream of {length} cannot hold each of {len(topics)} questions, at least 1, once"
        raise ConfigurationError(msg)
    rng = np.random.default_rng([seed, 0])
    chances = np.arange(1, len(topics) + 1) ** -exponent
    popular = rng.choice(len(topics), size=length - len(topics), p=chances / chances.sum())
    by_rank = rng.permutation(len(topics))
    asked = rng.permutation(by_rank[np.concatenate([np.arange(len(topics)), popular])])
    return _rephrased([topics[number].text for number in asked], kind, rng)


def uniform_stream(
    questions: Sequence[Question],
    kind: Kind,
    *,
    variants: int = 4,
    twins: int = 0,
    seed: int = 0,
) -> Stream:
    """Ask every question so many times, each time in other words, in random order.

    Args:
        questions: What is asked.
        kind: How they are rephrased; ``prefixed`` in the paper.
        variants: How often each is asked.
        twins: As for :func:`zipf_stream`.
        seed: The same seed draws the same stream.
    """
    topics = [*questions, *near_duplicates(questions, twins, seed)]
    rng = np.random.default_rng([seed, 0])
    asked = rng.permutation(np.repeat(np.arange(len(topics)), variants))
    return _rephrased([topics[number].text for number in asked], kind, rng)


def _rephrased(originals: Sequence[str], kind: Kind, rng: np.random.Generator) -> Stream:
    taken: set[str] = set()
    texts = tuple(rephrase(text, kind, rng, taken) for text in originals)
    return Stream(texts, tuple(originals))
