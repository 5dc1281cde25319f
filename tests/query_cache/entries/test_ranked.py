"""Answers of searches that do not rank by distance alone end with any change of the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ragcache_integrations.query_cache import Candidate, QueryCache

Q = np.array([1.0, 0.0])


def candidates(*ids: str) -> list[Candidate[str]]:
    return [Candidate(name, f"text of {name}", name) for name in ids]


def cache(index: str = "flat", *, vectors: bool = True) -> QueryCache[str]:
    def read(ids: Sequence[str], /) -> NDArray[np.float64]:
        return np.array([[1.0, float(number)] for number in range(len(ids))])

    kind: Any = index
    source = read if vectors else None
    return QueryCache(2, 8, 0.5, kind, bucket_capacity=8, num_hyperplanes=2, vectors=source)


@pytest.mark.parametrize("index", ["flat", "lsh"])
@pytest.mark.parametrize("vectors", [False, True])
class TestUnranked:
    def test_it_is_served_as_it_is(self, index: str, vectors: bool) -> None:
        own = cache(index, vectors=vectors)
        own.insert(Q, candidates("b", "a"), ranked=False)
        hit = own.lookup(Q, 2)
        assert hit is not None
        assert [candidate.id for candidate in hit.candidates] == ["b", "a"]
        assert not hit.reranked
        assert hit.recall_bound is None

    @pytest.mark.parametrize(
        "change", ["documents_removed", "documents_added", "documents_updated"]
    )
    def test_a_change_of_any_document_ends_it(self, index: str, vectors: bool, change: str) -> None:
        own = cache(index, vectors=vectors)
        own.insert(Q, candidates("b", "a"), ranked=False)
        own.insert(-Q, candidates("c", "d"), "ranked")
        getattr(own, change)(["somebody else"])
        assert own.lookup(Q, 2) is None
        if change == "documents_removed":
            assert own.lookup(-Q, 2, "ranked") is not None
            assert own.stats().invalidated == 1

    def test_a_ranked_answer_in_its_place_stays(self, index: str, vectors: bool) -> None:
        own = cache(index, vectors=vectors)
        own.insert(Q, candidates("b", "a"), ranked=False)
        own.insert(Q, candidates("a", "b"))
        own.documents_removed(["somebody else"])
        assert own.lookup(Q, 2) is not None

    def test_out_of_a_file_it_is_still_so(self, index: str, vectors: bool, tmp_path: Path) -> None:
        own = cache(index, vectors=vectors)
        own.insert(Q, candidates("b", "a"), ranked=False)
        own.save(tmp_path / "cache")
        assert own.load(tmp_path / "cache") == 1
        assert own.lookup(Q, 2) is not None
        own.documents_removed(["somebody else"])
        assert own.lookup(Q, 2) is None
