"""What a cache answers after it was saved and loaded."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ragcache_integrations.core.archive import read_archive
from ragcache_integrations.errors import CacheFileError
from ragcache_integrations.query_cache import (
    QueryCache,
)
from tests.support.sizes import examples

from .saving import (
    DIM,
    DOCUMENTS,
    KINDS,
    OPERATIONS,
    ROW,
    WAIT,
    Cache,
    Kind,
    Operation,
    World,
    act,
    candidates,
    content,
    filled,
    first,
    reloaded,
    rewrite,
    saved_entries,
    saved_header,
    vectors,
)


@examples(300)
@given(
    KINDS, st.lists(OPERATIONS | WAIT, max_size=25), st.lists(OPERATIONS, min_size=3, max_size=15)
)
def test_a_loaded_cache_goes_on_like_the_one_that_was_saved(
    tmp_path_factory: pytest.TempPathFactory,
    kind: Kind,
    before: list[Operation],
    after: list[Operation],
) -> None:
    world, path = World(), tmp_path_factory.mktemp("round") / "cache.npz"
    cache, loaded = world.start(kind.cache()), world.start(kind.cache(), 12345678901234)
    for operation in before:
        if operation[0] == "wait":
            world.wait(operation[1])
        else:
            act(cache, operation)
    with world.lived_in():
        cache.save(path)
        world.wait(3)
        assert loaded.load(path) == len(loaded)
    if kind.ttl is None:
        assert content(loaded) == content(cache)
    for operation in after:
        # With a ttl the one still has what ended while the other waited: room differs.
        if kind.ttl is None or operation[0] == "lookup":
            told = act(cache, operation)
            assert act(loaded, operation) == told
            event(f"{operation[0]}: {told[0] is not None if isinstance(told, tuple) else told}")


@examples(50)
@given(KINDS, st.lists(OPERATIONS, max_size=15))
def test_saving_twice_writes_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, kind: Kind, before: list[Operation]
) -> None:
    """So what is loaded is all that was saved; a loaded cache differs in its numbering alone."""
    world, folder = World(), tmp_path_factory.mktemp("twice")
    cache, loaded = world.start(kind.cache()), world.start(kind.cache())
    for operation in before:
        act(cache, operation)
    with world.lived_in():
        cache.save(folder / "one")
        loaded.load(folder / "one")
        loaded.save(folder / "two")
        world.start(kind.cache()).load(folder / "two")
        cache.save(folder / "again")
    assert (folder / "one").read_bytes() == (folder / "again").read_bytes()
    one, two = read_archive(folder / "one"), read_archive(folder / "two")
    assert one.keys() == two.keys()
    for name in {*one} - {"vectors", "header"}:
        assert np.array_equal(one[name], two[name]), name
    entries, others = saved_entries(folder / "one"), saved_entries(folder / "two")
    stamps = [[entry[0] for entry in saved] for saved in (entries, others)]
    assert np.array_equal(np.argsort(stamps[0]), np.argsort(stamps[1]))
    # Documents whose vectors are kept may be numbered in another order.
    names = [saved_header(folder / name)["names"] for name in ("one", "two")]
    for number, saved in enumerate((entries, others)):
        for entry in saved:
            entry[0] = None
            entry[-1] = [[names[number][name], *rest] for name, *rest in entry[-1]]
    assert entries == others


class TestWhatIsKept:
    """Each by itself, so that none depends on what hypothesis happens to try."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "cache.npz"

    @pytest.mark.parametrize("reads", [False, True])
    def test_what_a_change_ends(self, path: Path, *, reads: bool) -> None:
        """An answer that is not ranked by distance ends with any change, another one does not."""
        cache: Cache = QueryCache(DIM, 4, 0, vectors=vectors if reads else None)
        cache.insert([1, 0, 0], candidates(["1"]), "ranked")
        cache.insert([1, 0, 0], candidates(["1"]), "for diversity", ranked=False)
        loaded = reloaded(cache, path)
        for one in (cache, loaded):
            one.documents_removed(["2"])
            assert first(one.lookup([1, 0, 0], 1, "ranked")) == "1"
            assert one.lookup([1, 0, 0], 1, "for diversity") is None

    def test_the_order_of_eviction(self, path: Path) -> None:
        cache: Cache = QueryCache(2, 3, 0)
        for number in range(3):
            cache.insert([1, number], candidates([str(number)]))
        cache.lookup([1, 0], 1)
        loaded = reloaded(cache, path)
        loaded.insert([1, 3], candidates(["3"]))
        loaded.insert([1, 4], candidates(["4"]))
        assert [loaded.lookup([1, number], 1) is None for number in range(5)] == [
            *(False, True, True, False, False)
        ]

    def test_which_of_two_is_newer(self, path: Path) -> None:
        cache: Cache = QueryCache(2, 3, 5)
        cache.insert([1, 1], candidates(["old"]))
        cache.insert([1, -1], candidates(["new"]))
        cache.lookup([1, 1], 1)  # last used, but no newer for that
        assert first(cache.lookup([1, 0], 1)) == "new"
        cache.lookup([1, 1], 1)
        assert first(reloaded(cache, path).lookup([1, 0], 1)) == "new"

    def test_what_came_after_an_entry(self, path: Path) -> None:
        cache: Cache = QueryCache(DIM, 3, 2, vectors=lambda _: [[1, 0, 0], [2, 0, 0]])
        cache.insert([0.5, 0, 0], candidates(["one", "two"]))
        near = [1, 0, 0]
        assert first(cache.lookup(near, 2)) == "one"
        cache.documents_added(["three"], [[2.2, 0, 0]])
        assert cache.lookup(near, 2) is None
        loaded = reloaded(cache, path)
        assert loaded.lookup(near, 2) is None
        assert first(loaded.lookup([0.5, 0, 0], 2)) == "one"

    def test_how_far_each_document_is(self, path: Path) -> None:
        places = {"near": [1, 0, 0], "far": [2, 0, 0]}
        cache: Cache = QueryCache(DIM, 3, 2, vectors=lambda ids: [places[one] for one in ids])
        cache.insert([0.5, 0, 0], candidates(["far", "near"]))  # the store's order is its own
        cache.documents_added(["between"], [[1.5, 0, 0]])
        loaded = reloaded(cache, path)
        assert loaded.lookup([0.5, 0, 0], 1) is not None
        loaded.documents_removed(["near"])
        assert loaded.lookup([0.5, 0, 0], 1) is None  # "between" is the nearest now

    def test_how_many_an_entry_answers_with(self, path: Path) -> None:
        """Not what would be computed: a document that an entry has already came once more."""
        cache: Cache = QueryCache(DIM, 3, 2, vectors=vectors)
        cache.insert([0, 0, 1], candidates(["0", "1"]))
        act(cache, ("added", ["0"]))
        cache.save(path)
        loaded = reloaded(cache, path)
        for k in (1, 2, 3):
            point = [0, 0, 1]
            assert loaded.explain(point, k).entries == cache.explain(point, k).entries

    def test_the_hyperplanes(self, path: Path) -> None:
        """Another version of NumPy may draw others for the same seed."""
        cache: Cache = QueryCache(8, 3, 0, "lsh")
        other = np.random.default_rng(9).standard_normal((8, 8)).astype(np.float32)
        cache.insert(np.ones(8), candidates(["1"]))
        cache.save(path)
        rewrite(path, arrays={"planes": other})
        loaded: Cache = QueryCache(8, 3, 0, "lsh")
        loaded.load(path)
        assert first(loaded.lookup(np.ones(8), 1)) == "1"
        loaded.save(path)
        assert np.array_equal(read_archive(path)["planes"], other)

    def test_the_longest_document(self, path: Path) -> None:
        def longest() -> float:
            return float(json.loads(read_archive(path)["header"].tobytes())["longest"])

        cache: Cache = QueryCache(DIM, 3, 0, metric="ip", vectors=vectors)
        cache.insert([1, 0, 0], candidates(["0"]))
        loaded = reloaded(cache, path)
        loaded.save(path)
        assert longest() == float(np.linalg.norm(DOCUMENTS["0"]))
        # What was known here stays known, too: these documents are in the store.
        loaded.documents_added(["long"], [[0, 3, 4]])
        loaded.load(path)
        loaded.save(path)
        assert longest() == 5

    def test_where_an_entry_failed(self, path: Path) -> None:
        cache = filled(tolerance="auto", start_tolerance=1.0)
        cache.report([1, 0.25, 0], 3, candidates(["11", "12", "13"]), "key")
        reloaded(cache, path).save(path)
        assert min(entry[ROW.index("cap")] for entry in saved_entries(path)) == 0.125


