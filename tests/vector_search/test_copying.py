"""Copies of staged indexes for other software."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.vector_search import Found, StagedIndex

from .worlds import CONNECTED, COUNT, MAKERS, METRICS, assert_same, cloud, names, staged


def found_in(copy: Any, ids: list[str], query: Any, k: int) -> Found:
    distances, rows = copy.search(query[None], k)
    here = rows[0] >= 0
    return Found(
        tuple(ids[row] for row in rows[0][here]),
        tuple(float(distance) for distance in distances[0][here]),
    )


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", MAKERS)
def test_a_copy_answers_alike(kind: str, metric: str) -> None:
    index = StagedIndex(MAKERS[kind](cloud(COUNT, 1), METRICS[metric]), names(COUNT))
    copy, ids = index.to_faiss()
    assert ids == list(index.ids)
    assert type(copy) is type(MAKERS[kind](cloud(COUNT, 1)))
    for query in cloud(20, 5):
        assert_same(found_in(copy, ids, query, 7), index.search(query, 7))


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("mapped", [False, True])
def test_a_copy_holds_no_deleted_documents(kind: str, mapped: bool) -> None:
    index = StagedIndex(CONNECTED[kind](cloud(COUNT, 1)), names(COUNT))
    if hasattr(index.index, "nprobe"):
        index.index.nprobe = index.index.nlist
    if mapped:
        index.vectors(["d7"])  # an IVF index has a direct map from now on
    index.delete(names(COUNT)[::3])
    index.update(["d1", "d400"], cloud(2, 8))
    index.add(["new"], cloud(1, 9))
    left = set(index.ids)
    copy, ids = index.to_faiss()
    assert copy.ntotal == len(ids) == len(left)
    assert set(ids) == left
    for query in [*cloud(20, 5), *cloud(1, 9)]:
        assert_same(found_in(copy, ids, query, 7), index.search(query, 7))


@pytest.mark.parametrize("kind", MAKERS)
def test_a_copy_shares_nothing(kind: str) -> None:
    index = staged(kind)
    query = cloud(1, 5)[0]
    before = index.search(query, 7)
    copy, ids = index.to_faiss()
    copy.add(cloud(3, 6))
    assert_same(index.search(query, 7), before)
    index.delete(list(before.ids))
    assert_same(found_in(copy, ids + ["?"] * 3, query, 7), before)
    again = StagedIndex(copy, [*ids, "x", "y", "z"])  # numbered as StagedIndex wants it
    assert_same(again.search(query, 7), before)


@pytest.mark.parametrize("kind", MAKERS)
def test_settings_are_copied(kind: str) -> None:
    index = staged(kind)
    name, value = ("nprobe", 5) if hasattr(index.index, "nprobe") else ("efSearch", 77)
    inner = index.index.hnsw if kind == "hnsw" else index.index
    if kind != "flat":
        setattr(inner, name, value)
    index.delete(["d3"])
    copy = StagedIndex(index.to_faiss()[0]).index
    if kind != "flat":
        assert getattr(copy.hnsw if kind == "hnsw" else copy, name) == value


@pytest.mark.parametrize("kind", MAKERS)
def test_an_emptied_index_is_copied(kind: str) -> None:
    index = staged(kind)
    index.delete(names(COUNT))
    copy, ids = index.to_faiss()
    assert (copy.ntotal, ids) == (0, [])


async def test_a_copy_is_of_one_moment() -> None:
    """Changes come in pairs, and no copy has half of one."""
    index = staged("ivf")
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            pair = [f"a{number}", f"b{number}"]
            index.add(pair, cloud(2, number))
            index.delete(pair)
            number += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(60):
            copy, ids = await index.ato_faiss()
            assert copy.ntotal == len(ids)
            assert len(ids) in {COUNT, COUNT + 2}
            rows = StagedIndex(copy, ids).vectors(ids[:3])
            np.testing.assert_array_equal(rows, cloud(COUNT, 1)[:3])
    finally:
        stop.set()
        thread.join()
