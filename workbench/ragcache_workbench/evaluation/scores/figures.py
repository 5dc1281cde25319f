"""The figures of a run, computed from its records and scores."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from ragcache_integrations.core.checks import check_number, unknown_name
from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.records import Record, read_json_file

__all__ = [
    "LATENCIES",
    "PriceTable",
    "all_asked",
    "figures_of",
    "read_prices",
    "retrieval_latency",
    "throughput_under_limit",
    "tier_hit_rates",
]

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
        for field in fields(self):
            check_number(f"the price {field.name!r}", getattr(self, field.name), 0)

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """Read prices by name.

        Raises:
            ConfigurationError: A name is unknown or missing, or a price is out of its range.
        """
        names = {field.name for field in fields(cls)}
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