class TestSettings:
    @pytest.mark.parametrize(
        ("there", "here"),
        [
            ({"dim": 3}, {"dim": 4, "vectors": None}),
            ({"metric": "l2"}, {"metric": "cosine"}),
            ({"metric": "ip"}, {"metric": "l2"}),
            ({"index": "flat"}, {"index": "lsh"}),
            ({"index": "lsh"}, {"index": "flat"}),
            ({"index": "lsh"}, {"index": "lsh", "num_hyperplanes": 7}),
            ({"index": "lsh"}, {"index": "lsh", "bucket_capacity": 21}),
            ({"index": "lsh"}, {"index": "lsh", "seed": 1}),
            ({"tag": "MiniLM, wiki"}, {"tag": "MPNet, wiki"}),
            ({}, {"tag": "MPNet, wiki"}),
            ({}, {"exact_search": True}),
            ({}, {"unit_vectors": True, "vectors": None}),
            ({"metric": "ip"}, {"metric": "ip", "longest": 9.0}),
        ],
        ids=str,
    )
    def test_what_answers_depend_on_must_agree(
        self, tmp_path: Path, there: dict[str, Any], here: dict[str, Any]
    ) -> None:
        filled(**there).save(tmp_path / "cache.npz")
        cache = filled(**here)
        [name] = [
            name
            for name in ["longest", *here]
            if name != "vectors" and there.get(name) != here.get(name)
        ][:1]
        with pytest.raises(CacheFileError, match=rf"{name}.* is .* here and .* there"):
            cache.load(tmp_path / "cache.npz")
        assert len(cache) == 0

    def test_the_store_must_be_the_same(self, tmp_path: Path) -> None:
        filled().save(tmp_path / "cache.npz", store_tag="2024-05-01")
        cache = filled()
        with pytest.raises(CacheFileError, match="store_tag is '' here and '2024-05-01' there"):
            cache.load(tmp_path / "cache.npz")
        assert len(cache) == 0
        assert cache.load(tmp_path / "cache.npz", store_tag="2024-05-01") == 5

    def test_the_last_used_entries_are_taken_where_there_is_less_room(self, tmp_path: Path) -> None:
        cache = filled()
        cache.lookup([0, 1, 0], 1, "key")
        cache.save(tmp_path / "cache.npz")
        small: Cache = QueryCache(DIM, 2, 0.1, vectors=vectors, eviction="fifo", ttl=99)
        assert small.load(tmp_path / "cache.npz") == 2
        found = [first(small.lookup(point, 1, "key")) for point in ([0, 1, 0], [0, -1, 0])]
        assert found == ["1", "1"]
        assert small.stats().vectors == 4  # "1", "2", and the third of either


