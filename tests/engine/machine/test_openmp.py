from __future__ import annotations

from pathlib import Path

import pytest

from ragcache_integrations.engine.machine import openmp_environment, physical_cores


def test_one_logical_cpu_of_every_core(tmp_path: Path) -> None:
    for cpu, siblings in {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"}.items():
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert physical_cores({0, 1, 4, 5}, tmp_path) == [0, 1]
    assert physical_cores({4, 5}, tmp_path) == [4, 5]
    assert physical_cores({5, 7, 1}, tmp_path) == [1, 7]


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_PLACES", "cores")
    assert "GOMP_CPU_AFFINITY" not in openmp_environment()
    monkeypatch.delenv("OMP_PLACES")
    settings = openmp_environment()
    assert len(settings["GOMP_CPU_AFFINITY"].split()) == int(settings["OMP_NUM_THREADS"])
