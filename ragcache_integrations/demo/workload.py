"""The stream of questions: some come again and again, and not always in the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.evaluation.workloads import rephrase
from ragcache_integrations.knowledge_tree.simulation import zipf_ranks

__all__ = ["Request", "zipf_stream"]


@dataclass(frozen=True, slots=True)
class Request:
    """One question of the stream.

    Attributes:
        text: Its wording this time.
        topic: Position of the question that it is, or is a rephrasing of.
        repeated: Whether the topic came before.
        rephrased: Whether the wording is new; only that of a repeated topic is.
    """

    text: str
    topic: int
    repeated: bool
    rephrased: bool


def zipf_stream(
    questions: Sequence[str],
    length: int,
    *,
    exponent: float = 0.8,
    rephrased_share: float = 0.5,
    seed: int = 0,
) -> list[Request]:
    """Draw questions by Zipf's law.

    Args:
        questions: The questions to draw from; which of them are popular is drawn too.
        length: How many to draw, at least 1.
        exponent: The r-th most popular question has a chance proportional to ``r ** -exponent``; 0
            makes all alike, 0.8 is common in measured traffic.
        rephrased_share: Share of the repeated questions whose words are changed slightly, from 0
            to 1; their number is rounded down.
        seed: The same seed gives the same stream.

    Raises:
        ConfigurationError: There are no questions, or a number is out of its range.
    """
    if not questions or length < 1 or exponent < 0 or not 0 <= rephrased_share <= 1:
        msg = (
            "a stream needs questions, a length of at least 1, an exponent of at least 0 and a "
            f"rephrased_share from 0 to 1, got {len(questions)} questions, {length=}, {exponent=}, "
            f"{rephrased_share=}"
        )
        raise ConfigurationError(msg)
    rng = np.random.default_rng(seed)
    by_rank = rng.permutation(len(questions)).tolist()
    topics = [by_rank[rank] for rank in zipf_ranks(len(questions), length, exponent, rng)]
    first = {topic: place for place, topic in reversed(list(enumerate(topics)))}
    repeats = [place for place, topic in enumerate(topics) if first[topic] != place]
    count = int(len(repeats) * rephrased_share)
    changed = set(rng.choice(repeats, count, replace=False).tolist())
    wordings: set[str] = set()
    return [
        Request(
            text=rephrase(questions[topic], "slight", rng, wordings)
            if place in changed
            else questions[topic],
            topic=topic,
            repeated=first[topic] != place,
            rephrased=place in changed,
        )
        for place, topic in enumerate(topics)
    ]
