"""The figures of a run, from its records and scores; each a small function of plain numbers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from ragcache_integrations.core.checks import is_number
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.evaluation.records import Record, read_json_file

__all__ = [
    "LATENCIES",
    "PriceTable",
    "cache_hit_rate",
    "certified_share",
    "cost",
    "figures_of",
    "money_saved",
    "read_prices",
    "retrieval_latency",
    "throughput_under_limit",
    "tier_hit_rates",
    "tokens_saved",
]

SLO_FACTOR = 5.0
MILLION = 1_000_000


def cache_hit_rate(records: Sequence[Record]) -> float | None:
    """Share of the questions that the query cache answered (Proximity §4.2.4).

    Returns:
        ``None`` where there is no query cache.
    """
    known = [record.hit for record in records if record.hit is not None]
    return sum(known) / len(known) if known else None


def certified_share(records: Sequence[Record]) -> float | None:
    """Share of the query cache's answers that are proven to be the store's own.

    Returns:
        ``None`` without a hit.
    """
    bounds = [record.recall_bound or 0.0 for record in records if record.hit]
    return sum(bound >= 1 for bound in bounds) / len(bounds) if bounds else None


def retrieval_latency(record: Record) -> float | None:
    """Seconds to retrieve the documents: cache lookup, and search where necessary.

    Without embedding the question, where that is known (Proximity §4.2.4).
    """
    return max(0.0, record.retrieval_seconds - (record.embedding_seconds or 0.0))


def tokens_saved(records: Sequence[Record]) -> int | None:
    """Prompt tokens whose KV cache was reused; ``None`` where the model does not tell."""
    known = [record.cached_tokens for record in records if record.cached_tokens is not None]
    return sum(known) if known else None


def tier_hit_rates(counts: Mapping[str, int]) -> dict[str, float]:
    """Hit rates of the knowledge tree: documents found over documents retrieved (RAGCache §7.3).

    Args:
        counts: What the engine counted, as a checkpoint has it.

    Returns:
        ``gpu_hit_rate`` and ``host_hit_rate``, and by tokens ``gpu_token_hit_rate`` and
        ``host_token_hit_rate``; nothing where no documents were seen.
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

    Between the last rate that keeps it and the first that does not, TTFT is taken to grow along a
    straight line.

    Args:
        points: Rates, in requests per second, with their mean TTFTs.
        factor: The limit is so many times the TTFT at the lowest rate.
        limit: The limit itself, such as one that is common to several systems.

    Returns:
        Requests per second; the highest rate that was measured, where all keep the limit, and 0
        where the lowest does not.

    Raises:
        ConfigurationError: There are no points, or a rate comes twice.
    """
    ordered = sorted(points)
    if not ordered or len({rate for rate, _ in ordered}) != len(ordered):
        msg = f"points must have at least one rate, each once, got {[one for one, _ in ordered]}"
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
    """What things cost, in any one currency.

    Attributes:
        input: A million prompt tokens.
        cached_input: A million prompt tokens whose KV cache was reused.
        output: A million generated tokens.
        search: A thousand searches of the vector store.

    Raises:
        ConfigurationError: A price is no number of at least 0.
    """

    input: float
    cached_input: float
    output: float = 0.0
    search: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            price = getattr(self, field.name)
            if not is_number(price) or price < 0:
                msg = f"the price {field.name!r} must be a number of at least 0, got {price!r}"
                raise ConfigurationError(msg)

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """Read prices by name.

        Raises:
            ConfigurationError: A name is unknown or missing, or a price is out of its range.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(content, Mapping) or not {"input", "cached_input"} <= set(content):
            msg = f"prices must name input and cached_input, got {content!r:.80}"
            raise ConfigurationError(msg)
        unknown = sorted(set(content) - set(names))
        if unknown:
            msg = f"unknown price {unknown[0]!r}: allowed are {', '.join(names)}"
            raise ConfigurationError(msg)
        return cls(**content)


