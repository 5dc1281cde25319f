"""Scores of answers, figures of runs, and confidence intervals."""

from .figures import LATENCIES, PriceTable, all_asked, read_prices, throughput_under_limit
from .intervals import (
    FEWEST,
    Interval,
    bootstrap_interval,
    paired_intervals,
    sums_of_questions,
)
from .scoring import MECHANICS_ONLY, Score, scores_of, summarise

__all__ = [
    "FEWEST",
    "LATENCIES",
    "MECHANICS_ONLY",
    "Interval",
    "PriceTable",
    "Score",
    "all_asked",
    "bootstrap_interval",
    "paired_intervals",
    "read_prices",
    "scores_of",
    "summarise",
    "sums_of_questions",
    "throughput_under_limit",
]
