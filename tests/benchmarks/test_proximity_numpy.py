from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from parts.query_cache.proximity_numpy import ProximityFlat, ProximityLSH

# Whole numbers: distances are exact, and equal ones are frequent.
POINTS = st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(1, 3))
OPERATIONS = st.lists(st.tuples(st.booleans(), POINTS), max_size=40)


class Model:
    """The same with lists and sets: the least recently used first."""

    def __init__(self, capacity: int, tolerance: float) -> None:
        self.capacity, self.tolerance = capacity, tolerance
        self.entries: list[tuple[tuple[int, ...], int]] = []

    def lookup(self, q: tuple[int, ...]) -> set[int]:
        """The values that may be served: those of the nearest keys within the tolerance."""
        distances = [np.hypot.reduce(np.subtract(key, q)) for key, _ in self.entries]
        if not distances or min(distances) > self.tolerance:
            return set()
        near = min(distances)
        return {
            value
            for (_, value), distance in zip(self.entries, distances, strict=True)
            if abs(distance - near) < 1e-4
        }

    def touch(self, value: int) -> None:
        entry = next(entry for entry in self.entries if entry[1] == value)
        self.entries.remove(entry)
        self.entries.append(entry)

    def insert(self, q: tuple[int, ...], value: int) -> None:
        self.entries.append((q, value))
        del self.entries[: -self.capacity]


@given(OPERATIONS, st.integers(1, 6), st.sampled_from([0.0, 1.1, 2.1, 100.0]))
def test_flat_does_as_the_algorithm_says(
    operations: list[tuple[bool, tuple[int, ...]]], capacity: int, tolerance: float
) -> None:
    cache, model = ProximityFlat(3, capacity, tolerance), Model(capacity, tolerance)
    for number, (insert, point) in enumerate(operations):
        query = np.array(point, dtype=np.float32)
        if insert:
            cache.insert(query, number)
            model.insert(point, number)
        else:
            allowed, found = model.lookup(point), cache.lookup(query)
            assert found in allowed or (found is None and not allowed)
            if isinstance(found, int):
                model.touch(found)
        assert len(cache) == len(model.entries)


@given(OPERATIONS, st.integers(1, 4))
def test_lsh_is_a_flat_cache_for_each_bucket(
    operations: list[tuple[bool, tuple[int, ...]]], planes: int
) -> None:
    cache = ProximityLSH(3, planes, 2, 2.1)
    flat: dict[tuple[bool, ...], ProximityFlat] = {}
    normals = np.random.default_rng(0).standard_normal((planes, 3), dtype=np.float32)
    for number, (insert, point) in enumerate(operations):
        query = np.array(point, dtype=np.float32)
        bucket = flat.setdefault(tuple((normals @ query >= 0).tolist()), ProximityFlat(3, 2, 2.1))
        if insert:
            cache.insert(query, number)
            bucket.insert(query, number)
        else:
            assert cache.lookup(query) == bucket.lookup(query)
        assert len(cache) == sum(map(len, flat.values()))