class TestAges:
    """Entry 1 is 5 seconds old when the cache is saved, entry 2 is 2 seconds old."""

    def ages(self, tmp_path: Path, wall_moves: float, ttl: float | None) -> list[float | None]:
        world, path = World(), tmp_path / "cache.npz"
        cache: Cache = world.start(QueryCache(2, 10, 0))
        cache.insert([1, 0], candidates(["1"]))
        world.wait(3)
        cache.insert([0, 1], candidates(["2"]))
        world.wait(2)
        with world.lived_in():
            cache.save(path)
            world.wait(wall_moves)
            loaded: Cache = world.start(QueryCache(2, 10, 0, ttl=ttl), 987654321)
            loaded.load(path)
            hits = [loaded.lookup(point, 1) for point in ([1, 0], [0, 1])]
        return [None if hit is None else hit.age for hit in hits]

    @pytest.mark.parametrize(
        ("wall_moves", "ttl", "ages"),
        [
            (0, None, [5, 2]),
            (10, None, [15, 12]),
            (10, 16, [15, 12]),
            (10, 15, [None, 12]),
            (10, 12, [None, None]),
            (1e9, 12, [None, None]),  # jumped ahead
            (-1, None, [5, 2]),  # set back: no younger than they were
            (-1e8, None, [5, 2]),
            (-1, 1e6, [None, None]),  # set back: nobody knows how old they are
            (-1e8, 1e6, [None, None]),
            (0, 1e300, [5, 2]),
        ],
    )
    def test_entries_only_get_older(
        self, tmp_path: Path, wall_moves: float, ttl: float | None, ages: list[float | None]
    ) -> None:
        assert self.ages(tmp_path, wall_moves, ttl) == ages

    def test_what_had_ended_does_not_come_back(self, tmp_path: Path) -> None:
        world = World()
        cache: Cache = world.start(QueryCache(2, 10, 0, ttl=10))
        cache.insert([1, 0], candidates(["1"]))
        world.wait(6)
        cache.insert([0, 1], candidates(["2"]))
        world.wait(4)
        cache.save(tmp_path / "cache.npz")
        assert QueryCache[Any](2, 10, 0).load(tmp_path / "cache.npz") == 1

    def test_a_loaded_entry_ends_when_it_would_have(self, tmp_path: Path) -> None:
        world = World()
        cache: Cache = world.start(QueryCache(2, 10, 0, ttl=10))
        cache.insert([1, 0], candidates(["1"]))
        world.wait(4)
        with world.lived_in():
            for _ in range(2):  # ages add up
                cache.save(tmp_path / "cache.npz")
                world.wait(2)
                cache = world.start(QueryCache(2, 10, 0, ttl=10), random.randrange(10**18))
                assert cache.load(tmp_path / "cache.npz") == 1
        world.wait(1.5)
        assert first(cache.lookup([1, 0], 1)) == "1"
        world.wait(0.5)
        assert cache.lookup([1, 0], 1) is None


