from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from ragcache_integrations.query_cache import Metric
from ragcache_integrations.query_cache.matching import KeyTable, prepare, rank

Vectors = NDArray[np.float32]

DIM = 8
SCALES = st.sampled_from([1e-38, 1e-20, 1e-3, 1.0, 1e3, 1e18, 1e30, 3e38])
UNITS = st.floats(-1, 1, width=32)


@st.composite
def scaled_keys(draw: st.DrawFn) -> Vectors:
    """Keys of very different lengths, some of them close to one another."""
    count = draw(st.integers(1, 12))
    keys = draw(hnp.arrays(np.float32, (count, DIM), elements=UNITS))
    scales = np.array(draw(st.lists(SCALES, min_size=count, max_size=count)))
    return np.asarray(keys * scales[:, None], dtype=np.float32)


def direct(keys: Vectors, query: Vectors) -> NDArray[np.float64]:
    differences = keys.astype(np.float64) - query.astype(np.float64)
    return np.asarray(np.sqrt((differences * differences).sum(axis=1)))


@settings(max_examples=300, deadline=None)
@given(scaled_keys(), st.data())
def test_the_shortlist_never_loses_the_nearest(keys: Vectors, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        query = keys[data.draw(st.integers(0, len(keys) - 1))]
    else:
        drawn = data.draw(hnp.arrays(np.float32, DIM, elements=UNITS))
        query = np.asarray(drawn * data.draw(SCALES), dtype=np.float32)
    table = KeyTable(len(keys), DIM)
    for slot, key in enumerate(keys):
        table.put(slot, key, partition=0, serves=1)
    distances = direct(keys, query)
    nearest = distances.min()
    newest = int(np.flatnonzero(distances == nearest)[-1])
    assert table.nearest(query, 0, 1, math.inf) == (newest, nearest)
    assert table.nearest(query, 0, 1, float(nearest)) == (newest, nearest)
    if nearest > 0:
        assert table.nearest(query, 0, 1, math.nextafter(nearest, 0)) is None


def test_blocks_of_a_long_shortlist_are_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragcache_integrations.query_cache.matching._BLOCK", 3)
    table = KeyTable(10, 2)
    for slot, x in enumerate([5, 1, 4, 1, 3, 1, 2, 1, 9, 7]):
        # Products of such numbers overflow in 32 bits: every key stays on the shortlist.
        table.put(slot, np.array([3e38, x], dtype=np.float32), partition=0, serves=1)
    query = np.array([3e38, 0], dtype=np.float32)
    assert table.nearest(query, 0, 1, math.inf) == (7, 1.0)


def test_only_eligible_keys_are_matched() -> None:
    table = KeyTable(4, 1)
    table.put(0, np.array([1.0], dtype=np.float32), partition=0, serves=1)
    table.put(1, np.array([2.0], dtype=np.float32), partition=0, serves=5)
    table.put(2, np.array([1.0], dtype=np.float32), partition=1, serves=5)
    table.put(3, np.array([1.0], dtype=np.float32), partition=0, serves=5)
    table.free(3)
    query = np.array([1.0], dtype=np.float32)
    assert table.nearest(query, 0, 1, 9.0) == (0, 0.0)
    assert table.nearest(query, 0, 3, 9.0) == (1, 1.0)
    assert table.nearest(query, 1, 3, 9.0) == (2, 0.0)
    assert table.nearest(query, 2, 1, 9.0) is None
    assert table.nearest(query, 0, 6, 9.0) is None


def test_prepare_makes_unit_vectors_for_cosine_only() -> None:
    vectors = np.array([[3e30, 4e30], [0, 0], [1e-30, 0]], dtype=np.float32)
    assert prepare(vectors, "l2") is vectors
    assert prepare(vectors, "ip") is vectors
    prepared = prepare(vectors, "cosine").ravel().tolist()
    assert prepared == pytest.approx([0.6, 0.8, 0, 0, 1, 0], abs=2**-24)


def test_the_cosine_distance_is_the_chord() -> None:
    one, other = np.array([1.0, 0.0], np.float32), np.array([5.0, 5.0], np.float32)
    cosine = math.sqrt(0.5)
    _, scores = rank(prepare(other[None], "cosine"), prepare(one, "cosine"), "cosine")
    assert scores == [pytest.approx(math.sqrt(2 - 2 * cosine), abs=2**-23)]


@pytest.mark.parametrize(
    ("metric", "order", "scores"),
    [("l2", [2, 0, 1], [0.0, 2.0, 2.0]), ("ip", [1, 2, 0], [8.0, 4.0, 0.0])],
)
def test_rank_puts_the_best_first_and_keeps_the_order_of_equal_ones(
    metric: Metric, order: list[int], scores: list[float]
) -> None:
    vectors = np.array([[0, 0], [4, 0], [2, 0]], dtype=np.float32)
    assert rank(vectors, np.array([2, 0], dtype=np.float32), metric) == (order, scores)
