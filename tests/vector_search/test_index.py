"""What can be searched in stages, what it tells of itself, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
import pytest

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.vector_search import StagedIndex, StagePlan

from .worlds import COUNT, DIM, MAKERS, METRICS, cloud, flat, ivf, last, names, staged


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", MAKERS)
def test_what_it_tells(kind: str, metric: str) -> None:
    index = StagedIndex(MAKERS[kind](cloud(300, 1), METRICS[metric]))
    assert (len(index), index.dim, index.metric, index.version) == (300, DIM, metric, 0)
    assert index.ids == tuple(str(one) for one in range(300))
    assert index.exact_search == (kind == "flat")
    if hasattr(index.index, "nprobe"):
        index.index.nprobe = index.index.nlist
        assert index.exact_search == (kind != "transformed")
        index.index.max_codes = 10
        assert not index.exact_search


@pytest.mark.parametrize("kind", MAKERS)
def test_vectors_are_those_that_the_index_holds(kind: str) -> None:
    rows = cloud(300, 1)
    made = MAKERS[kind](rows)
    index = StagedIndex(made, names(300))
    some = ["d7", "d3", "d299", "d3"]
    got = index.vectors(some)
    assert got.dtype == np.float32
    if kind in {"ivf_pq", "ivf_sq"}:
        exact = made.reconstruct_batch(np.array([7, 3, 299, 3]))
        np.testing.assert_array_equal(got, exact)
    else:
        np.testing.assert_allclose(got, rows[[7, 3, 299, 3]], atol=1e-5)
    assert index.vectors([]).shape == (0, DIM)
    with pytest.raises(LookupError, match="document 'x' is not in the index"):
        index.vectors(["d1", "x"])


def test_vectors_that_no_transform_gives_back() -> None:
    rows = cloud(300, 1)
    transform = faiss.LinearTransform(DIM, 5)
    faiss.copy_array_to_vector(np.ones(DIM * 5, np.float32).ravel(), transform.A)
    transform.is_trained = True
    smaller = faiss.IndexPreTransform(transform, faiss.IndexFlatL2(5))
    smaller.add(rows)
    index = StagedIndex(smaller, names(300))
    assert index.dim == DIM
    assert not index.exact_search
    assert len(last(list(index.stages(rows[0], 3))).ids) == 3
    with pytest.raises(LookupError, match="cannot give its vectors"):
        index.vectors(["d1"])


def test_an_array_as_direct_map() -> None:
    made = ivf(cloud(300, 1))
    made.make_direct_map()
    index = StagedIndex(made, names(300))
    index.add(["x"], cloud(1, 2))
    index.delete(["d1"])
    np.testing.assert_array_equal(index.vectors(["x", "d2"])[0], cloud(1, 2)[0])


@pytest.mark.parametrize("wrapper", [faiss.IndexIDMap, faiss.IndexIDMap2])
@pytest.mark.parametrize("kind", ["flat", "ivf", "hnsw"])
def test_a_map_of_ids(kind: str, wrapper: Any) -> None:
    rows = cloud(300, 1)
    inner = MAKERS[kind](rows)
    inner.reset()
    mapped = wrapper(inner)
    mapped.add_with_ids(rows, np.arange(300) * 10)
    index = StagedIndex(mapped)
    del mapped, inner
    assert index.ids[:3] == ("0", "10", "20")
    assert index.search(rows[7], 1).ids == ("70",)
    assert last(list(index.stages(rows[7], 1))).ids == ("70",)
    index.delete(["70"])
    index.add(["x"], rows[7:8])
    assert index.search(rows[7], 1).ids == ("x",)


def test_what_cannot_be_searched_in_stages() -> None:
    fast = faiss.index_factory(DIM, "IVF4,PQ4x4fs")
    quantised = faiss.index_factory(DIM, "HNSW8,SQ8")
    wrong: list[tuple[Any, str]] = [
        ("index", "must be a FAISS index, got str"),
        (faiss.IndexLSH(DIM, 8), "got IndexLSH"),
        (quantised, "got IndexHNSWSQ"),
        (fast, "got IndexIVFPQFastScan"),
        (faiss.IndexIDMap(faiss.IndexLSH(DIM, 8)), "got IndexIDMap of IndexLSH"),
        (faiss.IndexFlat(DIM, faiss.METRIC_L1), "L2 or inner product, got FAISS metric 2"),
        (faiss.IndexIVFFlat(faiss.IndexFlatL2(DIM), DIM, 4), r"trained.*call index.train\(\)"),
    ]
    for index, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            StagedIndex(index)


def test_ids_that_do_not_fit() -> None:
    index = flat(cloud(3, 1))
    wrong: list[tuple[Any, str]] = [
        (["a", "b"], "one for each of the 3 vectors, got 2"),
        (["a", "b", "a"], "'a' twice"),
        (["a", "b", 3], "strings, got 3"),
        ("abc", "sequence of strings"),
        (7, "sequence of strings"),
    ]
    for ids, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            StagedIndex(index, ids)
    with pytest.raises(ConfigurationError, match="each of the 3 documents, got 1"):
        StagedIndex(index, names(3), metadata=[{}])
    numbered = ivf(cloud(300, 1))
    numbered.reset()
    numbered.add_with_ids(cloud(3, 1), np.array([5, 6, 9]))
    with pytest.raises(ConfigurationError, match="numbers must be 0, 1, 2 and so on"):
        StagedIndex(numbered)


@pytest.mark.parametrize(
    ("query", "k", "message"),
    [
        ([1.0] * (DIM - 1), 1, r"query must have the shape \(12,\), got \(11,\)"),
        ([[1.0] * DIM], 1, r"got \(1, 12\)"),
        ([np.nan] * DIM, 1, "finite"),
        ([1e300] * DIM, 1, "finite"),
        (["a"] * DIM, 1, "array of numbers"),
        ([[1], [1, 2]], 1, "array of numbers"),
        (None, 1, "shape"),
        ([1.0] * DIM, 0, "k must be a whole number of at least 1, got 0"),
        ([1.0] * DIM, 1.5, "k must be"),
        ([1.0] * DIM, True, "k must be"),
    ],
)
def test_searches_that_make_no_sense(query: Any, k: Any, message: str) -> None:
    index = staged("ivf", cloud(100, 1))
    with pytest.raises(ConfigurationError, match=message):
        index.search(query, k)
    with pytest.raises(ConfigurationError, match=message):
        index.stages(query, k)  # at once, not with the first stage


def test_a_plan_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="plan must be a StagePlan or None, got 8"):
        staged("ivf", cloud(100, 1)).stages(cloud(1, 2)[0], 1, plan=8)  # type: ignore[arg-type]  # the point


@pytest.mark.parametrize("kind", MAKERS)
def test_queries_of_any_kind_of_array(kind: str) -> None:
    index = staged(kind)
    query = cloud(1, 2)[0]
    frozen = query.copy()
    frozen.flags.writeable = False
    right = index.search(query, 5)
    for other in (query.tolist(), query.astype(np.float64), frozen, np.repeat(query, 2)[::2]):
        assert index.search(other, 5) == right
        assert last(list(index.stages(other, 5))).ids == right.ids


def test_an_index_changed_past_it_is_not_searched() -> None:
    made = MAKERS["hnsw"](cloud(100, 1))
    index = StagedIndex(made, names(100))
    under_way = index.stages(cloud(1, 2)[0], 5)
    next(under_way)
    made.add(cloud(500, 3))
    with pytest.raises(ConfigurationError, match="had 100 vectors and has 600"):
        index.search(cloud(1, 2)[0], 5)
    with pytest.raises(ConfigurationError, match="through its StagedIndex alone"):
        next(under_way)
    with pytest.raises(ConfigurationError, match="Make a new StagedIndex"):
        index.add(["x"], cloud(1, 4))
    assert len(StagedIndex(made)) == 600


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_a_search_that_raises(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its third stage: the error is the search's own, and nothing is left locked."""
    index = staged(kind)
    real = index._opened.search.stages

    def stages(*arguments: Any) -> Iterator[Any]:
        for number, part in enumerate(real(*arguments)):
            if number == 2:
                raise RuntimeError("a disk is gone")
            yield part

    with monkeypatch.context() as patch:
        patch.setattr(index._opened.search, "stages", stages)
        under_way = index.stages(cloud(1, 2)[0], 5)
        assert [next(under_way).number, next(under_way).number] == [1, 2]
        with pytest.raises(RuntimeError, match="a disk is gone"):
            next(under_way)
        assert list(under_way) == []
    index.delete(["d1"])
    assert last(list(index.stages(cloud(1, 2)[0], 5))).final


