"""Additions, deletions, updates and filters, against FAISS over a selection and against a scan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.vector_search import Found, StagedIndex
from tests.support.sizes import examples

from .worlds import CONNECTED, DIM, MAKERS, Vectors, assert_same, cloud, last, names, staged

KINDS = ["flat", "ivf", "hnsw", "transformed"]
COLOURS = ["red", "green", "blue"]


def exhaustive(index: StagedIndex) -> StagedIndex:
    """Let it find everything, so that a scan tells what is right."""
    inner = index.index
    if hasattr(inner, "nprobe"):
        inner.nprobe = inner.nlist
    elif hasattr(inner, "hnsw"):
        inner.hnsw.efSearch = 400
    return index


def scan(rows: Mapping[str, Vectors], query: Vectors, k: int) -> Found:
    found = sorted((float(((row - query) ** 2).sum()), name) for name, row in rows.items())[:k]
    return Found(tuple(name for _, name in found), tuple(distance for distance, _ in found))


@pytest.mark.parametrize("kind", KINDS)
@examples(25)
@given(data=st.data())
def test_any_changes(kind: str, data: st.DataObject) -> None:
    """Whatever came and went, what is left is found, and nothing else."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = dict(zip(names(60), cloud(60, 1), strict=True))
    colours = {one: COLOURS[number % 3] for number, one in enumerate(rows)}
    index = StagedIndex(
        CONNECTED[kind](np.array(list(rows.values()))),
        list(rows),
        metadata=[{"colour": colours[one]} for one in rows],
    )
    exhaustive(index)
    version, fresh = index.version, iter(range(10_000))
    for _ in range(data.draw(st.integers(1, 8))):
        what = data.draw(st.sampled_from(["add", "delete", "update", "compact"]))
        some = data.draw(st.lists(st.sampled_from(sorted(rows) or ["-"]), unique=True, max_size=9))
        some = [one for one in some if one in rows]
        new = rng.normal(size=(len(some), DIM)).astype(np.float32)
        if what == "add":
            some = [f"new {next(fresh)}" for _ in some]
            index.add(some, new, [{"colour": "red"} for _ in some])
            colours |= dict.fromkeys(some, "red")
            rows |= dict(zip(some, new, strict=True))
        elif what == "update":
            index.update(some, new)
            rows |= dict(zip(some, new, strict=True))
        elif what == "delete":
            index.delete(some)
            for one in some:
                del rows[one]
        else:
            index.compact()
        assert index.version >= version
        version = index.version
        assert len(index) == len(rows)
        assert set(index.ids) == set(rows)
        query = rng.normal(size=DIM).astype(np.float32)
        for wanted in (None, {"colour": "red"}, {"colour": ["red", "blue"]}):
            allowed = [wanted["colour"]] if wanted else []
            left = {
                one: row
                for one, row in rows.items()
                if not wanted or colours[one] in np.ravel(allowed)
            }
            right = scan(left, query, 5)
            assert_same(index.search(query, 5, filter=wanted), right)
            assert_same(last(list(index.stages(query, 5, filter=wanted))), right)
    if rows:
        np.testing.assert_allclose(
            index.vectors(list(rows)), np.array(list(rows.values())), atol=1e-5
        )


def selecting(index: Any, selector: Any) -> Any:
    """FAISS's own arguments for a search of some vectors."""
    library: Any = faiss  # its stubs do not know all of it
    if hasattr(index, "hnsw"):
        return library.SearchParametersHNSW(sel=selector, efSearch=index.hnsw.efSearch)
    return library.SearchParametersIVF(sel=selector, nprobe=index.nprobe)


@pytest.mark.parametrize("kind", ["ivf", "ivf_pq", "hnsw"])
def test_a_filter_is_a_selector_of_faiss(kind: str) -> None:
    """Also where the search is approximate."""
    rows = cloud(1500, 1)
    index = MAKERS[kind](rows)
    metadata = [{"number": number, "half": number % 2 == 0} for number in range(1500)]
    both = StagedIndex(index, names(1500), metadata=metadata)
    selector = faiss.IDSelectorBatch(np.arange(0, 1500, 2))
    parameters = selecting(index, selector)
    for query in cloud(200, 2):
        distances, labels = index.search(query[None], 10, params=parameters)
        want = Found(tuple(f"d{label}" for label in labels[0]), tuple(distances[0].tolist()))
        for wanted in ({"half": True}, lambda one: one["half"]):
            assert both.search(query, 10, filter=wanted) == want
            assert_same(last(list(both.stages(query, 10, filter=wanted))), want)


def test_deleted_from_a_graph_is_filtered_out() -> None:
    rows = cloud(1500, 1)
    index = MAKERS["hnsw"](rows)
    both = StagedIndex(index, names(1500))
    both.delete(names(1500)[::3])
    selector = faiss.IDSelectorBatch(np.setdiff1d(np.arange(1500), np.arange(0, 1500, 3)))
    parameters = selecting(index, selector)
    for query in cloud(200, 2):
        distances, labels = index.search(query[None], 10, params=parameters)
        want = Found(tuple(f"d{label}" for label in labels[0]), tuple(distances[0].tolist()))
        assert both.search(query, 10) == want
        assert_same(last(list(both.stages(query, 10))), want)


