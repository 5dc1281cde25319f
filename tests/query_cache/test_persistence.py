"""What a cache answers after it was saved and loaded, and what it refuses to load."""

from __future__ import annotations

import json
import logging
import math
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.errors import CacheFileError, ConfigurationError
from ragcache_integrations.query_cache import (
    Candidate,
    Hit,
    QueryCache,
    _plain,
    lookups,
    persistence,
    restoration,
)
from ragcache_integrations.query_cache.archive import read_archive, write_archive
from ragcache_integrations.query_cache.kernels import kernels as chosen

DIM = 3
SECOND = 1_000_000_000
# Lattice points make ties and equal vectors common.
POINTS = st.tuples(*[st.integers(-2, 2)] * DIM).filter(any)
DOCUMENTS = {
    str(number): [(number * 7) % 5 - 2, (number * 3) % 5 - 2, number % 3 - 1]
    for number in range(14)
}
IDS = st.lists(st.sampled_from(sorted(DOCUMENTS)), max_size=6, unique=True)
KEYS = st.sampled_from([None, "tenant", ("tenant", frozenset([(str, "a"), (int, 1)]))])
KS = st.integers(1, 7)

Cache = QueryCache[Any]
Operation = tuple[Any, ...]


def vectors(ids: Sequence[str]) -> ArrayLike:
    return np.array([DOCUMENTS[one] for one in ids], dtype=np.float32)


def candidates(ids: Sequence[str], *, scored: bool = False) -> list[Candidate[Any]]:
    return [
        Candidate(one, {"text": one, "more": [1, 0.5, None]}, one * 2, rank / 3 if scored else None)
        for rank, one in enumerate(ids)
    ]


class World:
    """The clocks of a machine: what processes count with begins anywhere."""

    def __init__(self, seconds: float = 1e9) -> None:
        self.now = int(seconds * SECOND)

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def time_ns(self) -> int:
        return self.now

    def start(self, cache: Cache, offset: int = 0) -> Cache:
        cache._clock = lambda: self.now - offset
        return cache

    @contextmanager
    def lived_in(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            clock = SimpleNamespace(time_ns=self.time_ns)
            patch.setattr(persistence, "time", clock)
            patch.setattr(restoration, "time", clock)
            yield


@dataclass(frozen=True)
class Kind:
    """Settings of a cache."""

    index: Literal["flat", "lsh"]
    metric: Literal["l2", "cosine", "ip"]
    eviction: Literal["lru", "fifo"]
    tolerance: float | Literal["auto"]
    guarantee: float | Literal["exact"] | None
    reads: bool
    ttl: float | None

    def cache(self) -> Cache:
        proves = self.guarantee is not None
        return QueryCache(
            DIM,
            4,
            self.tolerance,
            self.index,
            self.eviction,
            self.metric,
            num_hyperplanes=2,
            bucket_capacity=2,
            multi_probe=1 if self.index == "lsh" else 0,
            guarantee=self.guarantee,
            exact_search=proves,
            vectors=vectors if self.reads or proves else None,
            ttl=self.ttl,
            longest=4.0 if proves and self.metric == "ip" else None,
            start_tolerance=1.0 if self.tolerance == "auto" else None,
        )


KINDS = st.builds(
    Kind,
    st.sampled_from(["flat", "lsh"]),
    st.sampled_from(["l2", "cosine", "ip"]),
    st.sampled_from(["lru", "fifo"]),
    st.sampled_from([0.0, 0.5, 1.5, math.inf, "auto"]),
    st.sampled_from([None, "exact", 0.5]),
    st.booleans(),
    st.sampled_from([None, 9.5]),
)
LOOKUPS: st.SearchStrategy[Operation] = st.tuples(st.just("lookup"), POINTS, KS, KEYS)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.tuples(st.just("insert"), POINTS, IDS, KEYS, st.booleans(), st.booleans()),
    st.tuples(st.just("insert"), POINTS, IDS, KEYS, st.booleans(), st.booleans()),
    LOOKUPS,
    st.tuples(st.just("report"), POINTS, IDS, KS, KEYS),
    st.tuples(st.just("added"), IDS),
    st.tuples(st.just("removed"), IDS),
)
WAIT: st.SearchStrategy[Operation] = st.tuples(st.just("wait"), st.integers(1, 6))


