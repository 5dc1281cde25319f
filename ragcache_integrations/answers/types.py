"""What a cache of answers reports: of one question, in all, and to Prometheus."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ragcache_integrations.core.metric_families import MetricFamilies
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.query_cache.metrics import learning_metrics, metrics_of
from ragcache_integrations.query_cache.tolerance import ToleranceReport

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = [
    "METRICS",
    "AnswerCacheCollector",
    "AnswerExplanation",
    "AnswerSource",
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


METRICS: dict[str, dict[str, dict[str, str]]] = tomllib.loads(
    files(__package__).joinpath("metrics.toml").read_text("utf-8")
)
"""What metrics mean, by what they are of, their kind and their name."""


@runtime_checkable
class AnswerSource(Protocol):
    """A cache of answers, of either framework, or a cached tool."""

    def stats(self) -> AnswerStats:
        """Return the counts so far."""


class AnswerCacheCollector:
    """Collects the metrics of one cache of answers, or of one cached tool, at each scrape.

    Register it once::

        prometheus_client.REGISTRY.register(AnswerCacheCollector(cached))

    Args:
        source: The cache, of either framework, or what ``cached_tool`` or ``cached_node`` returned.
        labels: Labels for every metric, such as ``{"chain": "faq"}``: needed where several are
            registered in one process.

    Raises:
        ConfigurationError: The source is another one, or Prometheus allows no such labels.
        MissingExtraError: prometheus_client is not installed.
    """

    def __init__(self, source: AnswerSource, labels: Mapping[str, str] | None = None) -> None:
        if not isinstance(source, AnswerSource) or not isinstance(source.stats(), AnswerStats):
            msg = f"source must be an AnswerCache or a cached tool or node, got {source!r:.100}"
            raise ConfigurationError(msg)
        self._source = source
        self._families = MetricFamilies(labels)

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now; called by the registry."""
        stats, families = self._source.stats(), self._families
        yield from metrics_of(families, "answer_cache", stats, **METRICS["answer_cache"])
        if isinstance(stats, SharedAnswerStats):
            shared = METRICS["answer_cache_shared"]
            yield from metrics_of(families, "answer_cache_shared", stats, **shared)
        if stats.learning is not None:
            learning = METRICS["answer_cache_learning"]
            yield from learning_metrics(
                families, "answer_cache_learning", stats.learning, **learning
            )

    def describe(self) -> list[Metric]:
        """Nothing, so that registering does not scrape."""
        return []
