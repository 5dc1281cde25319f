"""What another thread does between two steps of a lookup, at the worst moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.query_cache import Candidate, Hit, QueryCache
from ragcache_integrations.query_cache.layout import SEQUENCE

from .reference import Vector


def ids(hit: Hit[str] | None) -> list[str] | None:
    return None if hit is None else [one.id for one in hit.candidates]


def overtaken(scan: Callable[..., Any], rewrite: Callable[[], None]) -> Callable[..., Any]:
    """Return a scan that, once, is as slow as one that gave Python's lock away may be."""
    left = [rewrite]

    def slow(query: Vector, *arguments: Any) -> Any:
        length, slot, sequence, square = scan(query, *arguments)
        if left:
            left.pop()()
            meta = arguments[7]
            sequence = meta[slot, SEQUENCE]
        return length, slot, sequence, square

    return slow


def test_a_slot_written_during_a_scan_is_not_taken_for_what_it_was() -> None:
    """Such a scan has read the old key, and may come back with the number of the new one."""
    cache = QueryCache[str](2, 1, 1.0)

    def rewrite() -> None:
        cache.insert([1, 0], [Candidate("theirs", "theirs")], "theirs")

    cache.insert([1, 0], [Candidate("mine", "mine")], "mine")
    scan, arrays = cache._table.keys.reading
    cache._table.keys.reading = overtaken(scan, rewrite), arrays
    assert cache.lookup([1, 0], 1, "mine") is None
    assert cache.stats().entries == 1


def test_a_slot_written_during_the_scan_of_a_batch_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = QueryCache[str](2, 1, 1.0)

    def rewrite() -> None:
        cache.insert([1, 0], [Candidate("theirs", "theirs")], "theirs")

    class Kernels:
        nearest_batch = staticmethod(overtaken(cache._kernels.nearest_batch, rewrite))

    cache.insert([1, 0], [Candidate("mine", "mine")], "mine")
    monkeypatch.setattr(cache, "_kernels", Kernels)
    assert cache.lookup_batch([[1.0, 0.0], [1.0, 0.5]], 1, "mine") == [None, None]


def test_documents_that_go_after_the_scan_do_not_make_an_answer_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = QueryCache[str](2, 10, 1.0)
    cache.insert([1, 0], [Candidate(one, one) for one in "abc"])
    right = cache._table.entry

    def entry(slot: int) -> Any:
        monkeypatch.undo()
        cache.documents_removed(["b"])
        return right(slot)

    monkeypatch.setattr(cache._table, "entry", entry)
    assert cache.lookup([1, 0], 3) is None
    assert ids(cache.lookup([1, 0], 2)) == ["a", "c"]


@pytest.mark.parametrize("guarantee", [None, 0.5])
def test_documents_that_go_while_they_are_ranked_are_not_served(
    guarantee: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their vectors' rows may hold others' by then."""
    cache = QueryCache[str](
        2, 10, 1.0, vectors=lambda ids: np.eye(2)[: len(ids)], exact_search=True,
        guarantee=guarantee,
    )  # fmt: skip
    cache.insert([1, 0], [Candidate(one, one) for one in "ab"], complete=True)
    right = cache._answers.one

    def one(*arguments: Any) -> Any:
        monkeypatch.undo()
        hit = right(*arguments)
        cache.documents_removed(["b"])
        return hit

    monkeypatch.setattr(cache._answers, "one", one)
    assert ids(cache.lookup([0.9, 0.1], 2)) == ["a"]


def test_an_entry_of_another_key_does_not_help_to_prove_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One found among the neighbours gives its slot to another key's before it is read."""
    vectors = {"a": [1.0, 0.0], "b": [0.0, 1.0], "theirs": [0.96, 0.28]}
    cache = QueryCache[str](
        2, 2, 2.0, vectors=lambda wanted: [vectors[one] for one in wanted],
        unit_vectors=True, exact_search=True, guarantee="exact",
    )  # fmt: skip
    cache.insert([0, 1], [Candidate("b", "b"), Candidate("a", "a")], "mine")
    cache.insert([1, 0], [Candidate("a", "a"), Candidate("b", "b")], "mine")
    keys = cache._table.keys
    right = keys.neighbours

    def neighbours(*arguments: Any) -> list[int]:
        monkeypatch.undo()
        slots = right(*arguments)
        cache.insert([0.6, 0.8], [Candidate("theirs", "theirs")], "theirs", complete=True)
        return slots

    monkeypatch.setattr(keys, "neighbours", neighbours)
    hit = cache.lookup([0.96, 0.28], 2, "mine")
    assert hit is None or ids(hit) == ["a", "b"]


def test_a_clear_between_key_and_scan_brings_no_other_key_s_entry() -> None:
    """Numbers of cache keys begin anew after a clear."""
    cache = QueryCache[str](2, 10, 1.0)
    cache.insert([1, 0], [Candidate("a", "a")], "first")
    table = cache._table

    class Partitions(dict[Any, int]):
        def get(self, key: Any, default: Any = None) -> Any:
            number = super().get(key, default)
            table.partitions = dict(self)
            cache.clear()
            cache.insert([1, 0], [Candidate("b", "b")], "second")
            return number

    table.partitions = Partitions(table.partitions)
    assert cache.lookup([1, 0], 1, "first") is None
    assert cache.lookup([1, 0], 1, "second") is not None