def act(cache: Cache, operation: Operation) -> object:
    """Do something, and return all that it tells."""
    match operation:
        case "insert", point, ids, key, complete, scored:
            found = candidates(ids, scored=scored)
            return cache.insert(point, found, key, complete=complete or not ids)
        case "lookup", point, k, key:
            hit = cache.lookup(point, k, key)
            # Which hits are checked is drawn anew.
            return (hit and replace(hit, check=False)), cache.explain(point, k, key)
        case "report", point, ids, k, key:
            return cache.report(point, k, candidates(ids), key)
        case "added", ids:
            cache.documents_added(ids, vectors(ids) if ids else np.empty((0, DIM)))
        case "removed", ids:
            cache.documents_removed(ids)
        case ("clear",):
            cache.clear()
        case _:
            raise AssertionError(operation)
    return None


def content(cache: Cache) -> object:
    stats = cache.stats()
    learnt = stats.learning and replace(stats.learning, hits=0)  # lookups count some
    return stats.entries, stats.vectors, stats.tolerance, learnt


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=50, deadline=None)
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
    for name in {*one} - {"stamps", "vectors", "names", "header"}:
        assert np.array_equal(one[name], two[name], equal_nan=one[name].dtype.kind == "f"), name
    assert (one["stamps"].argsort() == two["stamps"].argsort()).all()


def filled(**options: Any) -> Cache:
    """A cache with five entries."""
    arguments: dict[str, Any] = {"tolerance": 0.1, "vectors": vectors, **options}
    cache: Cache = QueryCache(arguments.pop("dim", DIM), 10, **arguments)
    for number in range(5):
        point = np.eye(cache.dim)[number % cache.dim] * (1 if number < cache.dim else -1)
        cache.insert(point, candidates(["1", "2", str(3 + number)]), "key")
    return cache


def first(hit: Hit[Any] | None) -> str:
    assert hit is not None
    return hit.candidates[0].id


def reloaded(cache: Cache, path: Path) -> Cache:
    """What another process would have."""
    other: Cache = QueryCache(**vars(cache._settings))
    cache.save(path)
    assert other.load(path) == len(cache)
    return other


