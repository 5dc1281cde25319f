"""Caches that are saved and read back, for the tests of files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.archive import read_archive, write_archive
from ragcache_integrations.query_cache import Candidate, Hit, QueryCache, files

DIM = 3
SECOND = 1_000_000_000
# Lattice points make ties and equal vectors common.
POINTS = st.tuples(*[st.integers(-2, 2)] * DIM).filter(any)
DOCUMENTS = {
    str(number): [(number * 7) % 5 - 2, (number * 3) % 5 - 2, number % 3 - 1]
    for number in range(14)
}
IDS = st.lists(st.sampled_from(sorted(DOCUMENTS)), max_size=6, unique=True)
KEYS = st.sampled_from([None, "tenant", ("tenant", frozenset([(str, "a"), (int, 1)]))])
KS = st.integers(1, 7)

Cache = QueryCache[Any]
Operation = tuple[Any, ...]


def vectors(ids: Sequence[str]) -> ArrayLike:
    return np.array([DOCUMENTS[one] for one in ids], dtype=np.float32)


def candidates(ids: Sequence[str], *, scored: bool = False) -> list[Candidate[Any]]:
    return [
        Candidate(one, {"text": one, "more": [1, 0.5, None]}, one * 2, rank / 3 if scored else None)
        for rank, one in enumerate(ids)
    ]


class World:
    """The clocks of a machine: what processes count with begins anywhere."""

    def __init__(self, seconds: float = 1e9) -> None:
        self.now = int(seconds * SECOND)

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def time_ns(self) -> int:
        return self.now

    def start(self, cache: Cache, offset: int = 0) -> Cache:
        cache._clock = lambda: self.now - offset
        return cache

    @contextmanager
    def lived_in(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            clock = SimpleNamespace(time_ns=self.time_ns)
            patch.setattr(files, "time", clock)
            yield


@dataclass(frozen=True)
class Kind:
    """Settings of a cache."""

    index: Literal["flat", "lsh"]
    metric: Literal["l2", "cosine", "ip"]
    eviction: Literal["lru", "fifo"]
    tolerance: float | Literal["auto"]
    guarantee: float | Literal["exact"] | None
    reads: bool
    ttl: float | None

    def cache(self) -> Cache:
        proves = self.guarantee is not None
        return QueryCache(
            DIM,
            4,
            self.tolerance,
            self.index,
            self.eviction,
            self.metric,
            num_hyperplanes=2,
            bucket_capacity=2,
            multi_probe=1 if self.index == "lsh" else 0,
            guarantee=self.guarantee,
            exact_search=proves,
            vectors=vectors if self.reads or proves else None,
            ttl=self.ttl,
            longest=4.0 if proves and self.metric == "ip" else None,
            start_tolerance=1.0 if self.tolerance == "auto" else None,
        )


KINDS = st.builds(
    Kind,
    st.sampled_from(["flat", "lsh"]),
    st.sampled_from(["l2", "cosine", "ip"]),
    st.sampled_from(["lru", "fifo"]),
    st.sampled_from([0.0, 0.5, 1.5, math.inf, "auto"]),
    st.sampled_from([None, "exact", 0.5]),
    st.booleans(),
    st.sampled_from([None, 9.5]),
)
LOOKUPS: st.SearchStrategy[Operation] = st.tuples(st.just("lookup"), POINTS, KS, KEYS)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.tuples(st.just("insert"), POINTS, IDS, KEYS, st.booleans(), st.booleans()),
    st.tuples(st.just("insert"), POINTS, IDS, KEYS, st.booleans(), st.booleans()),
    LOOKUPS,
    st.tuples(st.just("report"), POINTS, IDS, KS, KEYS),
    st.tuples(st.just("added"), IDS),
    st.tuples(st.just("removed"), IDS),
)
WAIT: st.SearchStrategy[Operation] = st.tuples(st.just("wait"), st.integers(1, 6))


def act(cache: Cache, operation: Operation) -> object:
    """Do something, and return all that it tells."""
    match operation:
        case "insert", point, ids, key, complete, scored:
            found = candidates(ids, scored=scored)
            return cache.insert(point, found, key, complete=complete or not ids)
        case "lookup", point, k, key:
            hit = cache.lookup(point, k, key)
            # Which hits are checked is drawn anew.
            return (hit and replace(hit, check=False)), cache.explain(point, k, key)
        case "report", point, ids, k, key:
            return cache.report(point, k, candidates(ids), key)
        case "added", ids:
            cache.documents_added(ids, vectors(ids) if ids else np.empty((0, DIM)))
        case "removed", ids:
            cache.documents_removed(ids)
        case ("clear",):
            cache.clear()
        case _:
            raise AssertionError(operation)
    return None


def content(cache: Cache) -> object:
    stats = cache.stats()
    learnt = stats.learning and replace(stats.learning, hits=0)  # lookups count some
    return stats.entries, stats.vectors, stats.tolerance, learnt


def filled(**options: Any) -> Cache:
    """A cache with five entries."""
    arguments: dict[str, Any] = {"tolerance": 0.1, "vectors": vectors, **options}
    cache: Cache = QueryCache(arguments.pop("dim", DIM), 10, **arguments)
    for number in range(5):
        point = np.eye(cache.dim)[number % cache.dim] * (1 if number < cache.dim else -1)
        cache.insert(point, candidates(["1", "2", str(3 + number)]), "key")
    return cache


def first(hit: Hit[Any] | None) -> str:
    assert hit is not None
    return hit.candidates[0].id


def reloaded(cache: Cache, path: Path) -> Cache:
    """What another process would have."""
    other: Cache = QueryCache(**vars(cache._settings))
    cache.save(path)
    assert other.load(path) == len(cache)
    return other


ROW = (
    *("stamp", "serves", "age", "radius", "newest", "cap", "cache_key"),
    *("complete", "ranked", "readable", "text", "candidates"),
)
"""Of an entry in a file's header."""


def saved_header(path: Path) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(read_archive(path)["header"].tobytes())
    return header


def saved_entries(path: Path) -> list[Any]:
    entries: list[Any] = saved_header(path)["entries"]
    return entries


def rewrite(
    path: Path,
    *,
    arrays: Mapping[str, NDArray[Any]] | None = None,
    header: Mapping[str, Any] | None = None,
    without: str = "",
) -> None:
    """Change what a file holds, behind a right checksum."""
    held = read_archive(path)
    told = json.loads(held["header"].tobytes()) | (header or {})
    told.pop(without, None)
    text = json.dumps(told).encode()
    held |= {"header": np.frombuffer(text, dtype=np.uint8), **(arrays or {})}
    held.pop(without, None)
    write_archive(path, held)
