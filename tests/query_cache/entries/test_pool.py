from __future__ import annotations

import numpy as np

from ragcache_integrations.query_cache.entries.entry import VectorPool


def keys(*numbers: int) -> list[tuple[str, str]]:
    return [(str(number), "") for number in numbers]


def vectors(*numbers: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array([[number, -number] for number in numbers], dtype=np.float32)


def test_a_document_is_kept_as_long_as_it_is_referenced() -> None:
    pool = VectorPool(2)
    pool.acquire(keys(1, 2), vectors(1, 2))
    assert pool.missing(keys(3, 2)) == keys(3)
    held = pool.acquire(keys(2), vectors(), [])
    assert held is not None
    assert held.tolist() == pool.rows(keys(2)).tolist()
    assert pool.acquire(keys(2, 3), vectors(), []) is None
    assert pool.acquire(keys(2, 3, 4), vectors(4), keys(4)) is None
    assert pool.missing(keys(4)) == keys(4)
    pool.release(keys(1, 2))
    assert pool.missing(keys(1, 2)) == keys(1)
    pool.release(keys(2))
    assert len(pool) == 0


def test_the_first_vector_stands_while_it_is_needed() -> None:
    pool = VectorPool(2)
    pool.acquire(keys(1), vectors(1))
    pool.acquire(keys(1), vectors(9))
    assert pool.vectors[pool.rows(keys(1))].tolist() == [[1, -1]]


def test_rows_are_reused_and_the_array_grows() -> None:
    pool = VectorPool(2)
    many = range(100)
    pool.acquire(keys(*many), vectors(*many))
    pool.release(keys(*range(50)))
    pool.acquire(keys(*range(100, 150)), vectors(*range(100, 150)))
    assert set(pool.rows(keys(*range(50, 150)))) == set(range(100))
    assert pool.vectors[pool.rows(keys(149, 50, 75))].tolist() == vectors(149, 50, 75).tolist()


def test_contents_are_copied() -> None:
    pool = VectorPool(2)
    pool.acquire(keys(1, 2, 3), vectors(1, 2, 3))
    pool.release(keys(2))
    names, copied = pool.contents()
    assert (names, copied.tolist()) == (keys(1, 3), vectors(1, 3).tolist())
    pool.vectors[:] = 0
    assert copied.any()
