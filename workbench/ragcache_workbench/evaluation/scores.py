"""Scores of answers, figures of runs, and bootstrap intervals.

Two runs answered the same questions, so they are resampled in pairs.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ragcache_integrations.core.checks import check_number, unknown_name
from ragcache_integrations.errors import ConfigurationError

from .datasets import (
    Answer,
    EvalDataset,
    EvalQuestion,
    Scored,
    checked_metrics,
    checked_score,
    k_recall,
)
from .records import (
    Checkpoint,
    Number,
    Record,
    Share,
    Whole,
    read_json_file,
)

__all__ = [
    "FEWEST",
    "LATENCIES",
    "MECHANICS_ONLY",
    "Interval",
    "PriceTable",
    "Score",
    "all_asked",
    "bootstrap_interval",
    "figures_of",
    "paired_intervals",
    "read_prices",
    "retrieval_latency",
    "scores_of",
    "summarise",
    "sums_of_questions",
    "throughput_under_limit",
    "tier_hit_rates",
]

FEWEST = 100
"""Fewer different questions show no equal quality: answers that do not differ have no interval."""

RESAMPLES = 4000
BATCH = 1 << 22
"""Numbers drawn per batch."""
LARGEST = 1e300
"""Replaces a ratio whose denominator is 0, since SciPy's quantiles take no infinity."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and the ends of its 95 % interval (percentile bootstrap)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def as_list(self, digits: int | None = None) -> list[float]:
        """Value, lower and upper end, for JSON.

        Args:
            digits: Decimals to round to; ``None`` for all of them.
        """
        ends = [self.value, self.low, self.high]
        return ends if digits is None else [round(end, digits) for end in ends]


