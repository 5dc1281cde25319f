"""Indexes in folders."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from ragcache_integrations.errors import ConfigurationError, IndexFileError
from ragcache_integrations.vector_search import StagedIndex

from .worlds import MAKERS, assert_same, cloud, last, names, staged


@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_loaded_is_what_was_saved(kind: str, tmp_path: Path) -> None:
    index = staged(kind, metadata=[{"n": n % 7, "äö": [None, 1.5]} for n in range(1500)])
    index.delete(names(1500)[3:600:3])
    index.delete(["d1499"])
    index.add(["x", "ü"], cloud(2, 3), [{"n": 1}, None])
    index.update(["d0"], cloud(1, 4))
    index.save(tmp_path / "a" / "b")
    other = StagedIndex.load(tmp_path / "a" / "b")
    assert other.ids == index.ids
    assert (other.dim, other.metric, len(other)) == (index.dim, index.metric, len(index))
    np.testing.assert_array_equal(other.vectors(["x", "d0"]), index.vectors(["x", "d0"]))
    for query in cloud(20, 2):
        for wanted in (None, {"n": 1}):
            assert other.search(query, 5, filter=wanted) == index.search(query, 5, filter=wanted)
            stages = list(other.stages(query, 5, filter=wanted))
            assert_same(last(stages), index.search(query, 5, filter=wanted))
    for one in (index, other):  # goes on from there
        one.add(["y"], cloud(1, 9))
        one.delete(["d10"])
    assert other.search(cloud(1, 9)[0], 9) == index.search(cloud(1, 9)[0], 9)


def test_how_it_searches_is_kept(tmp_path: Path) -> None:
    made = MAKERS["ivf"](cloud(300, 1))
    made.nprobe, made.max_codes, made.parallel_mode = 7, 55, 1
    StagedIndex(made).save(tmp_path)
    inner = StagedIndex.load(tmp_path).index
    assert (inner.nprobe, inner.max_codes, inner.parallel_mode) == (7, 55, 1)
    graph = MAKERS["hnsw"](cloud(300, 1))
    graph.hnsw.efSearch, graph.hnsw.check_relative_distance = 77, False
    StagedIndex(graph).save(tmp_path)
    inner = StagedIndex.load(tmp_path).index
    assert (inner.hnsw.efSearch, inner.hnsw.check_relative_distance) == (77, False)


def test_a_folder_holds_the_latest_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("somebody's")
    for count in (5, 7):
        staged("flat", cloud(count, 1)).save(tmp_path)
    assert len(StagedIndex.load(tmp_path)) == 7
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == [
        "documents",
        "index",
        "manifest.json",
        "mine.txt",
    ]


@pytest.mark.parametrize("bad", [{"n": (1, 2)}, {"n": {1}}, {1: "n"}, {"n": float("nan")}])
def test_metadata_that_are_not_json(bad: Any, tmp_path: Path) -> None:
    staged("flat", cloud(5, 1)).save(tmp_path)
    before = sorted(tmp_path.iterdir())
    index = staged("flat", cloud(2, 1), metadata=[{"n": 1}, bad])
    with pytest.raises(ConfigurationError, match="must be JSON to be saved, those of 'd1'"):
        index.save(tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    assert len(StagedIndex.load(tmp_path)) == 5


@pytest.mark.parametrize("fails", ["index", "documents", "manifest"])
def test_a_save_that_fails_leaves_the_old_one(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged("flat", cloud(5, 1)).save(tmp_path)
    before = sorted(tmp_path.iterdir())
    replace = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if Path(target).name.startswith(fails):
            raise OSError("the disk is full")
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="the disk is full"):
            staged("flat", cloud(7, 1)).save(tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    assert len(StagedIndex.load(tmp_path)) == 5


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    staged("flat", cloud(3, 1)).save(tmp_path)
    rng = np.random.default_rng(0)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for place in rng.choice(len(whole), min(60, len(whole)), replace=False).tolist():
            broken = bytearray(whole)
            broken[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(broken)
            try:
                assert len(StagedIndex.load(tmp_path)) == 3  # white space of the manifest
                assert path.name == "manifest.json"
            except IndexFileError:
                pass
        for size in (0, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            with pytest.raises(IndexFileError):
                StagedIndex.load(tmp_path)
        path.write_bytes(whole)
    assert len(StagedIndex.load(tmp_path)) == 3


def test_what_holds_no_index(tmp_path: Path) -> None:
    with pytest.raises(IndexFileError, match="must be the folder of a saved index"):
        StagedIndex.load(tmp_path)
    staged("flat", cloud(3, 1)).save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(IndexFileError, match="format 1, got format 2"):
        StagedIndex.load(tmp_path)
    for damage in (b"\xff" * 50_000, json.dumps(manifest | {"format": "2" * 50_000}).encode()):
        (tmp_path / "manifest.json").write_bytes(damage)
        with pytest.raises(IndexFileError) as caught:
            StagedIndex.load(tmp_path)
        assert len(str(caught.value)) <= 1000
    for wrong in (7, None):
        with pytest.raises(ConfigurationError, match="directory must be a string or a path"):
            StagedIndex.load(wrong)  # type: ignore[arg-type]  # the point
        with pytest.raises(ConfigurationError, match="directory must be a string or a path"):
            staged("flat", cloud(3, 1)).save(wrong)  # type: ignore[arg-type]  # the point


def test_a_path_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    staged("flat", cloud(3, 1)).save(tmp_path / "one")
    faiss.write_index(faiss.IndexFlatL2(3), str(tmp_path / "secret"))
    path = tmp_path / "one" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["index"]["name"] = "../secret"
    path.write_text(json.dumps(manifest))
    with pytest.raises(IndexFileError, match="must be as a save gives them"):
        StagedIndex.load(tmp_path / "one")


def test_loading_while_others_save(tmp_path: Path) -> None:
    indexes = [staged("flat", cloud(count, 1)) for count in (3, 5)]
    indexes[0].save(tmp_path)
    done = threading.Event()

    def save() -> None:
        for number in range(30):
            indexes[number % 2].save(tmp_path)
        done.set()

    thread = threading.Thread(target=save)
    thread.start()
    try:
        while not done.is_set():
            assert len(StagedIndex.load(tmp_path)) in {3, 5}
    finally:
        thread.join()
    assert len(list(tmp_path.iterdir())) == 3
