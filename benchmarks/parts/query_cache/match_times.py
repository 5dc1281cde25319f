"""How long matching and re-ranking take from Python, for generated keys of several dimensions.

Keys are random directions (for FLAT also the embeddings of real questions). Half of the queries
are stored keys, moved a little, and hit; half are other random directions and miss. Every cache is
filled and asked through its public methods, with float32 arrays.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parts.query_cache.proximity_numpy import ProximityFlat, ProximityLSH
from parts.stats.tables import Cell, print_table
from parts.stats.timing import Call, Lookup, call_here, median_us, median_us_of_threads
from ragcache_integrations.query_cache import Candidate, QueryCache

__all__ = [
    "BUCKET",
    "DOCUMENTS",
    "Filled",
    "LSHTimes",
    "fill_lsh",
    "flat_times",
    "lsh_times",
    "rerank_times",
    "time_keys",
    "time_lsh",
]

Vectors = NDArray[np.float32]
TOLERANCE = 0.5
BUCKET = 20
MOVED = 0.1
BATCH = 5_000
PEER_DIM = 768
MANY = 20_000
"""Keys beyond which a FLAT lookup takes so long that one round is enough."""
DOCUMENTS = (5_000, 100_000)
"""About as many as the data sets' passages, which stay in the processor's cache; and more."""


class Directions:
    """Random unit vectors, in batches.

    Args:
        dim: Their dimension.
        seed: The same seed gives the same ones.
    """

    def __init__(self, dim: int, seed: int) -> None:
        self._dim = dim
        self._rng = np.random.default_rng(seed)

    def draw(self, count: int) -> Vectors:
        """Draw so many, shape (count, dim)."""
        rows = self._rng.standard_normal((count, self._dim), dtype=np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    def turn(self, rows: Vectors) -> Vectors:
        """Other directions, sooner than drawn: the rows with coordinates swapped and mirrored."""
        dim = rows.shape[1]
        signs = self._rng.choice(np.array([-1, 1], dtype=np.float32), size=dim)
        return np.asarray(rows[:, self._rng.permutation(dim)] * signs)

    def near(self, rows: Vectors) -> Vectors:
        """Vectors some 0.1 away from others."""
        moved = rows + MOVED * self.draw(len(rows))
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
        return np.asarray(moved, dtype=np.float32)

    def choose(self, rows: Vectors, count: int) -> Vectors:
        """Some of the rows, picked at random, perhaps more than once."""
        return rows[self._rng.integers(len(rows), size=count)]


@dataclass(frozen=True)
class Filled:
    """A cache and what it was asked.

    Attributes:
        cache: The cache, full.
        dim: Dimension of its keys.
        keys: How many it was to store.
        recent: The keys that were inserted last.
        directions: Where they came from.
    """

    cache: QueryCache[int] | ProximityLSH
    dim: int
    keys: int
    recent: Vectors
    directions: Directions

    def queries(self, count: int) -> tuple[list[Vectors], list[Vectors]]:
        """Half that hit and half that miss; fewer hits where fewer keys are stored.

        Queries that a hyperplane parts from their key miss, and are not among the hits.
        """
        moved = self.directions.near(self.directions.choose(self.recent, 4 * count))
        hits = [query for query in moved if self.cache.lookup(query, 5) is not None][: count // 2]
        return hits, list(self.directions.draw(count // 2))


def hyperplanes(keys: int) -> int:
    """How many hyperplanes so many keys need: ``2**L * 20 >= keys``."""
    return max(1, math.ceil(math.log2(keys / BUCKET)))


def fill_lsh(
    dim: int,
    keys: int,
    *,
    candidates: int = 1,
    documents: Vectors | None = None,
    peer: bool = False,
    enough: float = 1.0,
    seed: int = 0,
) -> Filled:
    """Fill an LSH cache until it stores so many keys; give up after twenty times as many inserts.

    Args:
        dim: Dimension.
        keys: How many are to be stored.
        candidates: How many each entry has, picked at random.
        documents: Vectors of the documents they are picked from; without them there is one
            document, and nothing is re-ranked.
        peer: Fill the NumPy peer instead.
        enough: Share of the keys that will do: the last few buckets take long to fill.
        seed: Decides the keys.
    """
    directions = Directions(dim, seed)
    planes = hyperplanes(keys)
    cache: QueryCache[int] | ProximityLSH
    if peer:
        cache = ProximityLSH(dim, planes, BUCKET, TOLERANCE)
    else:

        def read(ids: Sequence[str]) -> Vectors:
            assert documents is not None
            return np.asarray(documents[[int(one) for one in ids]])

        cache = QueryCache(
            dim,
            BUCKET << planes,
            TOLERANCE,
            index="lsh",
            num_hyperplanes=planes,
            bucket_capacity=BUCKET,
            vectors=None if documents is None else read,
        )
    pool = [Candidate(str(row), row) for row in range(1 if documents is None else len(documents))]
    rng = np.random.default_rng([seed, 1])
    kept: list[Vectors] = []
    batch = min(BATCH, keys)
    rows = directions.draw(batch)
    gc.disable()  # it would look through a million entries again and again
    try:
        for _ in range(0, 20 * keys, batch):
            rows = directions.turn(rows)
            kept = [*kept[-1:], rows]
            for row in rows:
                if isinstance(cache, ProximityLSH):
                    cache.insert(row, pool)
                elif documents is None:
                    cache.insert(row, pool, complete=True)
                else:
                    picks = rng.choice(len(pool), candidates, replace=False).tolist()
                    cache.insert(row, [pool[pick] for pick in picks])
            if len(cache) >= enough * keys:
                break
    finally:
        gc.enable()
    return Filled(cache, dim, keys, np.concatenate(kept), directions)


@dataclass(frozen=True)
class LSHTimes:
    """Of one cache.

    Attributes:
        dim: Dimension of its keys.
        keys: How many it was to store.
        hit: Median time of a hit in microseconds.
        cells: The row of the table behind dimension and number.
    """

    dim: int
    keys: int
    hit: float
    cells: list[Cell]


def time_lsh(filled: Filled, count: int) -> LSHTimes:
    """Time matching, with so many different queries."""
    cache = filled.cache
    hits, misses = filled.queries(count)
    time = median_us(cache.lookup, hits)
    threads: tuple[Cell, Cell] = (None, None)
    if isinstance(cache, QueryCache):  # the peer is not thread-safe
        threads = median_us_of_threads(cache.lookup, hits + misses)
    cells: list[Cell] = [
        len(cache),
        time,
        median_us(cache.lookup, misses),
        median_us(cache.lookup, hits[:100], rounds=20),
        *threads,
    ]
    return LSHTimes(filled.dim, filled.keys, time, cells)


def time_keys(dim: int, keys: int, count: int) -> LSHTimes:
    """Fill an LSH cache with so many keys and time it."""
    return time_lsh(fill_lsh(dim, keys), count)


def lsh_times(timed: Iterable[LSHTimes], count: int) -> tuple[dict[int, dict[int, float]], float]:
    """Print how long LSH matching takes, and the NumPy peer at 768 dimensions and 5,120 keys.

    Args:
        timed: Ours.
        count: How many different queries the peer is asked.

    Returns:
        Median time of a hit in microseconds by dimension and number of keys, and the peer's.
    """
    found: dict[int, dict[int, float]] = {}
    rows: list[list[Cell]] = []
    for one in timed:
        found.setdefault(one.dim, {})[one.keys] = one.hit
        rows.append([one.dim, one.keys, *one.cells])
    peer = time_lsh(fill_lsh(PEER_DIM, 5120, peer=True), count)
    rows.append([f"NumPy {peer.dim}", peer.keys, *peer.cells])
    print_table(
        "LSH matching, b = 20: median microseconds of a lookup",
        ["dim", "keys", "stored", "hit", "miss", "100 hot", "4 threads", "per call"],
        rows,
    )
    return found, peer.hit


def rerank_times(
    dims: Sequence[int],
    candidates: Sequence[int],
    count: int,
    *,
    keys: int = 5120,
    stores: Sequence[int] = DOCUMENTS,
    call: Call = call_here,
) -> dict[int, dict[int, float]]:
    """Time hits that are re-ranked, LSH with L = 8, k = 5, matching included.

    Args:
        dims: Dimensions.
        candidates: How many each entry has.
        count: How many different queries.
        keys: How many are stored.
        stores: How many documents there are that candidates are picked from.
        call: Calls what measures, here or in a process of its own.

    Returns:
        Median time of a hit in microseconds by dimension and number of candidates, of the first
        of the stores.
    """
    found: dict[int, dict[int, float]] = {}
    rows: list[list[Cell]] = []
    for dim in dims:
        found[dim] = {}
        for store in stores:
            for number in candidates:
                queries, time, *others = call(_reranked, dim, store, number, count, keys)
                found[dim].setdefault(number, time)
                rows.append([dim, store, number, queries, time, *others])
    print_table(
        f"LSH hits re-ranked, some {keys} keys, k = 5: median microseconds, matching included",
        ["dim", "documents", "candidates", "queries", "hit", "100 hot", "4 threads", "per call"],
        rows,
    )
    return found


def _reranked(dim: int, store: int, candidates: int, count: int, keys: int) -> list[Any]:
    """Fill a cache and time it: number of queries, time of a hit, and the row's other times."""
    documents = Directions(dim, seed=1).draw(store)
    filled = fill_lsh(dim, keys, candidates=candidates, documents=documents, enough=0.9)
    hits, _ = filled.queries(2 * count)
    lookup = filled.cache.lookup
    time = median_us(lookup, hits)
    hot = median_us(lookup, hits[:100], rounds=20)
    return [len(hits), time, hot, *median_us_of_threads(lookup, hits)]


