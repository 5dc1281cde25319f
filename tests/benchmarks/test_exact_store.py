from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from parts.vector_search.exact_store import ExactStore, pad

SEEDS = st.integers(min_value=0, max_value=2**32)


def units(rng: np.random.Generator, count: int, dim: int = 8) -> NDArray[np.float32]:
    rows = rng.standard_normal((count, dim))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def true_distances(query: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(rows.astype(np.float64) - query, axis=1))


@given(SEEDS, st.integers(min_value=1, max_value=60), st.integers(min_value=1, max_value=70))
def test_answers_are_the_nearest_in_order(seed: int, count: int, depth: int) -> None:
    rng = np.random.default_rng(seed)
    # Every document twice: ties.
    rows = np.repeat(units(rng, -(-count // 2)), 2, axis=0)[:count]
    queries = units(rng, 3)
    answers = ExactStore(rows).answer(queries, depth)
    assert answers.documents.shape == (3, min(depth, count))
    for query, documents, distances in zip(
        queries, answers.documents, answers.distances, strict=True
    ):
        true = true_distances(query, rows)
        assert len(set(documents.tolist())) == len(documents)
        np.testing.assert_allclose(distances, np.sort(true)[: len(documents)], rtol=1e-12)
        np.testing.assert_allclose(distances, true[documents], rtol=1e-12)


@given(SEEDS)
def test_recall_counts_what_is_no_farther_than_the_true_kth(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.concatenate([units(rng, 30), units(rng, 1)[[0, 0]]])
    store, queries = ExactStore(rows), units(rng, 4)
    answers = store.answer(queries, 10)
    served = rng.integers(len(rows), size=(4, 5))
    recall = store.recall(queries, served.tolist(), answers)
    for query, documents, found in zip(queries, served, recall, strict=True):
        true = true_distances(query, rows)
        assert found == np.mean(true[documents] <= np.sort(true)[4] + 1e-9)
    right = answers.documents[:, :5].tolist()
    np.testing.assert_array_equal(store.recall(queries, right, answers), 1.0)


def test_picked_answers() -> None:
    rng = np.random.default_rng(0)
    answers = ExactStore(units(rng, 20)).answer(units(rng, 6), 3)
    np.testing.assert_array_equal(answers.pick([4, 1]).documents, answers.documents[[4, 1]])
    assert answers.pick([]).distances.shape == (0, 3)


def test_the_cache_reads_vectors_by_the_ids_that_it_is_given() -> None:
    rows = units(np.random.default_rng(0), 20)
    store = ExactStore(rows)
    found = store.candidates(np.array([7, 3]))
    assert [candidate.document for candidate in found] == [7, 3]
    np.testing.assert_array_equal(store.read([candidate.id for candidate in found]), rows[[7, 3]])


@given(SEEDS, st.integers(min_value=0, max_value=200))
def test_padding_adds_unit_vectors_after_the_real_ones(seed: int, total: int) -> None:
    real = units(np.random.default_rng(seed), 50)
    padded = pad(real, total, seed)
    assert padded.shape == (max(total, 50), 8)
    np.testing.assert_array_equal(padded[:50], real)
    np.testing.assert_allclose(np.linalg.norm(padded, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(padded, pad(real, total, seed))
