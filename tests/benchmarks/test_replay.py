from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from parts.query_cache.learned_tolerance import learn, summary
from parts.query_cache.polarity import MODES, polarity
from parts.query_cache.qualities import DEPTH, Asked, Knobs, generated, run, with_median
from parts.query_cache.replay import replay
from parts.traffic.question_streams import Stream
from parts.vector_search.exact_store import ExactStore

from tests.support.sizes import examples

DOCUMENTS = 60


def units(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    rows = rng.standard_normal((count, 8))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def asked(seed: int, count: int, spread: float = 0.1) -> Asked:
    """Questions around five topics, none twice the same."""
    rng = np.random.default_rng(seed)
    store = ExactStore(units(rng, DOCUMENTS))
    rows = units(rng, 5)[rng.integers(5, size=count)] + spread * units(rng, count)
    queries = np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)
    return Asked(store, queries, store.answer(queries, DEPTH))


def test_where_everything_hits_only_the_first_is_searched_for() -> None:
    stream = asked(0, 40)
    found = run(stream, Knobs(tolerance=math.inf), "all").replayed
    assert (found.queries, found.misses, found.checks, found.occupancy) == (40, 1, 0, 1)
    assert found.calls_saved == found.hit_rate == 39 / 40
    assert found.recall.shape == (39,)


def test_where_nothing_hits_everything_is_searched_for() -> None:
    found = run(asked(0, 40), Knobs(tolerance=0.0), "none").replayed
    assert found.calls_saved == 0
    assert found.occupancy == 40
    assert found.hit_recall is found.worst_recall is None
    assert found.poor == found.certified == found.below(1.0) == 0


@given(st.integers(0, 2**32), st.sampled_from([1, 4, 50]))
@examples(20)
def test_recall_is_what_the_whole_store_is_right_about(seed: int, factor: int) -> None:
    stream = asked(seed, 30, spread=0.5)
    cache = Knobs(tolerance=0.6, rerank_factor=factor).cache(stream.store)
    found = replay(cache, stream.queries, stream.store, stream.answers)
    assert found.misses + found.recall.size == 30
    if factor == 50:  # all 60 documents are candidates, and re-ranked
        assert found.recall.tolist() == [1.0] * found.recall.size
        assert found.certified in {0.0, 1.0}
    assert ((found.recall >= 0) & (found.recall <= 1)).all()
    assert (found.recall >= found.proven).all()


@given(st.integers(0, 2**32))
@examples(20)
def test_proven_hits_are_exact(seed: int) -> None:
    knobs = Knobs(tolerance=1.0, guarantee="exact", rerank_factor=4)
    found = run(asked(seed, 30, spread=0.05), knobs, "exact").replayed
    assert found.worst_recall in {None, 1.0}
    assert found.certified == (1.0 if found.recall.size else 0.0)


def test_a_stream_that_is_answered_too_shortly_is_refused() -> None:
    stream = asked(0, 10)
    with pytest.raises(RuntimeError, match="asks for 20 documents, only 5 were computed"):
        replay(
            Knobs(rerank_factor=4).cache(stream.store),
            stream.queries,
            stream.store,
            stream.store.answer(stream.queries, 5),
        )


def test_checks_count_as_calls() -> None:
    knobs = Knobs(tolerance="auto", start_tolerance=1.2, exact_search=False)
    found = run(asked(0, 300, spread=0.4), knobs, "auto").replayed
    assert found.checks > 0
    assert found.calls_saved == pytest.approx(1 - (found.misses + found.checks) / 300)


def test_the_best_fixed_tolerance_keeps_the_bound_and_saves_most() -> None:
    stream = asked(0, 300, spread=0.4)
    base = Knobs(rerank_factor=1, max_violation=0.05)
    grid = (0.0, 0.2, 0.4, 0.8, 1.6)
    learned = learn("five topics", stream, base, grid)
    allowed = []
    for tolerance in grid:
        found = run(stream, replace(base, tolerance=tolerance), "").replayed
        if found.below(0.95) <= 0.05:
            allowed.append(found.calls_saved)
    assert learned.best(0.05).replayed.calls_saved == max(allowed)
    assert len(allowed) < len(grid)
    assert learned.best(0.0).replayed.below(0.95) == 0
    figures = summary([learned])
    assert [figure["start"] for figure in figures["runs"]] == [1.2, 0.0, 1.2, 0.0]
    assert figures["violation_rate"] == max(one["violation_rate"] for one in figures["runs"])


def test_a_pair_that_is_the_same_question_is_served_exactly() -> None:
    stream = asked(0, 40)
    ones = units(np.random.default_rng(5), 10)
    found = polarity(stream, ones, ones)
    assert set(found) == set(MODES)
    for name, figures in found.items():
        if name != "auto":  # may have learned to serve nothing
            assert figures == {"served": 1.0, "recall": 1.0, "below_0.8": 0.0}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50, unique=True), st.floats(0.01, 1))
def test_all_but_the_nearest_or_the_farthest_have_the_median(
    values: list[float], median: float
) -> None:
    distances = np.array(values)
    kept = with_median(distances, median)
    assert kept == sorted(set(kept))
    below = int((distances < median).sum())
    assert (distances[kept] < median).sum() == below - max(0, 2 * below - len(values))
    # As many on either side.
    assert len(kept) == 2 * int((distances[kept] < median).sum())


def test_some_of_the_questions() -> None:
    stream = asked(0, 10)
    picked = stream.pick([7, 2])
    np.testing.assert_array_equal(picked.queries, stream.queries[[7, 2]])
    np.testing.assert_array_equal(picked.answers.documents, stream.answers.documents[[7, 2]])


def test_generated_questions_are_unit_vectors_and_never_the_same() -> None:
    rng = np.random.default_rng(0)
    rows = {text: units(rng, 1)[0] for text in ("a", "b", "a please", "b please", "tell me a")}
    stream = Stream(("a please", "b please", "tell me a"), ("a", "b", "a"))

    def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([rows[text] for text in texts])

    found = generated(stream, embed, 100)
    assert len(found) == len(np.unique(found, axis=0)) == 6  # two questions, three moves
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    right = min(np.linalg.norm(found - rows["a please"], axis=1))
    assert right == pytest.approx(0, abs=1e-6)