def bootstrap_interval(
    statistic: Callable[..., Any],
    samples: Sequence[ArrayLike],
    *,
    paired: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """A statistic of samples with its 95 % interval, by SciPy's percentile bootstrap.

    Args:
        statistic: Takes the samples and the ``axis`` along which they lie, as ``np.median`` does.
        samples: At least one, each of at least one number.
        paired: Whether the samples are as long as each other, and the numbers at the same place
            are drawn together.
        resamples: How often the samples are drawn again, with replacement; at least 2.
        seed: The same seed gives the same interval.
    """
    value, low, high = _bootstrap(statistic, samples, paired=paired, resamples=resamples, seed=seed)
    return Interval(float(value), float(low), float(high))


def paired_intervals(
    baseline: Sequence[float],
    other: Sequence[float],
    *,
    questions: Sequence[str] | None = None,
    average: Callable[..., Any] = np.mean,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Interval, Interval | None]:
    """Compare two systems by their averages over the same questions.

    Args:
        baseline: One number per question.
        other: Those of the same questions, in the same order.
        questions: What question each pair is of. Pairs of the same question are drawn together, as
            a question's answers resemble each other: without it, a stream in which questions come
            again would have too narrow an interval. Means are compared then, by all pairs.
        average: What is compared: ``np.mean``, ``np.median`` or alike, which take an ``axis``; not
            with ``questions``.
        resamples: How often the pairs are drawn again, with replacement; at least 2.
        seed: The same seed gives the same intervals.

    Returns:
        The other's average minus the baseline's, and the baseline's over the other's (2 where the
        other takes half the time); ``None`` for a ratio that would divide by 0.

    Raises:
        ConfigurationError: There are no pairs, the lengths differ, a number is not finite, or
            there are too few resamples.
    """

    def difference_and_ratio(first: Any, second: Any) -> Any:
        return np.stack([second - first, np.where(second == 0, LARGEST, first / second)])

    def of_pairs(first: Any, second: Any, axis: int) -> Any:
        return difference_and_ratio(average(first, axis=axis), average(second, axis=axis))

    def of_questions(counts: Any, first: Any, second: Any, axis: int) -> Any:
        count = counts.sum(axis=axis)
        return difference_and_ratio(first.sum(axis=axis) / count, second.sum(axis=axis) / count)

    if len(baseline) != len(other) or not len(baseline):
        msg = f"pairs need two numbers each, got {len(baseline)} and {len(other)}"
        raise ConfigurationError(msg)
    pairs = np.array([baseline, other], dtype=np.float64)
    if not np.isfinite(pairs).all():
        raise ConfigurationError("pairs must be finite numbers")
    if resamples < 2:  # noqa: PLR2004 - SciPy takes their standard deviation
        raise ConfigurationError(f"resamples must be at least 2, got {resamples}")
    statistic: Callable[..., Any] = of_pairs
    samples = pairs
    if questions is not None:
        statistic = of_questions
        samples = sums_of_questions(zip(questions, pairs.T, strict=True))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ends = _bootstrap(statistic, list(samples), paired=True, resamples=resamples, seed=seed)
    difference, ratio = (Interval(*map(float, column)) for column in zip(*ends, strict=True))
    return difference, None if max(ratio.as_list()) == LARGEST else ratio


def sums_of_questions(values: Iterable[tuple[str, Iterable[float]]]) -> np.ndarray:
    """How often each question comes, and the sums of its numbers.

    Args:
        values: Questions, each with as many numbers as the others. One may come several times.

    Returns:
        Shape (1 + numbers, questions); (0, 0) without any.
    """
    sums: dict[str, np.ndarray] = {}
    for question, numbers in values:
        row = np.array([1.0, *numbers])
        sums[question] = sums[question] + row if question in sums else row
    return np.array(list(sums.values())).T if sums else np.empty((0, 0))


def _bootstrap(
    statistic: Callable[..., Any],
    samples: Sequence[ArrayLike],
    *,
    paired: bool,
    resamples: int,
    seed: int,
) -> tuple[Any, Any, Any]:
    """The statistic, and the ends of its interval; each may have several numbers."""
    from scipy import stats  # noqa: PLC0415 - takes a second

    # SciPy takes no sample of one number; of two that are the same all resamples are the same, too.
    data = [
        np.repeat(sample, 2) if np.size(sample) == 1 else np.asarray(sample) for sample in samples
    ]
    ends = stats.bootstrap(
        data,
        statistic,
        n_resamples=resamples,
        batch=max(1, BATCH // max(map(len, data))),
        vectorized=True,
        paired=paired,
        axis=-1,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return statistic(*data, axis=-1), ends.low, ends.high


SLO_FACTOR = 5.0
MILLION = 1_000_000


def retrieval_latency(record: Record) -> float | None:
    """Seconds to retrieve the documents: the cache lookup, and the search on a miss.

    The time to embed the question is subtracted if it is known (Proximity §4.2.4).
    """
    return max(0.0, record.retrieval_seconds - (record.embedding_seconds or 0.0))


def tier_hit_rates(counts: Mapping[str, int]) -> dict[str, float]:
    """Hit rates of the knowledge tree: documents found over documents retrieved (RAGCache §7.3).

    Args:
        counts: The engine's counters, by the names that a checkpoint has.

    Returns:
        ``gpu_hit_rate`` and ``host_hit_rate``, and by tokens ``gpu_token_hit_rate`` and
        ``host_token_hit_rate``; empty if there were no documents.
    """
    rates = {}
    for what, kind in (("documents", ""), ("document_tokens", "token_")):
        total = counts.get(f"tree_{what}", 0)
        for tier in ("gpu", "host"):
            if total:
                rates[f"{tier}_{kind}hit_rate"] = counts[f"tree_{what}_hit_{tier}"] / total
    return rates


def throughput_under_limit(
    points: Iterable[tuple[float, float]],
    *,
    factor: float = SLO_FACTOR,
    limit: float | None = None,
) -> float:
    """Request rate that keeps the mean TTFT within a limit (RAGCache §7).

    Between the last rate within the limit and the first beyond it, the TTFT is assumed to grow
    linearly.

    Args:
        points: Rates, in requests per second, with their mean TTFTs.
        factor: The limit, as a multiple of the TTFT at the lowest rate.
        limit: The limit in the unit of the TTFTs, such as one for several systems; ``None`` for
            ``factor``.

    Returns:
        Requests per second; the highest measured rate if all rates are within the limit, and 0 if
        the lowest is not.

    Raises:
        ConfigurationError: There are no points, or a rate comes twice.
    """
    ordered = sorted(points)
    if not ordered or len({rate for rate, _ in ordered}) != len(ordered):
        msg = f"points must have at least one rate, each once, got {[rate for rate, _ in ordered]}"
        raise ConfigurationError(msg)
    if limit is None:
        limit = factor * ordered[0][1]
    kept = 0.0, 0.0
    for number, (rate, ttft) in enumerate(ordered):
        if ttft <= limit:
            kept = rate, ttft
        elif number == 0:
            return 0.0
        else:
            return kept[0] + (rate - kept[0]) * (limit - kept[1]) / (ttft - kept[1])
    return kept[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices, all in the same currency.

    Attributes:
        input: Price of a million prompt tokens.
        cached_input: Price of a million prompt tokens whose KV cache was reused.
        output: Price of a million generated tokens.
        search: Price of a thousand searches of the vector store.

    Raises:
        ConfigurationError: A price is not a number of at least 0.
    """

    input: float
    cached_input: float
    output: float = 0.0
    search: float = 0.0

    def __post_init__(self) -> None:
        for name, price in asdict(self).items():
            check_number(f"the price {name!r}", price, 0)

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """Read prices by name.

        Raises:
            ConfigurationError: A name is unknown or missing, or a price is out of its range.
        """
        names = {price.name for price in fields(cls)}
        if not isinstance(content, Mapping) or not {"input", "cached_input"} <= set(content):
            msg = f"prices must name input and cached_input, got {content!r:.80}"
            raise ConfigurationError(msg)
        unknown = sorted(set(content) - names)
        if unknown:
            raise ConfigurationError(unknown_name("price", unknown[0], names))
        return cls(**content)


def read_prices(text: str) -> PriceTable:
    """Read ``input=0.15,cached_input=0.075,...``, or a JSON file of the same.

    Raises:
        ConfigurationError: ``text`` is neither.
    """
    if "=" not in text:
        return PriceTable.from_dict(read_json_file(Path(text), links=True))
    pairs = (part.partition("=")[::2] for part in text.split(","))
    try:
        return PriceTable.from_dict({name.strip(): float(price) for name, price in pairs})
    except ValueError as error:
        if isinstance(error, ConfigurationError):
            raise
        msg = f"prices must be input=NUMBER,cached_input=NUMBER,..., got {text!r}"
        raise ConfigurationError(msg) from error


def _cost(records: Sequence[Record], prices: PriceTable, *, cached: bool) -> float | None:
    """Cost of the questions; without caches that of every search, and of every token in full.

    Returns:
        ``None`` if the model does not report its tokens, or was not asked every question.
    """
    known = [record for record in all_asked(records) if record.prompt_tokens is not None]
    if not known:
        return None
    prompt = sum(record.prompt_tokens or 0 for record in known)
    reused = sum(record.cached_tokens or 0 for record in known) if cached else 0
    output = sum(record.output_tokens or 0 for record in known)
    tokens = (prompt - reused) * prices.input + reused * prices.cached_input
    searched = [record for record in records if record.documents]
    searches = sum(not (cached and (record.hit or record.shared)) for record in searched)
    return (tokens + output * prices.output) / MILLION + searches * prices.search / 1000


LATENCIES: dict[str, Callable[[Record], float | None]] = {
    "retrieval": retrieval_latency,
    "ttft": lambda record: record.ttft_seconds,
    "model_ttft": lambda record: record.model_ttft_seconds,
    "tpot": lambda record: record.tpot_seconds,
    "end_to_end": lambda record: record.end_to_end_seconds,
}
"""Times of a question in seconds, by name."""


def figures_of(
    records: Sequence[Record],
    recalls: Mapping[int, float],
    counts: Mapping[str, int],
    prices: PriceTable | None = None,
) -> dict[str, float]:
    """Compute all figures of a run except its quality; unknown ones are left out.

    Args:
        records: The records; at least one.
        recalls: k-recall by the numbers of the questions for which it is known.
        counts: The engine's counters.
        prices: Prices of tokens and searches; ``None`` for no cost.

    Returns:
        The figures by name. Times are in milliseconds, as ``NAME_ms_mean``, ``_median`` and
        ``_p99``, without disturbed records. ``cache_hit_rate`` is the share of the questions that
        the query cache answered (Proximity §4.2.4), ``certified_share`` the share of these answers
        that are proven to be the store's own. ``k_recall`` is over all questions, ``hit_k_recall``
        over those that the query cache answered. ``tokens_saved`` are the prompt tokens whose KV
        cache was reused, ``money_saved`` is what the questions would cost more without caches.
        Tokens and times of answers are left out if the model was not asked every question: those
        that it was asked are no sample of them.
    """
    hits = [record.number for record in records if record.hit]
    asked = all_asked(records)
    figures: dict[str, float | None] = {
        "questions": len(records),
        "errors": sum(bool(record.error) for record in records),
        "disturbed": sum(record.disturbed for record in records),
        "cache_hit_rate": _mean([record.hit for record in records if record.hit is not None]),
        "cache_hits": len(hits) if any(record.hit is not None for record in records) else None,
        "certified_share": _mean(
            [(record.recall_bound or 0.0) >= 1 for record in records if record.hit]
        ),
        # A mean over misses alone, which are always right, would be no mean over all questions.
        "k_recall": _mean(list(recalls.values())) if set(hits) <= set(recalls) else None,
        "hit_k_recall": _mean([recalls[hit] for hit in hits if hit in recalls]),
        "prompt_tokens": _total(record.prompt_tokens for record in asked),
        "output_tokens": _total(record.output_tokens for record in asked),
        "tokens_saved": _total(record.cached_tokens for record in asked),
    }
    for name, latency in LATENCIES.items():
        timed = records if name == "retrieval" else asked
        times = [latency(record) for record in timed if not record.disturbed]
        known = [1000 * time for time in times if time is not None]
        if known:
            figures[f"{name}_ms_mean"] = statistics.fmean(known)
            figures[f"{name}_ms_median"] = statistics.median(known)
            figures[f"{name}_ms_p99"] = float(np.percentile(known, 99))
    figures |= tier_hit_rates(counts) if asked else {}
    if prices is not None:
        spent, full = (_cost(records, prices, cached=cached) for cached in (True, False))
        figures["cost"] = spent
        figures["money_saved"] = None if spent is None or full is None else full - spent
    return {name: value for name, value in figures.items() if value is not None}


def all_asked(records: Sequence[Record]) -> Sequence[Record]:
    """The records; none if the model was not asked some of the questions."""
    return () if any(record.reused for record in records) else records


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


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
