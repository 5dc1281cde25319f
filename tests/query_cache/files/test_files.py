"""What is refused, and what happens to files and to those who use the cache meanwhile."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from ragcache_integrations.core.archive import read_archive
from ragcache_integrations.errors import CacheFileError, ConfigurationError
from ragcache_integrations.query_cache import Candidate, QueryCache
from ragcache_integrations.query_cache.kernels import kernels as chosen
from ragcache_integrations.query_cache.kernels import plain as _plain

from .saving import (
    DIM,
    ROW,
    Cache,
    act,
    candidates,
    filled,
    first,
    rewrite,
    saved_entries,
    vectors,
)


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


class TestForgedFiles:
    """A checksum tells no lies from truth; but lies must not crash."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        filled(tolerance="auto").save(tmp_path / "cache.npz")
        return tmp_path / "cache.npz"

    def refused(self, path: Path) -> None:
        cache = filled(tolerance="auto")
        with pytest.raises(CacheFileError, match=path.name):
            cache.load(path)
        assert len(cache) == 0

    def test_another_format_is_told(self, path: Path) -> None:
        rewrite(path, header={"format": 3})
        with pytest.raises(CacheFileError, match="format must be 4, got 3"):
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

    @pytest.mark.parametrize("field", range(len(ROW)), ids=ROW)
    @pytest.mark.parametrize("wrong", [None, "text", [1], {}, math.nan], ids=str)
    def test_every_field_of_an_entry_is_looked_at(
        self, path: Path, field: int, wrong: object
    ) -> None:
        entries = saved_entries(path)
        if ROW[field] != "text" or wrong != "text":
            entries[1][field] = wrong
            rewrite(path, header={"entries": entries})
            self.refused(path)

    @pytest.mark.parametrize("entries", [lambda saved: saved[1:], lambda _: [], lambda _: {}])
    def test_every_key_has_an_entry(self, path: Path, entries: Callable[[Any], object]) -> None:
        rewrite(path, header={"entries": entries(saved_entries(path))})
        self.refused(path)

    @pytest.mark.parametrize("wrong", [-1, 10**6, 2**62, 2**70, 0.5])
    @pytest.mark.parametrize("place", ["cache_key", "name", "document"])
    def test_no_number_leads_out_of_range(self, path: Path, place: str, wrong: float) -> None:
        entries = saved_entries(path)
        if place == "cache_key":
            entries[1][ROW.index("cache_key")] = wrong
        else:
            entries[1][-1][0][place == "document"] = wrong
        rewrite(path, header={"entries": entries})
        self.refused(path)

    def test_no_entry_answers_with_more_than_it_has(self, path: Path) -> None:
        entries = saved_entries(path)
        for entry in entries:
            entry[ROW.index("serves")] = 9
        rewrite(path, header={"entries": entries})
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

    @pytest.mark.parametrize("name", ["keys", "vectors"])
    def test_unit_vectors_have_length_one(self, tmp_path: Path, name: str) -> None:
        """Proofs would divide by the length of a key."""
        path = tmp_path / "cache.npz"
        cache = filled(metric="cosine", guarantee=0.5, tolerance=1.0, exact_search=True)
        cache.save(path)
        array = read_archive(path)[name]
        for length in (0.0, 2.0):
            rewrite(path, arrays={name: np.vstack([array[:-1], array[-1:] * np.float32(length)])})
            with pytest.raises(CacheFileError, match=r"must not be zero|must have length 1"):
                cache.load(path)

    def test_no_key_is_zero(self, path: Path) -> None:
        rewrite(path, arrays={"keys": np.zeros_like(read_archive(path)["keys"])})
        self.refused(path)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"saved_at": "yesterday"},
            {"saved_at": -1},
            {"longest": None},
            {"longest": math.inf},
            {"longest": math.nan},
            {"longest": -1.0},
            {"longest": [1]},
            {"names": [["1", "11"]] * 5},
            {"names": {"ab": 1}},
            {"names": [[1, 2]]},
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

    def test_what_is_as_old_as_can_be_is_saved_again(self, path: Path) -> None:
        entries = saved_entries(path)
        for entry in entries:
            entry[ROW.index("age")] = int(np.iinfo(np.int64).max)
        rewrite(path, header={"entries": entries})
        cache = filled(tolerance="auto")
        assert cache.load(path) == 5
        cache.save(path)
        assert cache.load(path) == 5

    @pytest.mark.parametrize("name", ["header", "documents"])
    @pytest.mark.parametrize(
        "text", [b"{}", b'"text"', b"", b"{", b"\xff", b"[" * 100_000, b"3", b"null"]
    )
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
            assert [candidate.document for candidate in hit.candidates] == [page, Page("two", ())]

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
            assert [candidate.document for candidate in hit.candidates] == [
                [number, rank] for rank in range(3)
            ]
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
            monkeypatch.setattr(
                "ragcache_integrations.query_cache.cache.kernels", lambda one=kernels: one
            )
            caches.append(QueryCache(384, 200, 0, index, metric=metric, bucket_capacity=40))
        cache, loaded = caches
        assert [one._kernels for one in caches] == order
        for number, point in enumerate(points):
            cache.insert(point, candidates([str(number)]))
        cache.save(tmp_path / "cache.npz")
        assert loaded.load(tmp_path / "cache.npz") == 200
        for number, point in enumerate(points):
            assert first(loaded.lookup(point, 1)) == str(number)
