"""The confidence of a model in an answer."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ragcache_integrations.core.generation import TokenLogprob

__all__ = ["best", "mean_logprob", "self_rated"]

_SCORE = re.compile(r"\bscore\W*(\d+(?:\.\d+)?)", re.IGNORECASE)
_LABEL = re.compile(r"^\s*answer\s*:\s*", re.IGNORECASE)
_TRAILING = " \t\n\r*_-("
HIGHEST = 100.0


def mean_logprob(tokens: Sequence[TokenLogprob]) -> float | None:
    """Mean natural-log probability of an answer's tokens; ``None`` if there are none.

    At most 0; ``-inf`` if a token was impossible.
    """
    if not tokens:
        return None
    mean = math.fsum(token.logprob for token in tokens) / len(tokens)
    return -math.inf if math.isnan(mean) else mean


def self_rated(text: str) -> tuple[str, float | None]:
    """Separate an answer from the score that the model gave it.

    Returns:
        The answer, and its score from 0 to 1; ``None`` if it is missing or out of range.
    """
    scores = list(_SCORE.finditer(text))
    if not scores:
        return _LABEL.sub("", text).strip(), None
    last = scores[-1]
    score = float(last[1])
    answer = _LABEL.sub("", text[: last.start()]).rstrip(_TRAILING).strip()
    return answer, score / HIGHEST if score <= HIGHEST else None


def best(candidates: Sequence[tuple[bool, float | None]]) -> int:
    """Find the best answer: one that found something, then the surest, then the first.

    Args:
        candidates: For each answer, whether it found something and how sure the model is. Answers
            of unknown confidence rank after those of known confidence.

    Returns:
        The position of the best answer.
    """
    return max(
        range(len(candidates)),
        key=lambda i: (
            candidates[i][0],
            candidates[i][1] is not None,
            candidates[i][1] or 0.0,
            -i,
        ),
    )
