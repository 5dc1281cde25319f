"""What a cache of answers reports."""

from __future__ import annotations

from dataclasses import dataclass

from ragcache_integrations.query_cache.tolerance import ToleranceReport

__all__ = [
    "AnswerExplanation",
    "AnswerStats",
    "AnswerTrace",
    "SharedAnswerStats",
    "unkept_explanation",
]


@dataclass(frozen=True, slots=True)
class AnswerTrace:
    """What happened to one question.

    Attributes:
        hit: Whether an earlier answer was served.
        reason: Why, or why not, in a sentence.
        question: The question that the served answer was given to; ``None`` for a miss.
        distance: From the question to that one, 0 where both have the same words; ``None`` for a
            miss.
        age: Seconds since that answer was given; ``None`` for a miss.
    """

    hit: bool
    reason: str
    question: str | None = None
    distance: float | None = None
    age: float | None = None


@dataclass(frozen=True, slots=True)
class AnswerExplanation:
    """Why a question would be served an earlier answer, or not.

    Attributes:
        hit: Whether one would be served.
        reason: Why, in a sentence.
        question: The nearest question that was answered; ``None`` where there is none.
        distance: To that question.
        tolerance: The largest distance at which an answer is served, now.
    """

    hit: bool
    reason: str
    question: str | None
    distance: float | None
    tolerance: float


def unkept_explanation(reason: str) -> AnswerExplanation:
    """Return the explanation of a question whose answers can't be kept.

    Args:
        reason: Why, in a sentence.
    """
    return AnswerExplanation(hit=False, reason=reason, question=None, distance=None, tolerance=0.0)


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """What a cache of answers holds, and what it did since it was made.

    Attributes:
        entries: Answers that it holds now.
        capacity: The most that there can be.
        lookups: Questions that came.
        hits: Questions that were served an earlier answer.
        same_words: Hits whose question had the words of an earlier one.
        checks: Hits that were answered again in the background.
        wrong: Checks whose new answer was another one.
        failed_checks: Checks that raised an error.
        insertions: Answers that were put in.
        evictions: Answers that made room for others.
        expired: Answers that reached their time to live.
        unkept: Answers that could not be kept: nobody knows which documents they come from, or
            what they depend on, or such answers were forgotten before they were there.
        tolerance: The largest distance at which an answer is served, now.
        learning: What is known of the share of wrong answers; ``None`` for a fixed tolerance.
    """

    entries: int
    capacity: int
    lookups: int
    hits: int
    same_words: int
    checks: int
    wrong: int
    failed_checks: int
    insertions: int
    evictions: int
    expired: int
    unkept: int
    tolerance: float
    learning: ToleranceReport | None

    @property
    def misses(self) -> int:
        """Questions that the chain answered."""
        return self.lookups - self.hits


@dataclass(frozen=True, slots=True)
class SharedAnswerStats(AnswerStats):
    """What this process did with answers that processes share.

    ``entries`` is 0: they are not counted. A key has at most ``capacity`` of them, and at most 64.
    ``evictions`` are those that had to go for this process's insertions.

    Attributes:
        failed: Questions that the chain answered because Redis failed or did not answer in time.
        skipped: Those for which Redis was not called, because it had failed before.
        lost: Answers, and caps of wrong ones, that did not reach Redis.
        corrupt: Values in Redis, or answers of it, that are no answers.
        owed: Shards that have to be cleared once Redis can be reached again.
    """

    failed: int = 0
    skipped: int = 0
    lost: int = 0
    corrupt: int = 0
    owed: int = 0
