"""What ``tolerance="auto"`` learns from: answers of entries, compared with the store's."""

from __future__ import annotations

import math
from typing import TypeVar

from .entries import Entry
from .types import Hit, Metric

__all__ = ["recall"]

T = TypeVar("T")


def recall(hit: Hit[T], truth: Entry[T], k: int, metric: Metric) -> float:
    """Return the share of the store's k documents that an answer has.

    A document as near as the last of them counts, too: the store could have returned it as well.

    Args:
        hit: The answer.
        truth: What the store said for the same query.
        k: How many documents were requested.
        metric: How the cache ranks documents.
    """
    right = {(candidate.id, candidate.fingerprint) for candidate in truth.candidates[:k]}
    if not right:
        return 1.0
    furthest = -math.inf
    if truth.readable is not None and hit.scores is not None:
        distances = truth.readable.distances
        last = float(distances[min(k, len(distances)) - 1])
        furthest = last + 1e-9 * abs(last)
    scores = hit.scores or [math.nan] * len(hit.candidates)
    correct = sum(
        (candidate.id, candidate.fingerprint) in right
        or (-score if metric == "ip" else score) <= furthest
        for candidate, score in zip(hit.candidates, scores, strict=True)
    )
    return min(correct, len(right)) / len(right)