class TestWhatIsKept:
    """Each by itself, so that none depends on what hypothesis happens to try."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "cache.npz"

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
        assert read_archive(path)["cap"].min() == 0.125


class TestFiles:
    def test_no_bit_can_change_without_an_error_and_an_empty_cache(self, tmp_path: Path) -> None:
        path, cache = tmp_path / "cache.npz", filled()
        cache.save(path)
        saved = path.read_bytes()
        for position in random.Random(0).sample(range(len(saved)), 300):
            damaged = bytearray(saved)
            damaged[position] ^= 1 << position % 8
            path.write_bytes(damaged)
            cache.insert([1, 0, 0], candidates(["1"]))
            with pytest.raises(CacheFileError):
                cache.load(path)
            assert len(cache) == 0
            assert cache.lookup([1, 0, 0], 1) is None
        path.write_bytes(saved)
        assert cache.load(path) == 5

    def test_no_shorter_file_is_taken(self, tmp_path: Path) -> None:
        path, cache = tmp_path / "cache.npz", filled()
        cache.save(path)
        saved = path.read_bytes()
        for length in [*range(100), *range(100, len(saved), 97), len(saved) - 1]:
            path.write_bytes(saved[:length])
            cache.insert([1, 0, 0], candidates(["1"]))
            with pytest.raises(CacheFileError):
                cache.load(path)
            assert len(cache) == 0

    def test_a_file_that_is_not_there_changes_nothing(self, tmp_path: Path) -> None:
        cache = filled()
        with pytest.raises(FileNotFoundError):
            cache.load(tmp_path / "nowhere.npz")
        with pytest.raises(IsADirectoryError):
            cache.load(tmp_path)
        assert first(cache.lookup([1, 0, 0], 1, "key")) == "1"

    def test_an_empty_cache_is_saved_and_loaded(self, tmp_path: Path) -> None:
        QueryCache[str](2, 5, 1).save(tmp_path / "cache.npz")
        cache = QueryCache[str](2, 5, 1)
        cache.insert([1, 0], [Candidate("a", "text a")])
        assert cache.load(tmp_path / "cache.npz") == 0
        assert cache.lookup([1, 0], 1) is None

    @pytest.mark.parametrize(
        "arguments",
        [{"path": 3}, {"path": None}, {"path": b"bytes"}, {"store_tag": 1}, {"code": "utf-8"}],
        ids=str,
    )
    def test_wrong_arguments_are_told(self, tmp_path: Path, arguments: dict[str, Any]) -> None:
        cache = filled()
        path = arguments.pop("path", tmp_path / "cache.npz")
        code = arguments.pop("code", None)
        with pytest.raises(ConfigurationError, match=r"must be .*, got"):
            cache.save(path, encode=code, **arguments)
        with pytest.raises(ConfigurationError, match=r"must be .*, got"):
            cache.load(path, decode=code, **arguments)
        assert len(cache) == 5
        assert list(tmp_path.iterdir()) == []

    def test_a_process_that_is_killed_while_saving_loses_nothing(self, tmp_path: Path) -> None:
        """The script forks savers and kills them; see there."""
        script = Path(__file__).parent / "killed_while_saving.py"
        answer = subprocess.run(
            [sys.executable, str(script), str(tmp_path), "60"],
            check=True,
            capture_output=True,
            text=True,
        )
        told = json.loads(answer.stdout)
        assert told["kills"] == 60
        assert told["during a save"] > 0
        assert told["losses"] == []


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


def rewrite(
    path: Path,
    *,
    arrays: Mapping[str, NDArray[Any]] | None = None,
    header: Mapping[str, Any] | None = None,
    without: str = "",
) -> None:
    """Change what a file holds, behind a right checksum."""
    held = read_archive(path)
    told = json.loads(held["header"].tobytes()) | (header or {})
    told.pop(without, None)
    text = json.dumps(told).encode()
    held |= {"header": np.frombuffer(text, dtype=np.uint8), **(arrays or {})}
    held.pop(without, None)
    write_archive(path, held)


class TestForgedFiles:
    """A checksum tells no lies from truth; but lies must not crash."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        filled(tolerance="auto").save(tmp_path / "cache.npz")
        return tmp_path / "cache.npz"

    def refused(self, path: Path) -> None:
        cache = filled(tolerance="auto")
        with pytest.raises(CacheFileError, match="holds no query cache for this one"):
            cache.load(path)
        assert len(cache) == 0

    def test_another_format_is_told(self, path: Path) -> None:
        rewrite(path, header={"format": 2})
        with pytest.raises(CacheFileError, match="format must be 1, got 2"):
            filled(tolerance="auto").load(path)

    def test_everything_is_needed(self, path: Path) -> None:
        saved, arrays = path.read_bytes(), read_archive(path)
        for name in {*arrays, *json.loads(arrays["header"].tobytes())}:
            path.write_bytes(saved)
            rewrite(path, without=name)
            self.refused(path)

    @pytest.mark.parametrize(
        "change",
        [
            lambda array: array[:-1],
            lambda array: array.astype(str),
            lambda array: array.reshape(1, *array.shape),
            lambda array: np.array(3),
        ],
        ids=["shorter", "of another type", "of another shape", "scalar"],
    )
    def test_every_column_is_looked_at(
        self, path: Path, change: Callable[[NDArray[Any]], NDArray[Any]]
    ) -> None:
        saved = path.read_bytes()
        for name, array in read_archive(path).items():
            if array.size and array.dtype != np.uint8:  # of which all is read, or nothing
                path.write_bytes(saved)
                rewrite(path, arrays={name: change(array)})
                self.refused(path)

    @pytest.mark.parametrize("wrong", [-1, 10**6, 2**62])
    @pytest.mark.parametrize("name", ["names", "texts", "cache_keys", "counts"])
    def test_no_number_leads_out_of_range(self, path: Path, name: str, wrong: int) -> None:
        array = read_archive(path)[name]
        array[1] = wrong
        rewrite(path, arrays={name: array})
        self.refused(path)

    def test_no_entry_answers_with_more_than_it_has(self, path: Path) -> None:
        served = read_archive(path)["serves"]
        rewrite(path, arrays={"serves": np.full_like(served, 9)})
        cache = filled(tolerance="auto")
        assert cache.load(path) == 5
        assert first(cache.lookup([1, 0, 0], 3, "key")) == "1"
        assert cache.lookup([1, 0, 0], 4, "key") is None

    @pytest.mark.parametrize("wrong", [math.nan, math.inf])
    @pytest.mark.parametrize("name", ["keys", "vectors"])
    def test_vectors_are_finite(self, path: Path, name: str, wrong: float) -> None:
        array = read_archive(path)[name]
        array[1, 1] = wrong
        rewrite(path, arrays={name: array})
        self.refused(path)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"saved_at": "yesterday"},
            {"saved_at": -1},
            {"longest": None},
            {"learning": {}},
            {"learning": 3},
            {"names": [["a"]]},
            {"names": 3},
            {"cache_keys": [["type", "os", "system"]]},
            {"settings": None},
            {"format": None},
        ],
        ids=str,
    )
    def test_no_header_crashes(self, path: Path, wrong: dict[str, Any]) -> None:
        rewrite(path, header=wrong)
        self.refused(path)

    @pytest.mark.parametrize("name", ["header", "documents"])
    @pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b"3", b"null"])
    def test_no_json_crashes(self, path: Path, name: str, text: bytes) -> None:
        rewrite(path, arrays={name: np.frombuffer(text, dtype=np.uint8)})
        self.refused(path)


