"""What the kernels for graphs compare and keep vectors by."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")

from ragcache_integrations.vector_search import _graph

FLATS = st.floats(width=32, allow_nan=False)
LABELS = st.integers(0, 2**31 - 2)
FLIPS = st.sampled_from([0, int(_graph._LOWER)])


def key(value: float) -> int:
    return int(_graph._key(np.float32(value)))


@given(FLATS, FLATS)
def test_keys_go_up_with_distances(one: float, other: float) -> None:
    assert (key(one) < key(other)) == (one < other)
    assert (key(one) == key(other)) == (one == other)  # zeros of both signs, too
    assert _graph._distance(key(one)) == one


def test_what_is_no_number_is_infinitely_far() -> None:
    for sign in (1, -1):
        assert key(math.copysign(math.nan, sign)) == key(math.inf)


@given(FLATS, LABELS, FLATS, LABELS, FLIPS)
def test_pairs_are_in_the_order_of_distances_then_labels(
    one: float, label: int, other: float, other_label: int, flip: int
) -> None:
    pair = _graph._pair(key(one), label, flip)
    assert (_graph._label(pair, flip), _graph._distance(pair >> 32)) == (label, one)
    assert _graph._label(_graph._pair(key(one), -1, flip), flip) == -1
    before = other_label < label if flip else label < other_label
    less = one < other or (one == other and before)
    assert (pair < _graph._pair(key(other), other_label, flip)) == less


@given(st.lists(st.tuples(FLATS, LABELS), min_size=1, max_size=80), st.integers(1, 20))
def test_results_are_the_nearest_in_order(seen: list[tuple[float, int]], wanted: int) -> None:
    pairs = [int(_graph._pair(key(one), label, 0)) for one, label in seen]
    best = np.full(wanted, 2**63 - 1, np.int64)
    for pair in pairs:
        if pair < best[-1]:
            _graph._insert(best, pair)
    assert best.tolist() == (sorted(pairs) + [2**63 - 1] * wanted)[:wanted]


@given(st.data())
def test_a_heap_gives_the_farthest_and_the_nearest_open(data: st.DataObject) -> None:
    flip = data.draw(FLIPS)
    heap, count = np.empty(41, np.int64), 0
    held: list[int] = []
    for _ in range(data.draw(st.integers(1, 120))):
        if count < 40 and (not count or data.draw(st.booleans())):
            distance = data.draw(st.sampled_from([0.0, 0.5, 2.0, 3.0]))
            label = data.draw(st.integers(-1, 9))
            pair = int(_graph._pair(key(distance), label, flip))
            _graph._push(heap, count, pair)
            held.append(pair)
            count += 1
        else:
            assert heap[0] == max(held)
            _graph._pop(heap, count)
            held.remove(max(held))
            count -= 1
        assert sorted(heap[:count].tolist()) == sorted(held)
        still = [n for n in range(count) if _graph._label(heap[n], flip) >= 0]
        if still:
            least = min(heap[n] >> 32 for n in still)
            last = max(n for n in still if heap[n] >> 32 == least)
            assert _graph._nearest_open(heap, count, flip) == last
