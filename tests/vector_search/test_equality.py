"""Stages end in what FAISS finds. The benchmark asks 10,000 queries at full size."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.vector_search import Found, StagedIndex, StagePlan
from tests.support.sizes import examples, scaled

from .worlds import (
    COUNT,
    DIM,
    MAKERS,
    METRICS,
    Vectors,
    assert_same,
    cloud,
    last,
    names,
    share_same,
)

QUERIES = scaled(600)


def faiss_found(index: Any, query: Vectors, k: int, parameters: Any = None) -> Found:
    distances, labels = index.search(query[None], k, params=parameters)
    pairs = zip(labels[0].tolist(), distances[0].tolist(), strict=True)
    some = [(f"d{label}", distance) for label, distance in pairs if label >= 0]
    return Found(tuple(name for name, _ in some), tuple(one for _, one in some))


@pytest.fixture(scope="module")
def worlds() -> Callable[[str, str], tuple[Any, StagedIndex]]:
    made: dict[tuple[str, str], tuple[Any, StagedIndex]] = {}

    def world(kind: str, metric: str) -> tuple[Any, StagedIndex]:
        if (kind, metric) not in made:
            # Some vectors come several times: ties.
            rows = np.concatenate([cloud(COUNT - 100, 1), cloud(COUNT - 100, 1)[:100]])
            index = MAKERS[kind](rows, METRICS[metric])
            made[kind, metric] = index, StagedIndex(index, names(COUNT))
        return made[kind, metric]

    return world


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", MAKERS)
def test_stages_end_in_the_result(kind: str, metric: str, worlds: Any) -> None:
    index, staged = worlds(kind, metric)
    pairs = []
    for number, query in enumerate(cloud(QUERIES, 2)):
        k = (1, 2, 5, 10, 40)[number % 5]
        want = faiss_found(index, query, k)
        assert staged.search(query, k) == want
        stages = list(staged.stages(query, k))
        assert len(stages) <= 8
        pairs.append((last(stages), want))
    assert share_same(pairs) == 1


@pytest.mark.parametrize("kind", ["ivf", "ivf_pq", "hnsw"])
@examples(60)
@given(data=st.data())
def test_however_it_is_cut(kind: str, worlds: Any, data: st.DataObject) -> None:
    index, staged = worlds(kind, "l2")
    plan = data.draw(
        st.one_of(
            st.builds(StagePlan, number=st.integers(1, 100)),
            st.builds(StagePlan, share=st.floats(0.01, 1)),
            st.builds(StagePlan, seconds=st.floats(1e-6, 1e-2)),
        )
    )
    k = data.draw(st.integers(1, 60))
    query = cloud(1, data.draw(st.integers(0, 2**32)))[0]
    depth = data.draw(st.integers(1, 64))
    inner = staged.index
    before = inner.hnsw.efSearch if kind == "hnsw" else inner.nprobe
    try:
        if kind == "hnsw":
            inner.hnsw.efSearch = depth  # below k, too
        else:
            inner.nprobe = depth  # more than there are clusters, too
        stages = list(staged.stages(query, k, plan=plan))
        assert_same(last(stages), faiss_found(index, query, k))
        if plan.most is not None:
            assert len(stages) <= plan.most
    finally:
        if kind == "hnsw":
            inner.hnsw.efSearch = before
        else:
            inner.nprobe = before


def test_a_graph_is_walked_in_about_as_many_stages_as_wanted() -> None:
    staged = StagedIndex(MAKERS["hnsw"](cloud(COUNT, 1)))
    counts = [len(list(staged.stages(query, 5))) for query in cloud(200, 2)]
    assert 6 <= np.median(counts) <= 8


def test_clusters_are_shared_out_evenly() -> None:
    staged = StagedIndex(MAKERS["ivf"](cloud(COUNT, 1)))
    staged.index.nprobe = 24
    for query in cloud(50, 2):
        assert 4 <= len(list(staged.stages(query, 5, plan=StagePlan(number=6)))) <= 6
        assert len(list(staged.stages(query, 5, plan=StagePlan(number=1)))) == 1


def test_results_get_better_from_stage_to_stage() -> None:
    for kind in ("ivf", "hnsw"):
        staged = StagedIndex(MAKERS[kind](cloud(COUNT, 1)))
        for query in cloud(50, 2):
            worst = np.inf
            for stage in staged.stages(query, 5):
                if len(stage.ids) == 5:
                    assert stage.distances[-1] <= worst
                    worst = stage.distances[-1]


def test_the_end_after_some_codes() -> None:
    index = MAKERS["ivf"](cloud(COUNT, 1))
    staged = StagedIndex(index, names(COUNT))
    for most in (1, 50, 333, 10_000):
        index.max_codes = most
        for query in cloud(30, 2):
            assert_same(last(list(staged.stages(query, 5))), faiss_found(index, query, 5))


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_several_threads_for_one_search(mode: int) -> None:
    index = MAKERS["ivf"](cloud(COUNT, 1))
    index.parallel_mode = mode
    staged = StagedIndex(index, names(COUNT))
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    try:
        for query in cloud(30, 2):
            assert_same(last(list(staged.stages(query, 5))), faiss_found(index, query, 5))
    finally:
        faiss.omp_set_num_threads(threads)


def test_a_coarse_quantiser_that_is_a_graph() -> None:
    rows = cloud(COUNT, 1)
    quantiser = faiss.IndexHNSWFlat(DIM, 4)
    index: Any = faiss.IndexIVFFlat(quantiser, DIM, 24)
    index.cp.niter, index.quantizer_trains_alone = 3, 2
    index.cp.min_points_per_centroid = 1
    index.train(rows)
    index.add(rows)
    index.nprobe = 24
    quantiser.hnsw.efSearch = 1
    staged = StagedIndex(index, names(COUNT))
    assert not staged.exact_search
    for query in cloud(50, 2):
        assert_same(last(list(staged.stages(query, 5))), faiss_found(index, query, 5))


@pytest.mark.parametrize("name", ["search_bounded_queue", "check_relative_distance"])
def test_a_graph_searched_by_other_rules_has_one_stage(name: str) -> None:
    index = MAKERS["hnsw"](cloud(COUNT, 1))
    setattr(index.hnsw, name, False)
    staged = StagedIndex(index, names(COUNT))
    for query in cloud(20, 2):
        (stage,) = staged.stages(query, 5)
        assert_same(stage, faiss_found(index, query, 5))


@pytest.mark.parametrize("kind", MAKERS)
def test_more_are_wanted_than_there_are(kind: str) -> None:
    rows = cloud(60, 1)
    index = MAKERS[kind](rows)
    staged = StagedIndex(index, names(60))
    for query in cloud(5, 2):
        assert_same(last(list(staged.stages(query, 100))), faiss_found(index, query, 100))


@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_an_empty_index(kind: str) -> None:
    rows = cloud(100, 1)
    index = MAKERS[kind](rows)
    index.reset()
    staged = StagedIndex(index, [])
    assert staged.search(rows[0], 3) == Found((), ())
    assert last(list(staged.stages(rows[0], 3))).ids == ()
    staged.add(["one"], rows[:1])
    assert last(list(staged.stages(rows[0], 3))).ids == ("one",)
    staged.delete(["one"])
    assert last(list(staged.stages(rows[0], 3))).ids == ()


def test_marks_are_used_again_and_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragcache_integrations.vector_search.hnsw._MOST_MARKS", 3)
    index = MAKERS["hnsw"](cloud(COUNT, 1))
    staged = StagedIndex(index, names(COUNT))
    for query in cloud(20, 2):
        left = staged.stages(query, 5)
        next(left)  # one is under way all the while
        assert_same(last(list(staged.stages(query, 5))), faiss_found(index, query, 5))
        left.close()


@pytest.mark.parametrize("metric", METRICS)
def test_ties_go_as_in_faiss(metric: str) -> None:
    rng = np.random.default_rng(5)
    # Of whole numbers, so that sums are exact in any order; most vectors come several times.
    index = MAKERS["hnsw"](rng.integers(-1, 2, (COUNT, 6)).astype(np.float32), METRICS[metric])
    staged = StagedIndex(index, names(COUNT))
    for number, query in enumerate(rng.integers(-2, 3, (QUERIES, 6)).astype(np.float32)):
        index.hnsw.efSearch, k = ((1, 1), (5, 3), (32, 10), (64, 64), (8, 40))[number % 5]
        stage = last(list(staged.stages(query, k)))
        want = faiss_found(index, query, k)
        assert (stage.ids, stage.distances) == (want.ids, want.distances)


def test_searches_of_all_sizes_share_what_is_kept_for_the_next() -> None:
    index = MAKERS["hnsw"](cloud(COUNT, 1))
    staged = StagedIndex(index, names(COUNT))
    index.hnsw.efSearch = 32
    rng = np.random.default_rng(3)
    under_way: list[tuple[Vectors, int, list[Any], Any]] = []
    for number, vector in enumerate(cloud(300, 2)):
        counted = (lambda _: True) if number % 3 else None
        wanted = int(rng.integers(1, 50))
        under_way.append((vector, wanted, [], staged.stages(vector, wanted, filter=counted)))
        one = int(rng.integers(len(under_way)))
        query, k, seen, stages = under_way[one]
        seen += islice(stages, int(rng.integers(1, 9)))
        if seen[-1].final:
            assert_same(last(seen), faiss_found(index, query, k))
            del under_way[one]
        elif rng.integers(2):
            stages.close()
            del under_way[one]


@pytest.mark.parametrize("kind", MAKERS)
def test_distances_that_overflow(kind: str) -> None:
    if kind == "ivf_pq":
        pytest.skip("FAISS itself gives NaN there")
    rows = cloud(300, 1)
    staged = StagedIndex(MAKERS[kind](rows), names(300))
    stages = list(staged.stages(np.full(DIM, 3e38, np.float32), 5))
    assert len(last(stages).ids) <= 5
