from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray
from parts.query_cache.match_times import BUCKET, Directions, fill_lsh
from parts.stats.timing import median_us, median_us_of_threads


def test_every_query_is_asked_in_every_round_and_once_to_warm_up() -> None:
    asked: Counter[int] = Counter()

    def lookup(query: NDArray[np.float32], _k: int) -> None:
        asked[int(query[0])] += 1

    queries = list(np.arange(50, dtype=np.float32)[:, None])
    assert median_us(lookup, queries, rounds=3) > 0
    assert asked == dict.fromkeys(range(50), 4)


def test_every_thread_asks_every_query() -> None:
    asked: list[int] = []

    def lookup(query: NDArray[np.float32], _k: int) -> None:
        asked.append(int(query[0]))  # safe in several threads

    queries = list(np.arange(50, dtype=np.float32)[:, None])
    median, per_call = median_us_of_threads(lookup, queries, threads=3)
    assert Counter(asked) == dict.fromkeys(range(50), 3)
    assert median > 0
    assert per_call > 0


def test_a_cache_is_filled_to_the_last_slot_and_asked_what_hits_and_what_misses() -> None:
    for peer in (False, True):
        filled = fill_lsh(16, 4 * BUCKET, peer=peer)
        assert len(filled.cache) == 4 * BUCKET
        hits, misses = filled.queries(60)
        assert len({row.tobytes() for row in (*hits, *misses)}) == 60
        assert all(filled.cache.lookup(query, 1) is not None for query in hits)
        assert len(misses) == 30


def test_candidates_are_reranked() -> None:
    documents = Directions(16, seed=1).draw(100)
    filled = fill_lsh(16, 2 * BUCKET, candidates=20, documents=documents)
    hits, _ = filled.queries(20)
    for query in hits:
        hit = filled.cache.lookup(query, 5)
        assert hit is not None
        assert hit.reranked  # type: ignore[attr-defined]  # ours, not the peer