def test_many_deleted_from_a_graph_are_told_of_and_compacted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    index = staged("hnsw", cloud(300, 1))
    index.delete(names(300)[:50])
    assert not caplog.text
    index.delete(names(300)[50:100])
    index.delete(names(300)[100:150])
    assert caplog.text.count("call compact()") == 1
    assert index.index.ntotal == 300
    assert index.index.hnsw.efSearch == 32
    before = index.vectors(["d200"])
    index.compact()
    assert (index.index.ntotal, index.index.hnsw.efSearch) == (150, 32)
    np.testing.assert_array_equal(index.vectors(["d200"]), before)
    assert index.search(before[0], 1).ids == ("d200",)
    version = index.version
    index.compact()
    assert index.version == version


def test_a_transformed_graph_is_compacted(tmp_path: Any) -> None:
    rows = cloud(200, 1)
    rotation = faiss.RandomRotationMatrix(DIM, DIM)
    rotation.init(1)
    whole = faiss.IndexPreTransform(rotation, faiss.IndexHNSWFlat(DIM, 8))
    whole.add(rows)
    index = StagedIndex(whole, names(200))
    del whole, rotation
    index.delete(names(200)[:100])
    index.compact()
    index.save(tmp_path)
    for one in (index, StagedIndex.load(tmp_path)):
        assert len(one) == one.index.ntotal == 100
        assert one.search(rows[150], 1).ids == ("d150",)
        np.testing.assert_allclose(one.vectors(["d150"]), rows[150:151], atol=1e-5)


@pytest.mark.parametrize("kind", MAKERS)
def test_nothing_changes_where_something_is_wrong(kind: str) -> None:
    index = staged(kind, cloud(100, 1), metadata=[{"n": n} for n in range(100)])
    one = cloud(1, 3)
    two = cloud(2, 3)
    wrong: list[tuple[str, tuple[Any, ...], str]] = [
        ("add", (["d1"], one), "ids must be new, 'd1' is there already"),
        ("add", (["x", "x"], two), "'x' twice"),
        ("add", ("x", one), "must be a sequence of strings, got 'x'"),
        ("add", ([7], one), "ids must be strings, got 7"),
        ("add", (["x"], two), r"shape \(1, 12\), got \(2, 12\)"),
        ("add", (["x"], one[:, :5]), r"shape \(1, 12\), got \(1, 5\)"),
        ("add", (["x"], one * np.nan), "finite"),
        ("add", (["x"], [["a"] * DIM]), "array of numbers"),
        ("add", (["x"], one, []), "one mapping for each of the 1 documents, got 0"),
        ("add", (["x"], one, ["red"]), "mappings or None, got 'red'"),
        ("add", (["x"], one, {"n": 1}), "sequence of mappings"),
        ("delete", (["d1", "x"],), "documents that are there, got 'x'"),
        ("delete", (["d1", "d1"],), "'d1' twice"),
        ("update", (["x"], one), "documents that are there, got 'x'"),
        ("update", (["d1"], one * np.inf), "finite"),
    ]
    query = cloud(1, 4)[0]
    before = index.search(query, 100), index.ids, index.version
    for method, arguments, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            getattr(index, method)(*arguments)
    assert (index.search(query, 100), index.ids, index.version) == before
    assert len(index.search(query, 100, filter={"n": [1, 2]}).ids) <= 2


@pytest.mark.parametrize("size", [1e20, 3e38])
@pytest.mark.parametrize("kind", ["ivf", "ivf_pq", "ivf_sq", "transformed"])
def test_a_vector_that_no_cluster_takes_is_refused(kind: str, size: float) -> None:
    """FAISS would count it, and crash when it is removed once there is a map of vectors."""
    index = staged(kind, cloud(100, 1))
    index.delete(["d0"])  # makes the map
    new = np.full((1, DIM), size, np.float32)
    query = cloud(1, 4)[0]
    before = index.search(query, 100), index.ids, index.version
    with pytest.raises(ConfigurationError, match="vectors must be small enough"):
        index.add(["x"], new)
    with pytest.raises(ConfigurationError, match="vectors must be small enough"):
        index.update(["d1"], new)
    assert (index.search(query, 100), index.ids, index.version) == before
    index.add(["x"], cloud(1, 5))
    index.delete(["x", "d1"])
    assert len(index) == 98


@pytest.mark.parametrize("kind", ["hnsw", "flat"])
def test_a_vector_that_a_transform_makes_infinite_is_refused(kind: str) -> None:
    rotation = faiss.RandomRotationMatrix(DIM, DIM)
    rotation.init(3)
    whole = faiss.IndexPreTransform(rotation, MAKERS[kind](cloud(100, 1)))
    index = StagedIndex(whole, names(100))
    # Along a row of the matrix, so that the numbers of a sum all have one sign.
    row = np.sign(faiss.vector_to_array(rotation.A)[:DIM]) * np.float32(3.4e38)
    with pytest.raises(ConfigurationError, match="vectors must be small enough"):
        index.add(["x"], row[None])
    assert len(index) == 100