def test_a_graph_has_one_stage_where_numba_is_missing() -> None:
    script = f"""
import sys
import ragcache_integrations.vector_search as v
assert not {{'numba', 'faiss'}} & set(sys.modules)
sys.modules['numba'] = None
import faiss, logging, numpy as np
logging.basicConfig(stream=sys.stdout)
rows = np.random.default_rng(0).normal(size=({COUNT}, 8)).astype('float32')
index = faiss.IndexHNSWFlat(8, 8)
index.add(rows)
staged = v.StagedIndex(index)
print([one.ids == staged.search(rows[0], 3).ids for one in staged.stages(rows[0], 3)])
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("[True]\n")
    assert "HNSW searches have a single stage" in done.stdout
    assert "ragcache-integrations[numba]" in done.stdout


def test_nothing_is_compiled_for_another_index() -> None:
    from ragcache_integrations.vector_search import _graph  # noqa: PLC0415 - compiles

    def use(dim: int, **arguments: Any) -> None:
        made = faiss.IndexHNSWFlat(dim, 4, *arguments.pop("metric", ()))
        made.add(cloud(50, 1, dim))
        index = StagedIndex(made, **arguments)
        list(index.stages(cloud(1, 2, dim)[0], 3, plan=StagePlan(number=3)))
        list(index.stages(cloud(1, 2, dim)[0], 30, filter=lambda _: True))

    use(4)
    assert len(_graph.advance.signatures) == 1
    use(7, metric=(faiss.METRIC_INNER_PRODUCT,))
    use(16, ids=names(50))
    assert len(_graph.advance.signatures) == 1