def read_prices(given: str) -> PriceTable:
    """Read ``input=0.15,cached_input=0.075,...``, or a JSON file of the same.

    Raises:
        ConfigurationError: It is neither.
    """
    if "=" not in given:
        return PriceTable.from_dict(read_json_file(Path(given), links=True))
    pairs = (part.partition("=")[::2] for part in given.split(","))
    try:
        return PriceTable.from_dict({name.strip(): float(price) for name, price in pairs})
    except ValueError as error:
        if isinstance(error, ConfigurationError):
            raise
        msg = f"prices must be input=NUMBER,cached_input=NUMBER,..., got {given!r}"
        raise ConfigurationError(msg) from error


def cost(records: Sequence[Record], prices: PriceTable) -> float | None:
    """What the questions cost; ``None`` where the model does not tell its tokens."""
    return _cost(records, prices, cached=True)


def money_saved(records: Sequence[Record], prices: PriceTable) -> float | None:
    """What they would have cost more without caches: every search, and every token in full."""
    spent, full = _cost(records, prices, cached=True), _cost(records, prices, cached=False)
    return None if spent is None or full is None else full - spent


def _cost(records: Sequence[Record], prices: PriceTable, *, cached: bool) -> float | None:
    told = [record for record in records if record.prompt_tokens is not None]
    if not told:
        return None
    prompt = sum(one.prompt_tokens or 0 for one in told)
    reused = sum(one.cached_tokens or 0 for one in told) if cached else 0
    output = sum(one.output_tokens or 0 for one in told)
    tokens = (prompt - reused) * prices.input + reused * prices.cached_input
    searched = [one for one in records if one.documents]
    searches = sum(not (cached and (one.hit or one.shared)) for one in searched)
    return (tokens + output * prices.output) / MILLION + searches * prices.search / 1000


LATENCIES: dict[str, Callable[[Record], float | None]] = {
    "retrieval": retrieval_latency,
    "ttft": lambda one: one.ttft_seconds,
    "model_ttft": lambda one: one.model_ttft_seconds,
    "tpot": lambda one: one.tpot_seconds,
    "end_to_end": lambda one: one.end_to_end_seconds,
}
"""Times of a question in seconds, by name."""


def figures_of(
    records: Sequence[Record],
    recalls: Mapping[int, float],
    counts: Mapping[str, int],
    prices: PriceTable | None = None,
) -> dict[str, float]:
    """All figures of a run but its quality; those that are not known are left out.

    Args:
        records: At least one.
        recalls: k-recall of questions by their numbers, where it is known.
        counts: What the engine counted.
        prices: What things cost.

    Returns:
        Times in milliseconds as ``NAME_ms_mean``, ``_median`` and ``_p99``, without those that are
        disturbed. ``k_recall`` is over all questions, ``hit_k_recall`` over those that the query
        cache answered.
    """
    hits = [record.number for record in records if record.hit]
    found: dict[str, float | None] = {
        "questions": len(records),
        "errors": sum(bool(one.error) for one in records),
        "disturbed": sum(one.disturbed for one in records),
        "cache_hit_rate": cache_hit_rate(records),
        "cache_hits": len(hits) if any(one.hit is not None for one in records) else None,
        "certified_share": certified_share(records),
        # Misses alone, which are always right, would only look like the whole.
        "k_recall": _mean(list(recalls.values())) if set(hits) <= set(recalls) else None,
        "hit_k_recall": _mean([recalls[hit] for hit in hits if hit in recalls]),
        "prompt_tokens": _total(one.prompt_tokens for one in records),
        "output_tokens": _total(one.output_tokens for one in records),
        "tokens_saved": tokens_saved(records),
    }
    for name, latency in LATENCIES.items():
        times = [latency(one) for one in records if not one.disturbed]
        known = [1000 * time for time in times if time is not None]
        if known:
            found[f"{name}_ms_mean"] = statistics.fmean(known)
            found[f"{name}_ms_median"] = statistics.median(known)
            found[f"{name}_ms_p99"] = float(np.percentile(known, 99))
    found |= tier_hit_rates(counts)
    if prices is not None:
        found |= {"cost": cost(records, prices), "money_saved": money_saved(records, prices)}
    return {name: value for name, value in found.items() if value is not None}


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
