"""Searches of an index on the disk are those of the index in memory, and read the file."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from ragcache_integrations.errors import ConfigurationError
from ragcache_workbench.evaluation.datasets import load_dataset
from ragcache_workbench.evaluation.settings import EvalSettings
from ragcache_workbench.evaluation.systems import Builder
from ragcache_workbench.evaluation.systems.corpus import INDEX, faiss_index, index_on_disk
from tests.support.room import room_for

K = 10
RATIOS = (None, 0.25, 1.0)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def vectors(count: int = 2000, seed: int = 0) -> NDArray[np.float32]:
    drawn = np.random.default_rng(seed).normal(size=(count, 64))
    lengths: NDArray[np.float64] = np.linalg.norm(drawn, axis=1, keepdims=True)
    return (drawn / lengths).astype(np.float32)


def file_of(home: Path) -> Path:
    (file,) = home.glob(f"indexes/*/{INDEX}")
    return file


def resident_kib(file: Path) -> int:
    """KiB of a mapped file that are in this process's memory."""
    mappings = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    found = [re.findall(r"Rss:\s+(\d+) kB", part) for part in mappings if str(file) in part]
    assert found, "the file is not mapped"
    return sum(int(size) for sizes in found for size in sizes)


@pytest.mark.parametrize("ratio", RATIOS)
def test_the_same_documents_at_the_same_distances(home: Path, ratio: float | None) -> None:
    in_memory = faiss_index(vectors(), ratio)
    on_disk = index_on_disk(in_memory)
    questions = vectors(100, seed=1)
    for question in (*questions[:, None], questions):  # alone, and all at once
        distances, positions = in_memory.search(question, K)
        again, same = on_disk.search(question, K)
        np.testing.assert_array_equal(same, positions)
        np.testing.assert_array_equal(again, distances)
    assert on_disk.ntotal == in_memory.ntotal
    assert getattr(on_disk, "nprobe", None) == getattr(in_memory, "nprobe", None)
    assert file_of(home).stat().st_size > vectors().nbytes


@pytest.mark.parametrize("ratio", [None, 1.0])
def test_what_is_searched_is_the_file(home: Path, ratio: float | None) -> None:
    on_disk = index_on_disk(faiss_index(vectors(), ratio))
    file, question = file_of(home), vectors(1, seed=1)
    _, before = on_disk.search(question, K)
    size = file.stat().st_size
    with file.open("r+b") as opened:  # other vectors, or none
        opened.seek(size // 3)
        opened.write(bytes(size // 3))
    _, after = on_disk.search(question, K)
    assert set(before[0]) != set(after[0])


@pytest.mark.parametrize("ratio", [None, 1.0])
def test_nothing_of_the_file_stays_in_memory(home: Path, ratio: float | None) -> None:
    on_disk = index_on_disk(faiss_index(vectors(), ratio))
    resident: list[int] = []
    search = on_disk.search
    pages = search.__closure__ and next(
        cell.cell_contents for cell in search.__closure__ if hasattr(cell.cell_contents, "release")
    )
    for question in vectors(3, seed=1):
        on_disk.search(question[None], K)
        resident.append(resident_kib(file_of(home)))
    assert min(resident) > vectors().nbytes // 2 // 1024, "a search reads the vectors"
    pages.release()
    # At most the pages in which other parts of the file end.
    assert resident_kib(file_of(home)) <= 64


def test_threads_search_at_once(home: Path) -> None:
    in_memory = faiss_index(vectors())
    on_disk = index_on_disk(in_memory)
    questions = vectors(200, seed=1)
    _, expected = in_memory.search(questions, K)
    with ThreadPoolExecutor(4) as pool:
        searched = list(pool.map(lambda one: on_disk.search(one[None], K)[1][0], questions))
    np.testing.assert_array_equal(np.array(searched), expected)


def test_equal_vectors_have_one_file(home: Path) -> None:
    index_on_disk(faiss_index(vectors()))
    index_on_disk(faiss_index(vectors()))
    file_of(home)
    index_on_disk(faiss_index(vectors(seed=2)))
    assert len(list(home.glob("indexes/*"))) == 2


def another_index(seed: int, ratio: float | None = None) -> Callable[[Path], object]:
    content = vectors(seed=seed)

    def replace(file: Path) -> None:
        faiss.write_index(faiss_index(content, ratio), str(file))

    return replace


def one_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.timeout(60)  # a pipe would be waited for
@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b"IxF2"),
        lambda file: file.write_bytes(file.read_bytes() + b"\0"),
        Path.unlink,
        one_bit,
        pipe,
        another_index(seed=2),
        another_index(seed=0, ratio=1.0),
    ],
    ids=["short", "long", "missing", "one bit", "pipe", "other vectors", "other kind"],
)
def test_a_damaged_or_replaced_file_is_refused(home: Path, damage: Any) -> None:
    index_on_disk(faiss_index(vectors()))
    damage(file_of(home))
    with pytest.raises(ConfigurationError, match="must hold the index of these vectors"):
        index_on_disk(faiss_index(vectors()))


def test_where_there_is_no_room_the_error_says_so(home: Path) -> None:
    index = faiss_index(vectors())
    with room_for(vectors().nbytes // 2), pytest.raises(ConfigurationError, match="no room for"):
        index_on_disk(index)
    assert list((home / "indexes").iterdir()) == []


def ids(framework: str, **knobs: Any) -> Iterator[tuple[str, ...]]:
    documents = load_dataset("nq").documents[:200]
    settings = EvalSettings(dataset="nq").set(framework=framework, k=4, **knobs)
    retriever = Builder(own_dataset=load_dataset("nq")).retriever(settings, documents)
    for question in load_dataset("nq").questions[:12]:
        for text in (question.text, f"please, {question.text}"):
            retrieved = asyncio.run(retriever.retrieve(text))
            yield tuple(document.id for document in retrieved.documents)


@pytest.mark.parametrize("framework", ["langchain", "llama_index"])
@pytest.mark.parametrize(
    "knobs", [{"retriever": "plain"}, {"tolerance": 0.5, "capacity": 20, "rerank_factor": 4}]
)
def test_retrievers_over_it(framework: str, knobs: dict[str, Any]) -> None:
    in_memory = list(ids(framework, **knobs))
    assert list(ids(framework, store="disk", **knobs)) == in_memory
