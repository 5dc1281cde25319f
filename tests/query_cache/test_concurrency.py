"""Many threads at once: no wrong hit, no lost change of the store, no hit across keys.

Every document names the cache key and the point that it was found for, and a reference says from
when until when it was in the store, on a clock that counts calls. The
thorough profile (``tests/support/sizes.py``) runs two million operations.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.query_cache import Candidate, Hit, QueryCache
from ragcache_integrations.query_cache import cache as cache_module
from ragcache_integrations.query_cache.entries import table as keys_module
from ragcache_integrations.query_cache.kernels import compiled as _compiled
from ragcache_integrations.query_cache.kernels import plain as _plain
from tests.support.sizes import scaled

from .reference import Vector

OPERATIONS = scaled(200_000)
THREADS = 16
TENANTS = ["one", "other", None]
TOLERANCE = 0.1
POINTS = 24
NEVER = math.inf

Name = tuple[str | None, int]
"""A cache key, and the number of a point."""


@dataclass(frozen=True)
class Document:
    """Says whose it is, and which others its search has seen."""

    name: Name
    seen: frozenset[str]


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(before)


class World:
    """A store for every cache key and point; points are far apart, and the same for all keys.

    Attributes:
        came: From which call on every document must be reckoned with.
        going: When it began to go.
        gone: From which call on it must not be served.
    """

    def __init__(self, dim: int) -> None:
        rng = np.random.default_rng(0)
        self.points: Vector = rng.normal(size=(POINTS, dim)).astype(np.float32)
        self.clock = itertools.count()
        self.serial = itertools.count()
        self.vectors: dict[str, Vector] = {}
        self.store: dict[Name, dict[str, None]] = {
            (tenant, point): {} for tenant in TENANTS for point in range(POINTS)
        }
        self.came: dict[str, int] = {}
        self.going: dict[str, int] = {}
        self.gone: dict[str, int] = {}

    def near(self, point: int, chance: random.Random, most: float) -> Vector:
        """Return a vector at a distance of at most ``most`` from a point."""
        step = np.zeros(self.points.shape[1], dtype=np.float32)
        step[chance.randrange(len(step))] = chance.uniform(-most, most)
        moved: Vector = self.points[point] + step
        return moved

    def create(self, name: Name, chance: random.Random) -> str:
        one = f"{name[0]}/{name[1]}/{next(self.serial)}"
        self.vectors[one] = self.near(name[1], chance, 1.0)
        self.store[name][one] = None
        return one

    def read(self, ids: Sequence[str]) -> Vector:
        return np.array([self.vectors[one] for one in ids], dtype=np.float32)

    def search(self, name: Name, query: Vector, count: int) -> list[Candidate[Document]]:
        """Search all documents of one cache key near one point."""
        found = list(self.store[name])
        found = [one for one in found if one in self.vectors]
        distances = {one: far(self.vectors[one], query) for one in found}
        found.sort(key=distances.__getitem__)
        document = Document(name, frozenset(found))
        return [Candidate(one, document) for one in found[:count]]


def far(one: Vector, other: Vector) -> float:
    difference = one.astype(np.float64) - other
    return math.sqrt(float(difference @ difference))


def check_hit(
    world: World, name: Name, query: Vector, k: int, hit: Hit[Document], start: int
) -> None:
    """Check one hit; ``start`` is when its lookup began."""
    document = hit.candidates[0].document
    assert {one.document for one in hit.candidates} == {document}
    assert document.name == name
    ids = [candidate.id for candidate in hit.candidates]
    assert len(ids) == len(set(ids)) == k
    assert hit.distance <= TOLERANCE
    late = [one for one in ids if world.gone.get(one, NEVER) < start]
    assert not late, f"{late} were gone before"
    if hit.scores is None:
        return
    end = next(world.clock)
    assert list(hit.scores) == sorted(hit.scores)
    worst = hit.scores[-1]
    for one in set(world.store[name]) - document.seen:
        if world.came.get(one, NEVER) < start and world.going.get(one, NEVER) > end:
            assert far(world.vectors[one], query) > worst - 1e-5, f"{one} is missing"


class Hammer:
    """Does random things, and checks every answer.

    Attributes:
        done: How many lookups and hits there were.
    """

    def __init__(self, cache: QueryCache[Document], world: World, seed: int) -> None:
        self.cache, self.world = cache, world
        self.chance = random.Random(seed)
        self.done: Counter[str] = Counter()

    def run(self, count: int) -> Counter[str]:
        what = {
            self.look_up: 72.0,
            self.look_up_several: 3.0,
            self.insert: 15.0,
            self.add: 4.0,
            self.remove: 4.0,
            self.delete: 0.9,
            self.look_on: 0.1,
            self.clear: 0.02,
        }
        chosen = self.chance.choices([*what], [*what.values()], k=count)
        for one in chosen:
            one((self.chance.choice(TENANTS), self.chance.randrange(POINTS)))
        return self.done

    def check(self, name: Name, query: Vector, k: int, hit: Hit[Document] | None, at: int) -> None:
        self.done["lookups"] += 1
        if hit is not None:
            self.done["hits"] += 1
            check_hit(self.world, name, query, k, hit, at)

    def look_up(self, name: Name) -> None:
        k = self.chance.randint(1, 3)
        most = self.chance.choice([0.0, TOLERANCE / 2, TOLERANCE / 2])
        query = self.world.near(name[1], self.chance, most)
        start = next(self.world.clock)
        self.check(name, query, k, self.cache.lookup(query, k, name[0]), start)

    def look_up_several(self, name: Name) -> None:
        tenant, point = name
        points = [point, (point + 1) % POINTS, point]
        queries = np.array([self.world.near(one, self.chance, 0.01) for one in points])
        start = next(self.world.clock)
        hits = self.cache.lookup_batch(queries, 1, tenant)
        for query, one, hit in zip(queries, points, hits, strict=True):
            self.check((tenant, one), query, 1, hit, start)

    def insert(self, name: Name) -> None:
        query = self.world.near(name[1], self.chance, TOLERANCE / 2)
        version = self.cache.store_version
        found = self.world.search(name, query, self.chance.randint(3, 6))
        if found:
            self.cache.insert(query, found, name[0], store_version=version)

    def add(self, name: Name) -> None:
        one = self.world.create(name, self.chance)
        self.cache.documents_added([one])
        self.world.came[one] = next(self.world.clock)

    def remove(self, name: Name) -> None:
        there = list(self.world.store[name])
        if len(there) <= 4:
            return
        one = self.chance.choice(there)
        self.world.going[one] = next(self.world.clock)
        self.world.store[name].pop(one, None)
        self.cache.documents_removed([one])
        self.world.gone.setdefault(one, next(self.world.clock))

    def delete(self, name: Name) -> None:
        self.cache.delete(self.world.points[name[1]], name[0])

    def look_on(self, name: Name) -> None:
        self.cache.explain(self.world.points[name[1]], 2, name[0])
        assert self.cache.stats().entries <= self.cache.stats().capacity

    def clear(self, _: Name) -> None:
        self.cache.clear()


def run_threads(cache: QueryCache[Document], world: World, operations: int) -> Counter[str]:
    barrier = threading.Barrier(THREADS)

    def one(seed: int) -> Counter[str]:
        hammer = Hammer(cache, world, seed)
        barrier.wait()
        return hammer.run(operations // THREADS)

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(one, range(THREADS)), Counter())


def settle(cache: QueryCache[Document], done: Counter[str]) -> None:
    """Check that everything was counted once and nothing was left over."""
    stats = cache.stats()
    assert (stats.lookups, stats.hits) == (done["lookups"], done["hits"])
    assert 0 < stats.hits < stats.lookups
    table = cache._table
    for slot in table.keys.taken().tolist():
        table.remove(slot)
    assert len(cache) == cache.stats().vectors == 0
    assert not table.partitions
    assert not table._holders


@pytest.mark.timeout(1800)  # for a million operations on a slow machine
@pytest.mark.parametrize("index", ["flat", "lsh"])
def test_no_wrong_hit_whatever_the_others_do(index: Any) -> None:
    world = World(12)
    chance = random.Random(0)
    for name in world.store:
        for _ in range(6):
            world.came[world.create(name, chance)] = -1
    cache = QueryCache[Document](
        12, 60, TOLERANCE, index, num_hyperplanes=4, bucket_capacity=6, multi_probe=1,
        vectors=world.read,
    )  # fmt: skip
    done = run_threads(cache, world, OPERATIONS // 2)
    settle(cache, done)
    stats = cache.stats()
    assert min(stats.evictions, stats.invalidated, stats.stale) > 0


@pytest.mark.parametrize("kernels", [_compiled, _plain], ids=["compiled", "plain"])
def test_scans_that_give_the_lock_away_mix_nothing_up(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few slots, written again and again for other keys, while scans of them run."""
    monkeypatch.setattr(keys_module, "_LONG_SCAN", 0)
    monkeypatch.setattr(cache_module, "kernels", lambda: kernels)
    world = World(3000)
    chance = random.Random(0)
    for name in world.store:
        for _ in range(6):
            world.came[world.create(name, chance)] = -1
    cache = QueryCache[Document](3000, 40, TOLERANCE, vectors=world.read)
    assert cache._table.keys.finding[0] is kernels.nearest_unlocked
    settle(cache, run_threads(cache, world, 4000))
