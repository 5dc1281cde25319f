"""Approximate query cache: a new question close to an earlier one gets its candidates.

After Proximity (§3): the keys are query embeddings, and a lookup hits when the nearest key lies
within a tolerance. What was fetched for it is re-ranked for the new question. NumPy only; knows
neither frameworks nor vector stores.
"""

from __future__ import annotations

from ragcache_integrations.query_cache.cache import QueryCache
from ragcache_integrations.query_cache.types import (
    Candidate,
    Hit,
    Metric,
    QueryCacheStats,
    VectorSource,
)

__all__ = ["Candidate", "Hit", "Metric", "QueryCache", "QueryCacheStats", "VectorSource"]