@dataclass(frozen=True)
class Page:
    text: str
    words: tuple[str, ...]


class TestDocuments:
    def cache(self) -> QueryCache[Page]:
        return QueryCache(2, 10, 0)

    def test_they_are_encoded_and_decoded_once(self, tmp_path: Path) -> None:
        cache, loaded, encoded, decoded = self.cache(), self.cache(), [], []

        def encode(page: Page) -> object:
            encoded.append(page)
            return [page.text, page.words]

        def decode(saved: Any) -> Page:
            decoded.append(saved)
            return Page(saved[0], tuple(saved[1]))

        page = Page("one", ("a", "b"))
        for number in range(4):
            cache.insert([1, number], [Candidate("1", page), Candidate("2", Page("two", ()))])
        cache.save(tmp_path / "cache.npz", encode=encode)
        assert encoded.count(page) == 1
        assert loaded.load(tmp_path / "cache.npz", decode=decode) == 4
        assert decoded == [["one", ["a", "b"]], ["two", []]]
        for number in range(4):
            hit = loaded.lookup([1, number], 2)
            assert hit is not None
            assert [one.document for one in hit.candidates] == [page, Page("two", ())]

    @pytest.mark.parametrize(
        "document",
        [Page("a", ()), ("a", "b"), {1: "one"}, b"bytes", {"a"}, math.nan, [[("a",)]]],
        ids=str,
    )
    def test_what_json_would_change_is_refused(self, tmp_path: Path, document: object) -> None:
        cache = QueryCache[Any](2, 10, 0)
        cache.insert([1, 0], [Candidate("a", "text")])
        cache.save(tmp_path / "cache.npz")
        saved = (tmp_path / "cache.npz").read_bytes()
        cache.insert([1, 1], [Candidate("the id", document)])
        with pytest.raises(ConfigurationError, match=r"'the id'.*See encode="):
            cache.save(tmp_path / "cache.npz")
        assert (tmp_path / "cache.npz").read_bytes() == saved
        assert [path.name for path in tmp_path.iterdir()] == ["cache.npz"]

    def test_what_encode_gives_must_be_json(self, tmp_path: Path) -> None:
        cache = self.cache()
        cache.insert([1, 0], [Candidate("the id", Page("a", ()))])
        with pytest.raises(ConfigurationError, match=r"encode must turn .*got set for 'the id'"):
            cache.save(tmp_path / "cache.npz", encode=lambda page: set(page.words))
        with pytest.raises(ZeroDivisionError):
            cache.save(tmp_path / "cache.npz", encode=lambda page: 1 / 0)
        assert list(tmp_path.iterdir()) == []

    def test_what_cannot_be_decoded_leaves_the_cache_empty(self, tmp_path: Path) -> None:
        cache = self.cache()
        cache.insert([1, 0], [Candidate("a", Page("a", ()))])
        cache.save(tmp_path / "cache.npz", encode=lambda page: page.text)
        with pytest.raises(CacheFileError, match="decode raised KeyError"):
            cache.load(tmp_path / "cache.npz", decode=lambda saved: {}[saved])
        assert len(cache) == 0

    def test_a_key_that_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        cache = QueryCache[str](2, 10, 0)
        cache.insert([1, 0], [Candidate("a", "text")], key=("tenant", object()))
        with pytest.raises(ConfigurationError, match="got <object object"):
            cache.save(tmp_path / "cache.npz")
        assert list(tmp_path.iterdir()) == []

    @given(st.text(), st.text(), st.floats(allow_nan=False) | st.none())
    def test_any_text_comes_back(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        one: str,
        other: str,
        score: float | None,
    ) -> None:
        path = tmp_path_factory.mktemp("text") / "cache.npz"
        cache, loaded = QueryCache[str](2, 10, 0), QueryCache[str](2, 10, 0)
        found = (Candidate(one, other, other, score), Candidate(other, one, one))
        cache.insert([1, 0], found, key=one)
        cache.save(path)
        loaded.load(path)
        hit = loaded.lookup([1, 0], 2, one)
        assert hit is not None
        assert hit.candidates == found


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