class TestLearning:
    def taught(self, **options: Any) -> Cache:
        cache = filled(tolerance="auto", start_tolerance=1.0, **options)
        cache.report([1, 0.25, 0], 3, candidates(["11", "12", "13"]), "key")
        return cache

    def test_what_was_learnt_is_known(self, tmp_path: Path) -> None:
        cache = self.taught()
        report = cache.stats().learning
        assert report is not None
        assert (report.failures, report.tolerance) == (1, 0)
        cache.save(tmp_path / "cache.npz")
        loaded = filled(tolerance="auto", start_tolerance=1.0)
        assert loaded.lookup([1, 0.1, 0], 1, "key") is not None
        loaded.load(tmp_path / "cache.npz")
        assert loaded.stats().learning == report
        assert loaded.lookup([1, 0.1, 0], 1, "key") is None

    def test_what_was_learnt_is_served(self, tmp_path: Path) -> None:
        filled(tolerance="auto", start_tolerance=1.0).save(tmp_path / "cache.npz")
        loaded = filled(tolerance="auto")
        assert loaded.lookup([1, 0.1, 0], 1, "key") is None
        loaded.load(tmp_path / "cache.npz")
        assert loaded.lookup([1, 0.1, 0], 1, "key") is not None

    @pytest.mark.parametrize("other", [{"target_recall": 0.5}, {"max_violation": 0.02}], ids=str)
    def test_what_was_learnt_for_other_targets_is_not_used(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, other: dict[str, Any]
    ) -> None:
        self.taught(**other).save(tmp_path / "cache.npz")
        loaded = filled(tolerance="auto", start_tolerance=1.0)
        with caplog.at_level(logging.INFO):
            assert loaded.load(tmp_path / "cache.npz") == 5
        assert "learnt for other targets" in caplog.text
        assert loaded.tolerance == 1.0

    def test_a_fixed_tolerance_stays(self, tmp_path: Path) -> None:
        self.taught().save(tmp_path / "cache.npz")
        fixed = filled(tolerance=0.3)
        assert fixed.load(tmp_path / "cache.npz") == 5
        assert fixed.tolerance == 0.3
        assert first(fixed.lookup([1, 0.25, 0], 1, "key")) in {"1", "2", "3"}
        fixed.save(tmp_path / "cache.npz")
        auto = self.taught()
        before = auto.stats().learning
        assert auto.load(tmp_path / "cache.npz") == 5
        assert auto.stats().learning == before
