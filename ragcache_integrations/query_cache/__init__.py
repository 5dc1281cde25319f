"""The approximate query cache: a question gets the documents of one like it (Proximity).

After Proximity (§3): the keys are query embeddings, and a lookup hits when the nearest key lies
within a tolerance. What was fetched for it is re-ranked for the new question. Beyond it: hits that
are proven, a tolerance that is learnt, and entries that know which documents changed. Knows
neither frameworks nor vector stores.
"""

from __future__ import annotations

from .cache import QueryCache
from .metrics import QueryCacheCollector
from .types import (
    Candidate,
    Explanation,
    Hit,
    Metric,
    QueryCacheStats,
    VectorSource,
    VectorsPendingError,
)

__all__ = [
    "Candidate",
    "Explanation",
    "Hit",
    "Metric",
    "QueryCache",
    "QueryCacheCollector",
    "QueryCacheStats",
    "VectorSource",
    "VectorsPendingError",
]
