"""The cached keys, read while they are written, on the edge of a bucket, and in long scans."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.query_cache import QueryCache
from ragcache_integrations.query_cache import cache as cache_module
from ragcache_integrations.query_cache.entries.table import KeyTable, hyperplanes
from ragcache_integrations.query_cache.kernels import compiled as _compiled
from ragcache_integrations.query_cache.kernels import plain as _plain
from ragcache_integrations.query_cache.settings import Settings
from tests.query_cache.reference import Vector, candidates

both = pytest.mark.parametrize("kernels", [_compiled, _plain], ids=["compiled", "plain"])


class TestTable:
    @both
    @pytest.mark.parametrize("multi_probe", [0, 4])
    def test_a_reader_with_the_arrays_of_before_does_not_look_into_new_buckets(
        self, kernels: ModuleType, multi_probe: int
    ) -> None:
        """A bucket may be added between taking the arrays and scanning them."""
        rng = np.random.default_rng(0)
        keys = rng.normal(size=(60, 8)).astype(np.float32)
        settings = Settings(
            8, 1, 0.0, "lsh", num_hyperplanes=4, bucket_capacity=3, multi_probe=multi_probe
        )
        table = KeyTable(settings, kernels)

        def put(key: Vector) -> None:
            table.put(table.place(key), key, 0, 1, 1, table.next_sequence())

        put(keys[0])
        find, packed, held, _ = table.finding
        slots = len(held[0][-1])
        for key in keys[1:]:
            put(key)
        assert table.capacity >= len(table.finding[2][0][-1]) > slots
        for query in keys:
            _, slot, _, _ = find(query, packed, 0, 1, 0, math.inf)
            assert -1 <= slot < slots

    @both
    @pytest.mark.parametrize("metric", ["l2", "cosine"])
    def test_a_query_on_a_hyperplane_finds_itself(
        self, kernels: ModuleType, metric: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its side is decided by rounding; it has to be decided in the same way each time."""
        monkeypatch.setattr(cache_module, "kernels", lambda: kernels)
        for dim in (5, 129, 384):
            planes = hyperplanes(4, dim, 0).astype(np.float64)
            cache = QueryCache[str](
                dim, 1, 0.0, "lsh", metric=metric, num_hyperplanes=4, bucket_capacity=200
            )
            queries = np.random.default_rng(dim).normal(size=(200, dim))
            normals = np.tile(planes, (50, 1))
            parts = (queries * normals).sum(axis=1) / (normals * normals).sum(axis=1)
            queries = (queries - parts[:, None] * normals).astype(np.float32)
            for number, query in enumerate(queries):
                cache.insert(query, candidates([str(number)]))
            hits = [cache.lookup(query, 1) for query in queries]
            assert [hit and hit.candidates[0].id for hit in hits] == [str(n) for n in range(200)]
            assert [one and one.distance for one in cache.lookup_batch(queries, 1)] == [0.0] * 200

    def test_long_scans_give_python_s_lock_away(self) -> None:
        rng = np.random.default_rng(0)
        keys = rng.normal(size=(4200, 1000)).astype(np.float32)
        cache = QueryCache[str](1000, 5000, math.inf)
        for number, key in enumerate(keys):
            cache.insert(key, candidates([str(number)]))
        assert cache._table.keys.finding[0] is _compiled.nearest_unlocked
        queries = rng.normal(size=(5, 1000)).astype(np.float32)
        for query in [*queries, keys[7], (keys[9] + keys[10]) / 2]:
            distances = np.sqrt(((keys.astype(np.float64) - query) ** 2).sum(axis=1))
            hit = cache.lookup(query, 1)
            assert hit is not None
            assert hit.candidates[0].id == str(distances.argmin())
            assert hit.distance == pytest.approx(distances.min(), rel=1e-12)