def flat_times(
    dims: Sequence[int],
    sizes: Sequence[int],
    count: int,
    real: Vectors | None = None,
) -> tuple[dict[int, dict[int, float]], dict[int, dict[int, float]]]:
    """Time FLAT matching beside a bare ``keys @ query`` and the NumPy peer.

    Args:
        dims: Dimensions.
        sizes: How many keys.
        count: How many different queries; fewer for many keys.
        real: Embeddings of real questions; timed too, if given.

    Returns:
        By dimension and size, in microseconds: the median time of a lookup, half of them hits,
        and of the bare product.
    """
    found: dict[int, dict[int, float]] = {}
    bare: dict[int, dict[int, float]] = {}
    rows: list[list[Cell]] = []
    for dim in dims:
        found[dim], bare[dim] = {}, {}
        for size in sizes:
            directions = Directions(dim, seed=0)
            keys = directions.draw(size)
            row, found[dim][size], bare[dim][size] = _flat(keys, directions, count)
            rows.append([dim, size, *row])
    if real is not None:
        directions = Directions(real.shape[1], seed=0)
        distinct = np.unique(real, axis=0)
        row, _, _ = _flat(distinct, directions, count)
        rows.append([f"real {real.shape[1]}", len(distinct), *row])
    print_table(
        "FLAT matching: median microseconds of a lookup",
        ["dim", "keys", "hit", "miss", "4 threads", "per call", "K @ q", "NumPy"],
        rows,
    )
    return found, bare