class TestWhileOthersUseIt:
    @pytest.mark.parametrize("lost", [["removed", ["1"]], ["added", ["9"]], ["clear"]], ids=str)
    def test_a_change_of_the_store_during_the_load_is_heeded(
        self, tmp_path: Path, lost: list[Any]
    ) -> None:
        cache: Cache = QueryCache(DIM, 10, 0, vectors=vectors)
        cache.insert([1, 0, 0], candidates(["1", "2"]))
        cache.save(tmp_path / "cache.npz")
        told: list[object] = []

        def decode(saved: object) -> object:
            if not told:
                told.append(act(cache, tuple(lost)))
            return saved

        entries = cache.load(tmp_path / "cache.npz", decode=decode)
        hit = cache.lookup([1, 0, 0], 2)
        if lost == ["clear"]:
            assert entries == len(cache) == 0
        else:
            assert entries == len(cache)
            assert hit is None
        assert cache.load(tmp_path / "cache.npz") == 1  # nothing changes meanwhile

    def test_a_search_under_way_is_remembered_with_what_was_loaded(self, tmp_path: Path) -> None:
        cache = filled()
        cache.save(tmp_path / "cache.npz")
        version = cache.store_version
        cache.load(tmp_path / "cache.npz")
        assert cache.insert([1, 1, 1], candidates(["1"]), "key", store_version=version)
        assert len(cache) == 6

    @pytest.mark.parametrize("index", ["flat", "lsh"])
    def test_eight_threads(self, tmp_path: Path, index: Literal["flat", "lsh"]) -> None:
        """Whoever asks for a point gets that point's documents, in every cache that was saved."""
        count, dim = 400, 8
        points = np.random.default_rng(0).standard_normal((count, dim)).astype(np.float32)
        texts = {f"{number}-{rank}": [number, rank] for number in range(count) for rank in range(3)}
        stored = {one: points[number] * (1 + rank) for one, (number, rank) in texts.items()}

        def read(ids: Sequence[str]) -> ArrayLike:
            return np.array([stored[one] for one in ids])

        def make() -> Cache:
            return QueryCache(
                dim, 150, 0, index, num_hyperplanes=4, bucket_capacity=9, vectors=read
            )

        def check(cache: Cache, number: int) -> bool:
            hit = cache.lookup(points[number], 3, number % 3)
            assert cache.lookup(points[number], 3, (number + 1) % 3) is None
            if hit is None:
                return False
            assert [one.document for one in hit.candidates] == [[number, rank] for rank in range(3)]
            return True

        cache, stop = make(), [False]

        def use(seed: int) -> int:
            chosen, hits = random.Random(seed), 0
            while not stop[0]:
                number = chosen.randrange(count)
                if check(cache, number):
                    hits += 1
                else:
                    ids = [f"{number}-{rank}" for rank in range(3)]
                    found = [Candidate(one, texts[one]) for one in ids]
                    cache.insert(points[number], found, number % 3)
            return hits

        with ThreadPoolExecutor(8) as pool:
            users = [pool.submit(use, seed) for seed in range(8)]
            try:
                for turn in range(12):
                    path = tmp_path / f"{turn}.npz"
                    cache.save(path)
                    saved = make()
                    entries = saved.load(path)
                    assert entries == sum(check(saved, number) for number in range(count))
                    if turn % 3 == 2:
                        cache.load(tmp_path / f"{turn - 2}.npz")
            finally:
                stop[0] = True
            assert sum(user.result() for user in users) > 0
        assert sum(check(cache, number) for number in range(count)) == len(cache)


class TestKernels:
    @pytest.mark.parametrize("index", ["flat", "lsh"])
    @pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
    @pytest.mark.parametrize("compiled_first", [True, False])
    def test_every_vector_finds_its_entry_under_other_kernels(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        index: Literal["flat", "lsh"],
        metric: Literal["l2", "cosine", "ip"],
        compiled_first: bool,
    ) -> None:
        pytest.importorskip("numba")
        compiled = chosen()
        order = [compiled, _plain] if compiled_first else [_plain, compiled]
        points = np.random.default_rng(0).standard_normal((200, 384)).astype(np.float32)
        caches: list[Cache] = []
        for kernels in order:
            monkeypatch.setattr(f"{lookups.__name__}.kernels", lambda one=kernels: one)
            caches.append(QueryCache(384, 200, 0, index, metric=metric, bucket_capacity=40))
        cache, loaded = caches
        assert [one._kernels for one in caches] == order
        for number, point in enumerate(points):
            cache.insert(point, candidates([str(number)]))
        cache.save(tmp_path / "cache.npz")
        assert loaded.load(tmp_path / "cache.npz") == 200
        for number, point in enumerate(points):
            assert first(loaded.lookup(point, 1)) == str(number)
