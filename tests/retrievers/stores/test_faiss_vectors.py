"""Reading vectors out of real FAISS indexes."""

from __future__ import annotations

from typing import Any, ClassVar

import faiss
import numpy as np
import pytest

from ragcache_integrations.retrievers.stores.faiss_vectors import (
    FaissVectors,
    faiss_metric,
    faiss_score,
    is_faiss_index,
)

VECTORS = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)


def flat(count: int = 200) -> Any:
    index = faiss.IndexFlatL2(8)
    index.add(VECTORS[:count])
    return index


def names(*numbers: int) -> list[str]:
    return [f"doc {number}" for number in numbers]


def test_vectors_come_in_the_order_of_the_ids() -> None:
    mapping = dict(enumerate(names(*range(200))))
    read = FaissVectors(flat(), lambda: mapping)
    assert np.array_equal(read(names(7, 0, 199)), VECTORS[[7, 0, 199]])
    assert read([]).shape == (0, 8)


def test_positions_written_as_strings() -> None:
    mapping = {str(number): f"doc {number}" for number in range(200)}
    assert np.array_equal(FaissVectors(flat(), lambda: mapping)(names(7)), VECTORS[[7]])


def test_additions_are_followed() -> None:
    index, mapping = flat(2), dict(enumerate(names(0, 1)))
    read = FaissVectors(index, lambda: mapping)
    assert np.array_equal(read(names(1)), VECTORS[[1]])
    with pytest.raises(LookupError, match="'doc 2' has no vector"):
        read(names(2))
    index.add(VECTORS[2:3])
    mapping[2] = "doc 2"
    assert np.array_equal(read(names(2, 0)), VECTORS[[2, 0]])


def test_deletions_that_move_the_rest_are_followed() -> None:
    index = flat(5)
    mapping = dict(enumerate(names(0, 1, 2, 3, 4)))
    read = FaissVectors(index, lambda: mapping)
    assert np.array_equal(read(names(4, 0)), VECTORS[[4, 0]])
    index.remove_ids(np.array([0, 2], dtype=np.int64))
    mapping = dict(enumerate(names(1, 3, 4)))
    assert np.array_equal(read(names(4, 1)), VECTORS[[4, 1]])
    # In place and with the same number again: only the mapping itself tells.
    index.remove_ids(np.array([0], dtype=np.int64))
    index.add(VECTORS[9:10])
    mapping.clear()
    mapping.update(enumerate(names(3, 4, 9)))
    assert np.array_equal(read(names(9, 3)), VECTORS[[9, 3]])
    with pytest.raises(LookupError, match="'doc 1' has no vector"):
        read(names(1))


def test_an_id_with_several_vectors_has_none_of_its_own() -> None:
    mapping = dict(enumerate(names(0, 1, 0)))
    read = FaissVectors(flat(3), lambda: mapping)
    assert read.readable()
    assert np.array_equal(read(names(1)), VECTORS[[1]])
    with pytest.raises(LookupError, match="'doc 0' has several vectors"):
        read(names(0))


def test_an_index_that_cannot_reconstruct_says_so() -> None:
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(8), 8, 2)
    index.train(VECTORS)
    index.add(VECTORS)
    mapping = dict(enumerate(names(*range(200))))
    read = FaissVectors(index, lambda: mapping)
    assert not read.readable()
    with pytest.raises(LookupError, match="cannot reconstruct"):
        read(names(1))
    index.make_direct_map()
    assert read.readable()
    assert np.array_equal(read(names(1)), VECTORS[[1]])


def test_an_empty_index_is_believed_to_be_readable() -> None:
    assert FaissVectors(flat(0), dict).readable()


def test_metrics_and_scores_are_those_of_faiss() -> None:
    query = VECTORS[:1] + 0.1
    for index, metric in ((faiss.IndexFlatL2(8), "l2"), (faiss.IndexFlatIP(8), "ip")):
        index.add(VECTORS)
        assert is_faiss_index(index)
        assert faiss_metric(index) == metric
        scores, found = index.search(query, 1)
        vector = VECTORS[found[0, 0]].astype(np.float64)
        own = float(np.linalg.norm(vector - query) if metric == "l2" else vector @ query[0])
        assert faiss_score(own, faiss_metric(index) or "l2") == pytest.approx(
            scores[0, 0], abs=1e-5
        )
    assert faiss_metric(faiss.IndexFlat(8, faiss.METRIC_L1)) is None
    assert not is_faiss_index(None)
    assert not is_faiss_index(object())


class Moving(faiss.IndexFlatL2):
    """An index from which something is deleted while it is read."""

    deletions = 0
    mapping: ClassVar[dict[int, str]] = {}  # FAISS takes no attribute that its class has not

    def reconstruct_batch(self, keys: Any, x: Any = None) -> Any:
        if self.deletions:
            self.deletions -= 1
            self.remove_ids(faiss.IDSelectorArray(np.array([0], dtype=np.int64)))
            self.mapping = dict(  # type: ignore[misc]  # see above
                enumerate(list(self.mapping.values())[1:])
            )
        return super().reconstruct_batch(keys, x)


@pytest.fixture
def moving() -> Moving:
    index = Moving(8)
    index.add(VECTORS)
    index.mapping = dict(  # type: ignore[misc]  # see above
        enumerate(names(*range(200)))
    )
    return index


def test_vectors_that_move_while_they_are_read_are_read_again(moving: Moving) -> None:
    read = FaissVectors(moving, lambda: moving.mapping)
    moving.deletions = 1
    assert np.array_equal(read(names(7, 9)), VECTORS[[7, 9]])


def test_vectors_that_move_all_the_while_cannot_be_read(moving: Moving) -> None:
    read = FaissVectors(moving, lambda: moving.mapping)
    moving.deletions = 99
    with pytest.raises(LookupError, match="while their vectors were read"):
        read(names(150))


def test_vectors_that_belong_to_nobody(moving: Moving) -> None:
    read = FaissVectors(moving, lambda: moving.mapping)
    moving.add(VECTORS[:1])
    with pytest.raises(LookupError, match="201 vectors for 200 documents"):
        read(names(7))
