"""Compiled and plain kernels find what a search in 64-bit floats finds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ragcache_integrations.query_cache.entries.table import KeyTable, hyperplanes
from ragcache_integrations.query_cache.kernels import compiled as _compiled
from ragcache_integrations.query_cache.kernels import plain as _plain
from ragcache_integrations.query_cache.settings import Settings
from ragcache_integrations.query_cache.types import Metric
from tests.query_cache.reference import Vector
from tests.support.sizes import examples

KERNELS = [_compiled, _plain]
# Below, at and above the first 128 dimensions, which lie apart from the others.
DIMS = st.sampled_from([1, 2, 7, 127, 128, 129, 200])
# Powers of two keep lattice points exact, and with them ties, in every order of summation.
SCALES = st.sampled_from([1.0, 2.0**-140, 2.0**-70, 2.0**63, 2.0**127])
ROUGH = st.sampled_from([1.0, 1e-40, 1e-19, 1e19, 1e38])
SEEDS = st.integers(0, 2**32 - 1)
PLANES, PER_BUCKET = 3, 4
SLACK = 1e-12

both = pytest.mark.parametrize("kernels", KERNELS, ids=["compiled", "plain"])


@dataclass
class Key:
    vector: Vector
    partition: int
    serves: int
    expires: int
    sequence: int

    def fits(self, partition: int, k: int, now: int) -> bool:
        return self.partition == partition and self.serves >= k and self.expires > now


@dataclass
class World:
    """A table of keys, and what is in it.

    ``exact``: sums of squares are, in whatever order.
    """

    table: KeyTable
    keys: dict[int, Key]
    queries: list[Vector]
    exact: bool
    unit: bool

    def squares(self, query: Vector) -> dict[int, float]:
        prepared = self.table.prepare(query).astype(np.float64)
        return {
            slot: float(((key.vector.astype(np.float64) - prepared) ** 2).sum())
            for slot, key in self.keys.items()
        }


def lattice(rng: np.random.Generator, count: int, dim: int) -> NDArray[np.float64]:
    """Points of -1, 0 and 1, most of them sparse, none of them zero."""
    points = rng.integers(-1, 2, (count, dim)) * (rng.random((count, 1)) < rng.random((1, dim)))
    points[~points.any(axis=1), -1] = 1
    return np.asarray(points, dtype=np.float64)


@st.composite
def worlds(draw: st.DrawFn, *, kernels: ModuleType, lsh: bool) -> World:
    rng = np.random.default_rng(draw(SEEDS))
    dim, unit = draw(DIMS), draw(st.booleans())
    on_lattice = draw(st.booleans())
    points = lattice(rng, 8, dim) if on_lattice else rng.uniform(-3, 3, (8, dim))
    points *= draw(SCALES if on_lattice else ROUGH)
    vectors = points.astype(np.float32)
    settings = Settings(
        dim,
        16,
        0.0,
        "lsh" if lsh else "flat",
        metric="cosine" if unit else "l2",
        num_hyperplanes=PLANES,
        bucket_capacity=PER_BUCKET,
        seed=draw(st.integers(0, 50)),
    )
    table = KeyTable(settings, kernels)
    keys: dict[int, Key] = {}
    for _ in range(draw(st.integers(0, 24))):
        key = Key(
            table.prepare(vectors[rng.integers(5)]),
            int(rng.integers(2)),
            int(rng.integers(1, 4)),
            int(rng.integers(1, 4)),
            table.next_sequence(),
        )
        slot = table.place(key.vector)
        table.put(slot, key.vector, key.partition, key.serves, key.expires, key.sequence)
        keys[slot] = key
        if rng.random() < 0.2:
            gone = int(rng.choice(sorted(keys)))
            table.free(gone)
            del keys[gone]
    return World(table, keys, list(vectors), on_lattice and not unit, unit)


def limits(world: World, query: Vector, rng: np.random.Generator) -> float:
    """Choose a limit; often one that a key lies on exactly, or just beyond."""
    distances = [math.sqrt(square) for square in world.squares(query).values()]
    one = float(rng.choice(distances)) if distances else 1.0
    return float(rng.choice([0.0, math.inf, one, np.nextafter(one, 0), one / 2, one * 2]))


class Draw:
    """Draws seeds; carries what was drawn before."""

    def __init__(self, data: st.DataObject, probes: int) -> None:
        self.data, self.probes = data, probes

    def __call__(self, strategy: st.SearchStrategy[int]) -> int:
        return self.data.draw(strategy)


def check_search(
    world: World, kernels: ModuleType, query: Vector, slots: set[int], draw: Draw
) -> None:
    """Compare every search with the best of some slots in 64-bit floats."""
    rng = np.random.default_rng(draw(SEEDS))
    partition, k, now = int(rng.integers(3)), int(rng.integers(1, 5)), int(rng.integers(4))
    limit, probes = limits(world, query, rng), draw.probes
    squares = world.squares(query)
    arrays, *_ = world.table.finding[2]
    nothing = np.empty((0, len(query)), np.float32), np.zeros((len(arrays[-1]), 2), np.int64), 0
    arguments = kernels.pack(*arrays, probes, *nothing), partition, k, now, limit
    fitting = [one for one in slots if world.keys[one].fits(partition, k, now)]
    order = sorted(fitting, key=lambda one: (squares[one], -world.keys[one].sequence))
    within = [one for one in order if math.sqrt(squares[one]) <= limit]

    count = int(rng.integers(1, 6))
    found, found_squares = kernels.neighbours(query, *arguments, count)
    if world.exact:
        assert found.tolist() == within[:count]
        assert found_squares.tolist() == [squares[one] for one in within[:count]]
    else:
        surely = sum(math.sqrt(squares[one]) <= limit * (1 - SLACK) for one in fitting)
        maybe = sum(math.sqrt(squares[one]) <= limit * (1 + SLACK) for one in fitting)
        assert min(surely, count) <= len(found) <= min(maybe, count)
        assert len(set(found.tolist())) == len(found)
        assert set(found.tolist()) <= set(fitting)
        assert found_squares.tolist() == pytest.approx([squares[o] for o in found], rel=SLACK)
        assert found_squares.tolist() == pytest.approx(
            [squares[one] for one in order[: len(found)]], rel=SLACK
        )

    for search in (kernels.nearest, kernels.nearest_unlocked):
        length, slot, sequence, square = search(query, *arguments)
        wide = query.astype(np.float64)
        assert length == pytest.approx(float((wide * wide).sum()), rel=1e-5)  # of 32-bit floats
        if len(found):
            assert (slot, square) == (found[0], found_squares[0])
            assert sequence == world.keys[slot].sequence
        else:
            assert (slot, sequence) == (-1, -1)


hunt = examples(250, suppress_health_check=[HealthCheck.function_scoped_fixture])


class TestSearch:
    @both
    @hunt
    @given(data=st.data())
    def test_a_scan_finds_the_nearest_keys_the_newest_of_equals(
        self, kernels: ModuleType, data: st.DataObject
    ) -> None:
        world = data.draw(worlds(kernels=kernels, lsh=False))
        for query in world.queries:
            check_search(world, kernels, query, set(world.keys), Draw(data, 0))

    @both
    @hunt
    @given(data=st.data())
    def test_buckets_are_searched_the_least_certain_bits_first(
        self, kernels: ModuleType, data: st.DataObject
    ) -> None:
        world = data.draw(worlds(kernels=kernels, lsh=True))
        probes = data.draw(st.integers(0, PLANES))
        (_, planes, table, *_), *_ = world.table.finding[2]
        for query in world.queries:
            prepared = world.table.prepare(query).astype(np.float64)
            products = planes.astype(np.float64) @ prepared
            certainty = np.sort(abs(products)) / np.linalg.norm(prepared)
            # In 32-bit floats other products' signs, or order, depend on the order of summation.
            clear = certainty[0] > 1e-3 and (np.diff(certainty) > 1e-3).all()
            assume(clear and 1e-15 < np.linalg.norm(prepared) < 1e30)
            code = int((products >= 0) @ (1 << np.arange(PLANES)))
            codes = [code, *(code ^ (1 << int(bit)) for bit in abs(products).argsort()[:probes])]
            rows = {int(table[one]) for one in codes}
            slots = {slot for slot in world.keys if slot // PER_BUCKET in rows}
            check_search(world, kernels, query, slots, Draw(data, probes))

    @both
    @hunt
    @given(data=st.data())
    def test_a_batch_finds_what_one_after_the_other_finds(
        self, kernels: ModuleType, data: st.DataObject
    ) -> None:
        world = data.draw(worlds(kernels=kernels, lsh=data.draw(st.booleans())))
        queries = np.array(world.queries[: data.draw(st.integers(0, 8))], dtype=np.float32)
        queries = queries.reshape(-1, len(world.queries[0]))
        _, packed, _held, _ = world.table.finding
        arguments = packed, 0, 1, 0, data.draw(st.sampled_from([0.0, 1.0, math.inf]))
        found = [column.tolist() for column in kernels.nearest_batch(queries, *arguments)]
        alone = [kernels.nearest(query, *arguments) for query in queries]
        if any(row[1] >= 0 for row in alone):
            assert list(zip(*found, strict=True)) == alone
        else:
            assert found[1] == found[2] == [-1] * len(queries)

    @both
    def test_many_keys_that_differ_in_the_last_bit(self, kernels: ModuleType) -> None:
        """More than a block of them, which a sum of 32 bits cannot tell apart."""
        rng = np.random.default_rng(0)
        dim, count = 300, 3000
        table = KeyTable(Settings(dim, count, 0.0), kernels)
        centre = rng.normal(size=dim).astype(np.float32)
        keys = np.tile(centre, (count, 1))
        changed = rng.integers(dim, size=(count, 3))
        for key, places in zip(keys, changed, strict=True):
            key[places] = np.nextafter(key[places], rng.choice([-np.inf, np.inf]))
        for key in keys:
            table.put(table.place(key), key, 0, 1, 1, table.next_sequence())
        _, packed, _held, _ = table.finding
        for query in (keys[17], centre, centre + np.float32(0.5)):
            squares = ((keys.astype(np.float64) - query) ** 2).sum(axis=1)
            best = np.flatnonzero(squares <= squares.min() * (1 + SLACK))
            _, slot, _, square = kernels.nearest(query, packed, 0, 1, 0, math.inf)
            assert slot in best
            assert square == pytest.approx(squares.min(), rel=SLACK)


class TestRank:
    @both
    @hunt
    @given(data=st.data())
    def test_documents_are_sorted_and_equal_ones_keep_their_order(
        self, kernels: ModuleType, data: st.DataObject
    ) -> None:
        rng = np.random.default_rng(data.draw(SEEDS))
        dim, inner, unit = data.draw(DIMS), data.draw(st.booleans()), data.draw(st.booleans())
        exact = data.draw(st.booleans())
        points = lattice(rng, 12, dim) if exact else rng.uniform(-3, 3, (12, dim))
        vectors = (points * data.draw(SCALES if exact else ROUGH)).astype(np.float32)
        query = vectors[0]
        rows = rng.integers(12, size=data.draw(st.integers(0, 12)))
        order, values = kernels.rank(query, unit, vectors, rows, inner)
        wide = kernels.prepare(query, unit)[1].astype(np.float64)
        documents = vectors[rows].astype(np.float64)
        if inner:
            expected = -(documents * wide).sum(axis=1)
            off = SLACK * np.sqrt((documents**2).sum(axis=1).max(initial=0) * (wide**2).sum())
        else:
            expected = np.sqrt(((documents - wide) ** 2).sum(axis=1))
            off = 0.0
        assert sorted(order.tolist()) == list(range(len(rows)))
        assert values.tolist() == pytest.approx(expected[order].tolist(), rel=SLACK, abs=off)
        assert (np.diff(values) >= 0).all()
        if exact and not unit:
            assert order.tolist() == np.argsort(expected, kind="stable").tolist()
            assert values.tolist() == expected[order].tolist()

    @hunt
    @given(data=st.data())
    def test_what_is_matched_and_ranked_at_once_is_the_same(self, data: st.DataObject) -> None:
        rng = np.random.default_rng(data.draw(SEEDS))
        dim, metric = data.draw(DIMS), data.draw(st.sampled_from(get_args(Metric)))
        inner, unit = metric == "ip", metric == "cosine"
        vectors = rng.uniform(-3, 3, (12, dim)).astype(np.float32)
        rows = rng.integers(12, size=data.draw(st.integers(0, 12)))
        settings = Settings(dim, 4, 0.0, metric=metric, vectors=lambda _: vectors)
        table = KeyTable(settings, _compiled)
        key, query = table.prepare(vectors[0]), vectors[data.draw(st.integers(0, 1))]
        slot = table.place(key)
        known = data.draw(st.sampled_from([6, 12]))  # 6: as it was before the array grew
        table.show(vectors[:known].copy())
        table.list_candidates(slot, rows)
        table.put(slot, key, 0, len(vectors), 1, table.next_sequence())
        find, packed, held, ranks = table.finding
        assert ranks
        k = data.draw(st.integers(1, 12))
        ranked = np.full(2 * k, math.nan)
        *match, count = find(query, packed, 0, k, 0, math.inf, ranked)
        assert tuple(match) == _compiled.nearest(query, packed, 0, k, 0, math.inf)
        if not match[-1] or not len(rows) or rows.max() >= known:
            assert count == -1
            assert np.isnan(ranked).all()
        else:
            order, values = _compiled.rank(query, unit, vectors, rows, inner)
            best = min(k, len(rows))
            assert count == len(rows)
            assert ranked[: 2 * best].tolist() == [*values[:best], *order[:best]]
        del held


class TestPrepare:
    @hunt
    @given(seed=SEEDS, dim=DIMS, scale=ROUGH, unit=st.booleans())
    def test_both_scale_to_the_same_unit_vector(
        self, seed: int, dim: int, scale: float, unit: bool
    ) -> None:
        query = (np.random.default_rng(seed).uniform(-3, 3, dim) * scale).astype(np.float32)
        (length, one), (other_length, other) = (kernels.prepare(query, unit) for kernels in KERNELS)
        assert length == pytest.approx(other_length, rel=1e-5)
        np.testing.assert_array_max_ulp(one, other, 1)
        if unit and length:
            assert np.linalg.norm(one.astype(np.float64)) == pytest.approx(1, abs=1e-6)
        else:
            assert one.tolist() == query.tolist()

    @both
    @pytest.mark.parametrize("odd", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
    def test_what_has_no_direction_is_left_alone(
        self, kernels: ModuleType, odd: list[float]
    ) -> None:
        query = np.array(odd, dtype=np.float32)
        length, prepared = kernels.prepare(query, unit=True)
        assert not 0 < length < math.inf
        np.testing.assert_array_equal(prepared, query)
        table = KeyTable(Settings(2, 4, 0.0, metric="cosine"), kernels)
        table.put(table.place(query), query, 0, 1, 1, table.next_sequence())
        _, packed, _held, _ = table.finding
        assert kernels.nearest(query, packed, 0, 1, 0, math.inf)[1] == -1

    @hunt
    @given(seed=SEEDS, dim=DIMS, scale=st.sampled_from([1e-15, 1.0, 1e15]))
    def test_both_see_a_query_on_the_same_side_of_a_hyperplane(
        self, seed: int, dim: int, scale: float
    ) -> None:
        rng = np.random.default_rng(seed)
        query = (rng.normal(size=dim) * scale).astype(np.float32)
        planes = hyperplanes(8, dim, seed)
        exact = planes.astype(np.float64) @ query.astype(np.float64)
        off = (abs(planes.astype(np.float64)) @ abs(query.astype(np.float64))) * dim * 2.0**-23
        for kernels in KERNELS:
            assert (abs(kernels.signs(query, planes) - exact) <= off).all()


class TestLeastLength:
    """``exceeds`` may only say so where it is so."""

    @both
    @hunt
    @given(seed=SEEDS, count=st.integers(1, 8), dim=st.integers(1, 8), room=st.floats(0, 2))
    def test_a_vector_that_does_what_is_wanted_refutes_it(
        self, kernels: ModuleType, seed: int, count: int, dim: int, room: float
    ) -> None:
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(count, dim))
        vector = rng.normal(size=dim)
        wanted = rows @ vector - room * rng.random(count)
        needed = float(vector @ vector) * (1 + 1e-9)
        assert not kernels.exceeds(rows @ rows.T, wanted, needed, 200)

    @both
    @hunt
    @given(seed=SEEDS, count=st.integers(1, 6), short=st.floats(0.01, 0.99))
    def test_a_hyperplane_further_away_proves_it(
        self, kernels: ModuleType, seed: int, count: int, short: float
    ) -> None:
        """Right-angled rows, whose least vector is known."""
        rng = np.random.default_rng(seed)
        rows = np.linalg.qr(rng.normal(size=(8, 8)))[0][:count]
        wanted = rng.normal(size=count)
        least = float((np.maximum(wanted, 0) ** 2).sum())
        assert kernels.exceeds(rows @ rows.T, wanted, least * short, 200) == (least > 0)
        assert not kernels.exceeds(rows @ rows.T, wanted, least * (1 + 1e-9), 200)

    @hunt
    @given(seed=SEEDS, count=st.integers(1, 10), needed=st.floats(0.5, 2))
    def test_both_agree(self, seed: int, count: int, needed: float) -> None:
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(count, 12))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        wanted = rng.uniform(-1, 1, count)
        low, high = needed * (1 - 1e-9), needed * (1 + 1e-9)
        one, other = (
            [bool(kernels.exceeds(rows @ rows.T, wanted, bar, 50)) for bar in (low, high)]
            for kernels in KERNELS
        )
        assert one == other or one[0] != one[1] or other[0] != other[1]