def _flat(keys: Vectors, directions: Directions, count: int) -> tuple[list[Cell], float, float]:
    """A row of the table; the time of hits and misses together; and the bare product's."""
    size, dim = keys.shape
    cache: QueryCache[int] = QueryCache(dim, size, TOLERANCE)
    peer = ProximityFlat(dim, size, TOLERANCE)
    nothing = [Candidate("0", 0)]
    for key in keys:
        cache.insert(key, nothing, complete=True)
        peer.insert(key, nothing)

    def product(query: Vectors, _k: int) -> object:
        return keys @ query

    # A lookup among 200,000 keys takes milliseconds; fewer of them are exact enough.
    few = max(50, min(count, 20_000_000 // size))
    hits = list(directions.near(directions.choose(keys, few // 2)))
    misses = list(directions.draw(few // 2))
    rounds = 3 if size <= MANY else 1

    def time(lookup: Lookup, queries: list[Vectors]) -> float:
        return median_us(lookup, queries, rounds=rounds)

    found = time(cache.lookup, hits + misses)
    bare = time(product, (hits + misses)[::10])
    row: list[Cell] = [
        time(cache.lookup, hits),
        time(cache.lookup, misses),
        *median_us_of_threads(cache.lookup, (hits + misses)[:500]),
        bare,
        time(peer.lookup, (hits + misses)[:: max(1, few // 20)]),
    ]
    return row, found, bare
