from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ragcache_integrations.cli import command as cli
from ragcache_workbench.evaluation import EvalRun, evaluate_grid
from tests.evaluation.world import Echo, make_retriever


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[EvalRun]:
    knobs: dict[str, Any] = {"sample": 4, "k": 2, "out": tmp_path_factory.mktemp("runs")}
    return evaluate_grid(
        "nq", {"tolerance": [0.0, 1.2]}, retriever=make_retriever, model=Echo(), **knobs
    )


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["report"], ["report", "run", "--nonsense"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 2
        assert "usage: ragcache" in capsys.readouterr().err


def test_errors_are_one_line(
    runs: list[EvalRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report"
    for arguments, words in (
        (["/no/such/run"], "but there is no such folder"),
        ([str(tmp_path)], "has no run"),
        ([str(runs[0].path), "--baseline", str(runs[1].path)], "baseline must be one of the runs"),
    ):
        assert cli.main(["report", *arguments, "--out", str(out)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ragcache: ")
        assert words in line
    assert not out.exists()


def test_a_report_by_command(
    runs: list[EvalRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", str(runs[0].path.parent), "--out", str(tmp_path), "--baseline"]
    assert cli.main([*arguments, str(runs[1].path)]) == 0
    page = tmp_path / "report.html"
    assert capsys.readouterr().out == f"Report: {page}\n"
    assert "Compared with run 1: tolerance=1.2" in page.read_text()
    assert {one.name for one in tmp_path.glob("*.png")} >= {
        "nq-tolerance.png",
        "nq-delay-quality.png",
        "nq-compared-1.png",
        "nq-latencies.png",
    }
    bare = tmp_path / "bare"
    assert cli.main(["report", str(runs[0].path), "--no-images", "--out", str(bare)]) == 0
    assert [one.name for one in bare.iterdir()] == ["report.html"]
