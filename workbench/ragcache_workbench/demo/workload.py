"""The stream of questions, some of which are repeated, verbatim or in other words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ragcache_integrations.core.checks import check_int, check_number
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.workloads import rephrase
from ragcache_workbench.simulation import zipf_ranks

__all__ = ["Request", "zipf_stream"]


@dataclass(frozen=True, slots=True)
class Request:
    """One question of the stream.

    Attributes:
        text: Its wording.
        topic: Position of the question in the list that the stream is drawn from.
        repeated: Whether the topic came before.
        rephrased: Whether it is a repeated topic in other words.
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
        questions: The questions to draw from; their ranks are drawn, too.
        length: Number of questions to draw; at least 1.
        exponent: The r-th most popular question is drawn with a probability proportional to
            ``r ** -exponent``; 0 makes all equally popular, 0.8 is common in measured traffic.
        rephrased_share: Share of the repeated questions that are rephrased slightly, 0 to 1; their
            number is rounded down.
        seed: The same seed gives the same stream.

    Raises:
        ConfigurationError: There are no questions, or a number is out of its range.
    """
    if not questions:
        raise ConfigurationError("a stream needs at least one question, got none")
    check_int("length", length, 1)
    check_number("exponent", exponent, 0)
    check_number("rephrased_share", rephrased_share, 0, 1)
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
