"""Folders of indexes: loaded and searched, or refused; and nothing else is written to."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import faiss
import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from ragcache_integrations.errors import ConfigurationError, IndexFileError
from ragcache_integrations.vector_search import Found, Stage, StagedIndex
from tests.support.sizes import examples
from tests.vector_search.worlds import DIM, MAKERS, METRICS, cloud, names

from .bounds import contained
from .hostile import REPLACEMENTS, altered_text, damaged, put_in_place

COUNT = 60
KINDS = st.tuples(st.sampled_from(sorted(MAKERS)), st.sampled_from(sorted(METRICS)))
PRECIOUS = b"precious"
MAGIC = (b"IxF2", b"IxFI", b"IHNf", b"IwFl", b"IwPQ", b"IwSq", b"IxPT", b"ilar", b"full", b"sprs",
         b"LTra", b"rrot", b"Pcam", b"RmDT", b"VCnt", b"VNrm", b"\0" * 8, b"\xff" * 8)  # fmt: skip

Kind = tuple[str, str]


@cache
def saved(kind: Kind) -> dict[str, bytes]:
    """The files of an index, by name."""
    maker, metric = kind
    rows = cloud(COUNT, 1)
    index = StagedIndex(
        MAKERS[maker](rows, METRICS[metric]),
        names(COUNT),
        metadata=[{"n": number % 3} if number % 4 else None for number in range(COUNT)],
    )
    with TemporaryDirectory() as folder:
        index.save(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


class Folder:
    """A folder of an index, which may be damaged."""

    def __init__(self, within: Path, kind: Kind) -> None:
        shutil.rmtree(within)
        within.mkdir()
        self.path = within / "index"
        self.path.mkdir()
        for name, content in saved(kind).items():
            (self.path / name).write_bytes(content)
        self.manifest = json.loads((self.path / "manifest.json").read_text())
        self.precious = within / "precious"
        self.precious.write_bytes(PRECIOUS)

    def file(self, part: str) -> Path:
        return self.path / str(self.manifest["files"][part]["name"])

    def seal(self, part: str, content: bytes) -> None:
        self.file(part).write_bytes(content)
        self.manifest["files"][part]["sha256"] = hashlib.sha256(content).hexdigest()
        (self.path / "manifest.json").write_text(json.dumps(self.manifest))

    def load(self) -> None:
        """Load it in a process of its own: it is right, or refused."""
        event(contained(self._load))
        assert self.precious.read_bytes() == PRECIOUS
        assert {path.name for path in self.path.parent.iterdir()} <= {"index", "precious", "other"}

    def _load(self) -> str:
        try:
            index = StagedIndex.load(self.path)
        except IndexFileError:
            return "refused"
        except (FileNotFoundError, IsADirectoryError):
            return "nothing there"
        except OSError:
            assert any(path.is_symlink() for path in self.path.iterdir())
            return "a link that leads nowhere"
        with np.errstate(all="ignore"):
            self._use(index)
        return "loaded"

    def _use(self, index: StagedIndex) -> None:
        """Do with an index whatever can be done with one."""
        known = set(index.ids)
        assert len(index) == len(known)
        for query in np.ones((2, index.dim), np.float32) * [[1], [-3]]:
            for k in (1, 5, COUNT + 9):
                results: list[Stage | Found] = [*index.stages(query, k)]
                results.append(index.search(query, k, filter={"n": 1}))
                for found in results:
                    assert set(found.ids) <= known
                    assert len(found.ids) == len(found.distances) <= k
        index.vectors(index.ids[:3])
        index.delete(index.ids[:2])
        # A transform may make too large a number of any: then it is refused, and not added.
        with suppress(ConfigurationError):
            index.add(["new"], np.ones((1, index.dim), np.float32))
            index.update(["new"], np.zeros((1, index.dim), np.float32))
        index.compact()
        index.save(self.path.parent / "other")
        again = StagedIndex.load(self.path.parent / "other")
        assert again.ids == index.ids
        again.search(np.ones(index.dim, np.float32), 5)


@pytest.fixture(scope="module")
def within(tmp_path_factory: pytest.TempPathFactory) -> Path:
    faiss.omp_set_num_threads(1)
    return tmp_path_factory.mktemp("indexes")


@examples(60)
@given(KINDS, st.data())
def test_damaged_indexes(within: Path, kind: Kind, data: st.DataObject) -> None:
    folder = Folder(within, kind)
    folder.seal("index", data.draw(damaged(folder.file("index").read_bytes(), MAGIC)))
    folder.load()


@examples(60)
@given(KINDS, st.data())
def test_numbers_of_headers(within: Path, kind: Kind, data: st.DataObject) -> None:
    """Where the numbers are that everything else goes by: most damage hits vectors alone."""
    folder = Folder(within, kind)
    content = bytearray(folder.file("index").read_bytes())
    for _ in range(data.draw(st.integers(1, 2))):
        begin = data.draw(st.integers(0, 200) | st.integers(0, len(content) - 1))
        begin = min(begin, len(content) - 1)
        if data.draw(st.booleans()):
            begin = max(0, len(content) - 1 - begin)
        width = data.draw(st.sampled_from([1, 1, 4, 8]))
        number = data.draw(st.sampled_from([0, 1, 2, 3, DIM, COUNT, COUNT + 1, 255, 2**31, -1]))
        content[begin : begin + width] = (number % 256**width).to_bytes(width, "little")
    folder.seal("index", bytes(content))
    folder.load()


@examples(40)
@given(KINDS, st.data())
def test_forged_documents(within: Path, kind: Kind, data: st.DataObject) -> None:
    folder = Folder(within, kind)
    value = json.loads(folder.file("documents").read_bytes())
    text = data.draw(altered_text(value)).encode()
    folder.seal("documents", data.draw(damaged(text)) if data.draw(st.booleans()) else text)
    folder.load()


@examples(30)
@given(KINDS, st.data())
def test_forged_manifests(within: Path, kind: Kind, data: st.DataObject) -> None:
    folder = Folder(within, kind)
    manifest = folder.path / "manifest.json"
    if data.draw(st.booleans()):
        manifest.write_text(data.draw(altered_text(folder.manifest)))
    else:
        manifest.write_bytes(data.draw(damaged(manifest.read_bytes(), (b"../precious", b"\0"))))
    folder.load()


@examples(30)
@given(KINDS, st.sampled_from(REPLACEMENTS), st.sampled_from(["index", "documents", "manifest"]))
def test_other_files(within: Path, kind: Kind, replacement: str, part: str) -> None:
    folder = Folder(within, kind)
    file = folder.path / "manifest.json" if part == "manifest" else folder.file(part)
    put_in_place(replacement, file, folder.precious)
    before = {path.name for path in folder.path.iterdir()}

    def save() -> str:
        index = StagedIndex(MAKERS["flat"](cloud(5, 1)), names(5))
        try:
            index.save(folder.path)
        except (ConfigurationError, OSError):
            assert {path.name for path in folder.path.iterdir()} == before
            return "not saved"
        assert StagedIndex.load(folder.path).ids == index.ids
        return "saved"

    folder.load()
    event(contained(save))
    assert folder.precious.read_bytes() == PRECIOUS
