"""What another thread does between two steps of a lookup, at the worst moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ragcache_integrations.query_cache import Candidate, Hit, QueryCache
from ragcache_integrations.query_cache.kernels.layout import SEQUENCE

from .reference import Vector


def ids(hit: Hit[str] | None) -> list[str] | None:
    return None if hit is None else [candidate.id for candidate in hit.candidates]


def overtake(cache: QueryCache[str], write: Callable[[], None]) -> None:
    """Let a lookup's scan be overtaken, once, as one that gave Python's lock away may be.

    It has read the old keys, and what it says last, the sequence number, is what is there by then.
    """
    keys = cache._table.keys
    before = find, packed, held, ranks = keys.finding
    meta = held[0][-1]

    def slow(*arguments: Any) -> Any:
        length, slot, _, *found = find(*arguments)
        keys.finding = before
        write()
        return length, slot, int(meta[slot, SEQUENCE]), *found

    keys.finding = slow, packed, held, ranks


def test_a_slot_written_during_a_scan_is_not_taken_for_what_it_was() -> None:
    cache = QueryCache[str](2, 1, 1.0)
    cache.insert([1, 0], [Candidate("mine", "mine")], "mine")
    overtake(cache, lambda: theirs(cache))
    assert cache.lookup([1, 0], 1, "mine") is None
    assert cache.stats().entries == 1


def theirs(cache: QueryCache[str]) -> None:
    cache.insert([1, 0], [Candidate("theirs", "theirs")], "theirs")


def test_a_slot_written_during_the_scan_of_a_batch_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = QueryCache[str](2, 1, 1.0)
    cache.insert([1, 0], [Candidate("mine", "mine")], "mine")
    right, meta = cache._kernels.nearest_batch, cache._table.keys.finding[2][0][-1]

    class Kernels:
        @staticmethod
        def nearest_batch(queries: Vector, *arguments: Any) -> Any:
            lengths, slots, _, squares = right(queries, *arguments)
            theirs(cache)
            return lengths, slots, meta[slots, SEQUENCE], squares

    monkeypatch.setattr(cache, "_kernels", Kernels)
    assert cache.lookup_batch([[1.0, 0.0], [1.0, 0.5]], 1, "mine") == [None, None]


def test_documents_that_go_after_the_scan_do_not_make_an_answer_short() -> None:
    cache = QueryCache[str](2, 10, 1.0)
    cache.insert([1, 0], [Candidate(one, one) for one in "abc"])
    overtake(cache, lambda: cache.documents_removed(["b"]))
    assert cache.lookup([1, 0], 3) is None
    assert ids(cache.lookup([1, 0], 2)) == ["a", "c"]


def test_documents_that_go_after_they_were_ranked_with_the_scan_are_not_served() -> None:
    """What was ranked are the places of documents among those that there were."""
    vectors = dict(zip("abc", np.eye(3), strict=True))
    cache = QueryCache[str](3, 10, 1.0, vectors=lambda wanted: [vectors[one] for one in wanted])
    cache.insert([1, 0, 0], [Candidate(one, one) for one in "abc"])
    overtake(cache, lambda: cache.documents_removed(["b"]))
    assert ids(cache.lookup([0.9, 0.1, 0.2], 2)) == ["a", "c"]


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
    right = cache._decisions.answer_from

    def one(*arguments: Any) -> Any:
        monkeypatch.undo()
        hit = right(*arguments)
        cache.documents_removed(["b"])
        return hit

    monkeypatch.setattr(cache._decisions, "answer_from", one)
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
