"""A small log of traffic, and what was found about it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from ragcache_workbench.workload_report.report import Findings
from ragcache_workbench.workload_report.run import characterise_workload


def write_log(path: Path, *, repeated: bool) -> Path:
    """Two hundred requests for two documents each, some popular or all different."""
    rng = random.Random(0)
    rows = []
    for number in range(200):
        ids = [int(30 * rng.random() ** 3) for _ in range(2)] if repeated else [number, -number]
        documents = [{"id": f"<b>{one}</b>", "text": f"{one} word" * 80} for one in ids]
        rows.append({"question": f"what about {number}?", "documents": documents})
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("traffic") / "log <i>.jsonl", repeated=True)


@pytest.fixture(scope="session")
def unrepeated_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("traffic") / "new.jsonl", repeated=False)


@pytest.fixture(scope="session")
def findings(log: Path) -> Findings:
    return characterise_workload(log)


@pytest.fixture(scope="session")
def in_vain(unrepeated_log: Path) -> Findings:
    return characterise_workload(unrepeated_log)