@pytest.mark.parametrize("kind", KINDS)
def test_an_addition_that_fails_leaves_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where FAISS has taken some of the vectors."""
    index = exhaustive(StagedIndex(CONNECTED[kind](cloud(100, 1)), names(100)))
    inner = index.index
    method = "add_with_ids" if hasattr(inner, "nprobe") else "add"
    original = getattr(inner, method)

    def fail(rows: Vectors, *labels: Any) -> None:
        original(rows[:1], *(label[:1] for label in labels))
        raise MemoryError

    new = cloud(3, 5)
    with monkeypatch.context() as patch:
        patch.setattr(inner, method, fail)
        with pytest.raises(MemoryError):
            index.add(["x", "y", "z"], new)
    for _ in range(2):
        assert set(index.search(new[0], 200).ids) == set(names(100))
        assert last(list(index.stages(new[0], 200))).ids == index.search(new[0], 200).ids
        index.delete(["d0"])
        index.add(["d0"], new[1:2])
        assert index.search(new[1], 1).ids == ("d0",)
    index.add(["x", "y"], new[[0, 2]])
    assert index.search(new[2], 1).ids == ("y",)
    index.delete(["x"])
    assert index.search(new[2], 1).ids == ("y",)


def test_an_update_keeps_what_it_does_not_replace() -> None:
    index = staged("ivf", cloud(100, 1), metadata=[{"n": n} for n in range(100)])
    row = cloud(1, 9)
    index.update(["d7"], row)
    assert index.search(row[0], 1, filter={"n": 7}).ids == ("d7",)
    index.update(["d7"], row, [{"n": 1000}])
    assert index.search(row[0], 1, filter={"n": 7}).ids == ()
    assert index.search(row[0], 1, filter={"n": 1000}).ids == ("d7",)
    index.update(["d7"], row, [None])
    assert index.search(row[0], 1, filter={"n": 1000}).ids == ()
    index.delete(["d7"])
    index.add(["d7"], row)  # of another life
    assert index.search(row[0], 100, filter=lambda one: not one).ids == ("d7",)


class TestFilters:
    def test_values_are_not_mixed_up(self) -> None:
        values: list[Any] = [1, "1", 1.5, None, "", [1, 2], ["1"]]
        index = staged("flat", cloud(7, 1), metadata=[{"is": value} for value in values])
        query = cloud(1, 2)[0]

        def found(wanted: Any) -> set[str]:
            return set(index.search(query, 7, filter=wanted).ids)

        for _ in range(2):  # what is remembered, too
            assert found({"is": 1}) == {"d0"}
            assert found({"is": "1"}) == {"d1"}
            assert found({"is": None}) == {"d3"}
            assert found({"other": None}) == set()
            assert found({"is": [1, "1"]}) == {"d0", "d1"}
            assert found({"is": [[1, 2]]}) == {"d5"}
            assert found({}) == set(names(7))
            assert found(lambda one: isinstance(one["is"], list)) == {"d5", "d6"}

    def test_changes_are_seen(self) -> None:
        metadata = [{"n": n % 2} for n in range(50)]
        index = StagedIndex(CONNECTED["hnsw"](cloud(50, 1)), names(50), metadata=metadata)
        query = cloud(1, 2)[0]
        assert len(index.search(query, 50, filter={"n": 1}).ids) == 25
        index.add(["x"], cloud(1, 3), [{"n": 1}])
        index.delete(["d1"])
        found = set(index.search(query, 50, filter={"n": 1}).ids)
        assert len(found) == 25
        assert "x" in found
        assert "d1" not in found

    def test_more_filters_than_are_remembered(self) -> None:
        index = staged("flat", cloud(50, 1), metadata=[{"n": n} for n in range(50)])
        for n in range(50):
            assert index.search(cloud(1, 2)[0], 5, filter={"n": n}).ids == (f"d{n}",)

    def test_documents_without_metadata(self) -> None:
        index = staged("flat", cloud(5, 1))
        query = cloud(1, 2)[0]
        assert index.search(query, 5, filter={"n": 1}).ids == ()
        assert len(index.search(query, 5, filter=lambda one: one == {}).ids) == 5

    @pytest.mark.parametrize("wrong", ["red", 7, {1: 2}, ["red"]])
    def test_what_is_no_filter(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match="filter must be a mapping"):
            staged("flat", cloud(5, 1)).search(cloud(1, 2)[0], 1, filter=wrong)

    @pytest.mark.parametrize("wrong", [{"$or": []}, {"n": {"$gt": 1}}])
    def test_operators_are_refused(self, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"operators such as \$.*give a function"):
            staged("flat", cloud(5, 1)).search(cloud(1, 2)[0], 1, filter=wrong)

    def test_one_that_raises(self) -> None:
        index = staged("ivf", cloud(50, 1))

        def bad(_: Any) -> bool:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            index.search(cloud(1, 2)[0], 1, filter=bad)
        with pytest.raises(ZeroDivisionError):
            list(index.stages(cloud(1, 2)[0], 1, filter=bad))
        index.delete(["d1"])  # no lock was left behind
