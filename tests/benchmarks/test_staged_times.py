from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray
from parts.speculation.recorded_stages import RecordedStages, Recording, load, record, save
from parts.vector_search.large_indexes import KINDS, Kind, large_index
from parts.vector_search.staged_times import _finals, _same, compare, threads

from ragcache_integrations.vector_search import Stage, StagedIndex, StagePlan


def units(count: int, seed: int, dim: int = 8) -> NDArray[np.float32]:
    rows = np.random.default_rng(seed).standard_normal((count, dim))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


@pytest.fixture
def index() -> StagedIndex:
    graph = faiss.IndexHNSWFlat(8, 8)
    graph.add(units(500, 0))
    return StagedIndex(graph)


@pytest.mark.slow
def test_plain_and_staged_searches_are_paired(index: StagedIndex) -> None:
    found = compare(index, units(120, 1), 5, StagePlan(number=4))
    assert found.equal_share == 1
    assert found.plain.shape == found.staged.shape == found.first.shape == (120,)
    assert (found.first <= found.settled).all()
    assert (found.settled <= found.staged).all()
    assert found.counts.max() <= 4
    assert list(found.final_after) == sorted(found.final_after)
    assert found.final_after[-1] == 1
    figures = found.as_dict()
    assert figures["queries"] == 120
    assert figures["overhead"][1] <= figures["overhead"][0] <= figures["overhead"][2]


def stage(*ids: str, number: int = 1) -> Stage:
    return Stage(ids, tuple(float(one) for one in range(len(ids))), number, 0.1, final=False)


def test_documents_that_change_back_were_not_final() -> None:
    stages = [stage("a"), stage("b"), stage("a"), stage("a")]
    assert _finals(stages, 6) == [False, False, True, True, True, True]


def test_another_result_is_not_equal() -> None:
    distances, labels = np.array([0, 1], np.float32), np.array([3, 4])
    assert _same(distances, labels, stage("3", "4"))
    assert _same(distances, labels, stage("3", "5"))  # at the same distance
    assert not _same(distances + 1, labels, stage("3", "5"))
    assert not _same(distances, labels, stage("3"))


def test_threads_are_as_before() -> None:
    before = faiss.omp_get_max_threads()
    with threads(before + 1):
        assert faiss.omp_get_max_threads() == before + 1
    assert faiss.omp_get_max_threads() == before


def test_recordings_are_kept(index: StagedIndex, tmp_path: Path) -> None:
    queries = units(30, 1)
    made = record(index, queries, 3, {"kind": "hnsw"}, StagePlan(number=4))
    assert made.about == {"kind": "hnsw", "k": 3}
    for query, stages in zip(queries, made.queries, strict=True):
        assert stages[-1][1] == index.search(query, 3).ids
        times = [elapsed for elapsed, _ in stages]
        assert times == sorted(times)
    save(made, tmp_path / "made.json")
    assert load(tmp_path / "made.json") == made


def test_how_many_first_stages_agree() -> None:
    early: RecordedStages = [(0.1, ("a",)), (0.2, ("a",))]
    late: RecordedStages = [(0.1, ("b",)), (0.2, ("c",)), (0.4, ("c",))]
    both = Recording({}, [early, late])
    assert [both.agreeing(stage) for stage in range(3)] == [0.5, 1, 1]
    assert both.seconds() == pytest.approx(0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_is_built_once(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    monkeypatch.setattr("parts.vector_search.large_indexes.PER_CENTROID", 12)
    real = units(50, 0, 16)
    one, other = (large_index(kind, 1500, real) for _ in range(2))
    assert capsys.readouterr().out.count("built") == 1
    assert one.ntotal == other.ntotal == 1500
    assert StagedIndex(one).search(real[0], 1).distances[0] < 0.5
