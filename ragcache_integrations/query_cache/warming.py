"""Gets the kernels ready before the first question waits for them."""

from __future__ import annotations

import threading
from functools import cache

import numpy as np

from ragcache_integrations.query_cache.cache import QueryCache
from ragcache_integrations.query_cache.types import Candidate

__all__ = ["start_warm_up", "warm_up"]


def warm_up() -> None:
    """Load the kernels. On a new machine numba compiles them first, which takes some seconds."""
    queries = np.eye(2, dtype=np.float32)
    warmed = QueryCache[None](
        2,
        2,
        2.0,
        metric="cosine",
        guarantee="exact",
        exact_search=True,
        vectors=lambda ids: queries[: len(ids)],
    )
    warmed.insert(queries[0], [Candidate("some", None), Candidate("other", None)])
    warmed.lookup(queries[1], 1)


@cache
def start_warm_up() -> threading.Thread:
    """Do so once in this process, in a thread that nobody has to wait for."""
    thread = threading.Thread(target=warm_up, name="ragcache-kernels", daemon=True)
    thread.start()
    return thread
