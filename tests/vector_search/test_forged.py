"""Folders of indexes that somebody else wrote, checksums and all: refused, and nothing crashes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from ragcache_integrations.errors import ConfigurationError, IndexFileError
from ragcache_integrations.vector_search import StagedIndex
from ragcache_integrations.vector_search.faiss_format import check_faiss_file

from .worlds import MAKERS, cloud, names, staged

COUNT = 300


def seal(folder: Path, part: str, content: bytes) -> None:
    """Replace one of the two files, and its checksum."""
    manifest = json.loads((folder / "manifest.json").read_text())
    told = manifest["files"][part]
    (folder / told["name"]).write_bytes(content)
    told["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def saved(folder: Path, part: str) -> bytes:
    manifest = json.loads((folder / "manifest.json").read_text())
    name: str = manifest["files"][part]["name"]
    return (folder / name).read_bytes()


def forge(folder: Path, **documents: Any) -> None:
    """Change what the file of the documents says."""
    content = json.loads(saved(folder, "documents"))
    seal(folder, "documents", json.dumps(content | documents).encode())


def forge_index(folder: Path, change: Callable[[Any], None]) -> None:
    """Change the FAISS index, and write it as FAISS does."""
    index = faiss.deserialize_index(np.frombuffer(saved(folder, "index"), np.uint8))
    change(faiss.downcast_index(index))
    seal(folder, "index", faiss.serialize_index(index).tobytes())


@pytest.fixture(params=MAKERS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def make(kind: str, folder: Path) -> Path:
    staged(kind, cloud(COUNT, 1), metadata=[{"n": n} for n in range(COUNT)]).save(folder)
    return folder


def refused(folder: Path, match: str = "") -> None:
    with pytest.raises(IndexFileError, match=match):
        StagedIndex.load(folder)


class TestDocuments:
    @pytest.mark.parametrize(
        "settings",
        [
            {"ntotal": 10**9},
            {"code_size": 10**6},
            {"__class__": "x"},
            {"search": "x"},
            {"hnsw.entry_point": 10**8},
            {"hnsw.efSearch": 2**31 - 1},
            {"invlists": None},
            {"own_fields": True},
            {"max_codes": -1},
            {"max_codes": "3"},
            {"parallel_mode": 1024},
            {"hnsw.search_bounded_queue": 3},
            [],
        ],
        ids=str,
    )
    def test_settings_are_those_of_a_list(self, kind: str, tmp_path: Path, settings: Any) -> None:
        folder = make(kind, tmp_path)
        content = json.loads(saved(folder, "documents"))
        told = {**content["settings"], **settings} if settings else settings
        forge(folder, settings=told)
        refused(folder, folder.name)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"labels": [*range(COUNT - 1), COUNT]},
            {"labels": [*range(COUNT - 1), -1]},
            {"labels": [0] * COUNT},
            {"labels": [*range(COUNT - 1), 10**30]},
            {"labels": [*map(str, range(COUNT))]},
            {"labels": [*range(COUNT - 1), 0.5]},
            {"labels": [*range(COUNT - 1)]},
            {"labels": 3},
            {"ids": ["a"] * COUNT},
            {"ids": [*range(COUNT)]},
            {"ids": "a" * COUNT},
            {"ids": None},
            {"end": "3"},
            {"end": -1},
            {"metadata": []},
            {"metadata": {"d0": 3}},
        ],
        ids=lambda wrong: f"{next(iter(wrong))} {str(wrong)[-20:]}",
    )
    def test_documents_are_those_of_the_vectors(
        self, kind: str, tmp_path: Path, wrong: dict[str, Any]
    ) -> None:
        forge(make(kind, tmp_path), **wrong)
        refused(tmp_path, tmp_path.name)

    def test_no_array_is_longer_than_there_are_vectors(self, kind: str, tmp_path: Path) -> None:
        folder = make(kind, tmp_path)
        forge(folder, end=10**15)
        if MAKERS[kind](cloud(50, 1)).__class__.__name__.startswith("IndexIVF") or (
            kind == "transformed"
        ):
            assert len(StagedIndex.load(folder)) == COUNT  # labels are given again from 0
        else:
            refused(folder, "end must be")

    @pytest.mark.parametrize("text", [b"[" * 10**6, b"{}", b"3", b"\xff", b""])
    def test_no_json_crashes(self, tmp_path: Path, text: bytes) -> None:
        seal(make("flat", tmp_path), "documents", text)
        refused(tmp_path, "malformed")


def neighbours(index: Any) -> Any:
    graph = index.hnsw
    return faiss.rev_swig_ptr(graph.neighbors.data(), graph.neighbors.size())


def levels(index: Any) -> Any:
    return faiss.vector_to_array(index.hnsw.levels)


def set_link(place: int, value: int) -> Callable[[Any], None]:
    def change(index: Any) -> None:
        neighbours(index)[place] = value

    return change


def link_to_the_ground(index: Any) -> None:
    """Let a link of an upper level lead to a vector that is in the lowest level alone."""
    high = levels(index)
    first = int(np.flatnonzero(high > 1)[0])
    widths = faiss.vector_to_array(index.hnsw.cum_nneighbor_per_level)
    begin = int(index.hnsw.offsets.at(first))
    neighbours(index)[begin + widths[1]] = int(np.flatnonzero(high == 1)[0])


def set_vector(name: str, change: Callable[[Any], Any]) -> Callable[[Any], None]:
    def act(index: Any) -> None:
        vector = getattr(index.hnsw, name)
        faiss.copy_array_to_vector(change(faiss.vector_to_array(vector).copy()), vector)

    return act


def put(name: str, value: Any) -> Callable[[Any], None]:
    def change(index: Any) -> None:
        *path, last = name.split(".")
        for one in path:
            index = getattr(index, one)
        setattr(index, last, value)

    return change


def at(place: int, value: int) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array[place] = value
        return array

    return change


def twice_the_same_label(index: Any) -> None:
    label_views(index)[1][0] = label_views(index)[0][0]


def label_out_of_range(index: Any) -> None:
    label_views(index)[0][0] = 10**12


def label_views(index: Any) -> list[Any]:
    lists = index.invlists
    sizes = [(one, lists.list_size(one)) for one in range(index.nlist)]
    return [faiss.rev_swig_ptr(lists.get_ids(one), size) for one, size in sizes if size]


GRAPHS = {
    "entry beyond": put("hnsw.entry_point", COUNT),
    "entry far beyond": put("hnsw.entry_point", 10**8),
    "no entry": put("hnsw.entry_point", -1),
    "level beyond": put("hnsw.max_level", 1000),
    "level below": put("hnsw.max_level", -1),
    "breadth": put("hnsw.efSearch", 2**31 - 1),
    "no breadth": put("hnsw.efSearch", 0),
    "construction": put("hnsw.efConstruction", 2**31 - 1),
    "link beyond": set_link(3, COUNT),
    "link far beyond": set_link(3, 2**31 - 1),
    "link below": set_link(3, -2),
    "link to the ground": link_to_the_ground,
    "level of a vector": set_vector("levels", at(7, 40)),
    "no level of a vector": set_vector("levels", at(7, 0)),
    "fewer levels": set_vector("levels", lambda array: array[:-1]),
    "offset": set_vector("offsets", at(5, 3)),
    "offset beyond": set_vector("offsets", at(5, 2**60)),
    "last offset": set_vector("offsets", at(-1, 5)),
    "fewer offsets": set_vector("offsets", lambda array: array[:-1]),
    "width": set_vector("cum_nneighbor_per_level", at(1, 8)),
    "widths do not begin at 0": set_vector("cum_nneighbor_per_level", at(0, 1)),
    "fewer widths": set_vector("cum_nneighbor_per_level", lambda array: array[:1]),
    "chances": set_vector("assign_probas", lambda array: array * np.nan),
    "fewer chances": set_vector("assign_probas", lambda array: array[:-1]),
    "more vectors": put("ntotal", COUNT + 1),
    "dimension": put("d", 10**6),
    "metric": put("metric_type", 0),
}


@pytest.mark.parametrize("change", GRAPHS.values(), ids=list(GRAPHS))
def test_graphs(tmp_path: Path, change: Callable[[Any], None]) -> None:
    forge_index(make("hnsw", tmp_path), change)
    refused(tmp_path, "malformed")


INVERTED = {
    "no probes": put("nprobe", 0),
    "fewer centres": put("nlist", 25),
    "more vectors": put("ntotal", COUNT + 1),
    "dimension": put("d", 10**6),
    "metric": put("metric_type", 23),
    "untrained": put("is_trained", value=False),
    "no centres": put("quantizer.ntotal", 0),
    "label twice": twice_the_same_label,
    "label out of range": label_out_of_range,
}


@pytest.mark.parametrize("change", INVERTED.values(), ids=list(INVERTED))
@pytest.mark.parametrize("kind", ["ivf", "ivf_pq", "ivf_sq"])
def test_inverted_lists(tmp_path: Path, kind: str, change: Callable[[Any], None]) -> None:
    forge_index(make(kind, tmp_path), change)
    refused(tmp_path, "malformed")


@pytest.mark.parametrize("change", [put("ntotal", 10**9), put("d", 10**6), put("ntotal", -1)])
def test_flat(tmp_path: Path, change: Callable[[Any], None]) -> None:
    forge_index(make("flat", tmp_path), change)
    refused(tmp_path, "malformed")


def test_every_declared_size_is_compared_with_what_is_left(kind: str, tmp_path: Path) -> None:
    whole = saved(make(kind, tmp_path), "index")
    for size in [*range(min(400, len(whole))), *range(400, len(whole), 97)]:
        with pytest.raises(ValueError, match=r".+"):
            check_faiss_file(io.BytesIO(whole[:size]))
    with pytest.raises(ValueError, match="1 bytes follow"):
        check_faiss_file(io.BytesIO(whole + b"\0"))
    for size in (2**40, 2**62, 2**64 - 1):
        for place in range(4, min(160, len(whole) - 8)):
            forged = bytearray(whole)
            forged[place : place + 8] = struct.pack("<Q", size)
            try:
                check_faiss_file(io.BytesIO(forged))
            except ValueError:
                continue
            seal(tmp_path, "index", bytes(forged))
            assert len(StagedIndex.load(tmp_path)) == COUNT  # a field that nobody goes by


def test_faiss_reads_nothing_that_was_not_checked(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(kind, tmp_path)
    read: list[object] = []
    real = faiss.read_index

    def read_index(*arguments: Any) -> Any:
        read.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(faiss, "read_index", read_index)
    StagedIndex.load(folder)
    assert len(read) == 1
    content = saved(folder, "index")
    for damaged in (content[:-8], content[:40], b"", content + b"x"):
        seal(folder, "index", damaged)
        refused(folder, "malformed")
    assert len(read) == 1


def test_other_indexes_are_refused(tmp_path: Path) -> None:
    make("flat", tmp_path)
    others = [
        faiss.index_factory(12, one) for one in ("LSH", "PQ4x4", "SQ8", "IVF8,Flat,Refine(SQ8)")
    ]
    deep: Any = faiss.IndexFlat(12)
    for _ in range(6):
        deep = faiss.IndexPreTransform(deep)
    for other in [*others, deep]:
        with pytest.raises(ValueError, match=r"must be|at most"):
            check_faiss_file(io.BytesIO(faiss.serialize_index(other).tobytes()))


class TestSaving:
    def test_what_cannot_be_loaded_is_not_saved(self, tmp_path: Path) -> None:
        index = staged("hnsw", cloud(50, 1))
        index.index.hnsw.efSearch = 2**31 - 1
        with pytest.raises(ConfigurationError, match="must be one that can be loaded again"):
            index.save(tmp_path)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("text", ['{"name": "my web app"}', "{", "[]", '{"files": {"a": {}}}'])
    def test_a_manifest_of_something_else_stays(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(ConfigurationError, match="is damaged or somebody else's"):
            staged("flat", cloud(5, 1)).save(tmp_path)
        assert (tmp_path / "manifest.json").read_text() == text
        assert [one.name for one in tmp_path.iterdir()] == ["manifest.json"]

    def test_no_link_is_followed_to_write(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        index = staged("flat", cloud(5, 1))
        index.save(tmp_path / "b")
        (tmp_path / "a" / "manifest.json").symlink_to(tmp_path / "b" / "manifest.json")
        before = (tmp_path / "b" / "manifest.json").read_bytes()
        with pytest.raises(OSError, match="symbolic link"):
            index.save(tmp_path / "a")
        assert (tmp_path / "b" / "manifest.json").read_bytes() == before
        assert len(list((tmp_path / "a").iterdir())) == 1

    @pytest.mark.parametrize("name", ["mine.txt", "../mine.txt", "index-.faiss"])
    def test_a_forged_manifest_has_nothing_deleted(self, tmp_path: Path, name: str) -> None:
        folder = make("flat", tmp_path / "index")
        (tmp_path / "mine.txt").write_text("precious")
        (folder / "mine.txt").write_text("precious")
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"]["index"]["name"] = name
        (folder / "manifest.json").write_text(json.dumps(manifest))
        refused(folder, "as a save gives them")
        with pytest.raises(ConfigurationError, match="damaged or somebody else's"):
            staged("flat", cloud(5, 1)).save(folder)
        assert (tmp_path / "mine.txt").exists()
        assert (folder / "mine.txt").exists()


def test_pipes_and_long_manifests(tmp_path: Path) -> None:
    folder = make("flat", tmp_path / "a")
    for path in list(folder.iterdir()):
        copy = tmp_path / path.name
        shutil.copytree(folder, copy)
        (copy / path.name).unlink()
        os.mkfifo(copy / path.name)
        refused(copy, "pipe, device or socket")
    with (folder / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)
    refused(folder, "must have at most 65536 bytes")


def test_labels_with_gaps_are_given_again(tmp_path: Path) -> None:
    index = staged("ivf", cloud(COUNT, 1))
    index.delete(names(COUNT)[:200])
    index.add(["new"], cloud(1, 5))
    index.save(tmp_path)
    loaded = StagedIndex.load(tmp_path)
    assert loaded.ids == index.ids
    for query in cloud(20, 2):
        assert loaded.search(query, 5) == index.search(query, 5)
    np.testing.assert_array_equal(loaded.vectors(["new"]), index.vectors(["new"]))
    for one in (loaded, index):
        one.add(["newer"], cloud(1, 6))
        one.delete(["new"])
    assert loaded.search(cloud(1, 6)[0], 5) == index.search(cloud(1, 6)[0], 5)
