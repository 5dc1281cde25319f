from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from papers import run

from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.llms import backend_kinds


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["proximty", "nq"], "did you mean 'proximity'?"),
        (["metis", "mmlu"], "the data set of metis must be one of nq, qmsum, squad"),
        (["proximity", "nq", "--set", "tolerance=0.2"], "decides tolerance itself"),
        (["proximity", "nq", "--retriever", "plain"], "decides retriever itself"),
        (["metis", "nq", "--k", "3"], "decides k itself"),
        (["metis", "nq", "--seed", "3"], "decides seed itself"),
        (["proximity", "nq", "--sample", "100000"], "sample must be from 1 to"),
        (["proximity", "nq", "--seeds", "0"], "seeds must be a whole number"),
        (["ragcache", "nq", "--rate", "fast"], "rate must be a number"),
        (
            ["metis", "nq", "--retriever", "plain", "--set", "retriever=none"],
            "retriever must be given once",
        ),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    assert run.main([*arguments, "--out", str(out)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("run.py: ")
    assert words in error
    assert not out.exists()


def test_a_dry_run_lists_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    arguments = ["prompt-cache", "qmsum", "--dry-run", "--full", "--seeds", "2"]
    assert run.main([*arguments, "--out", str(out)]) == 0
    first, *runs = capsys.readouterr().out.splitlines()
    assert "on qmsum, full form: 14 runs" in first
    assert len(runs) == 14
    assert "16 link tokens, first document exact: seed=1" in runs[-1]
    assert not out.exists()


@pytest.mark.engine
def test_proximity_by_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Compiling would take longer than all the rest.
    eager = partial(RAGCacheEngine, vllm_args={"enforce_eager": True})
    monkeypatch.setattr(backend_kinds, "RAGCacheEngine", eager)
    arguments = ["proximity", "mmlu", "--sample", "2", "--k", "2"]
    arguments += ["--set", "kv_cache_gib=0.25", "--out", str(tmp_path)]
    assert run.main(arguments) == 0
    out = capsys.readouterr().out
    content = json.loads(out.splitlines()[-1])
    assert content["preset"] == "proximity"
    assert content["runs"] == 14
    assert content["questions"] == 8
    assert content["quality_is"] == "mechanics only"
    best = content["headline"]["uniform"]
    assert best["searches_saved"][0] > 0
    assert "14 runs, one after another" in out
    for words in ("mechanics only", "up to 59 %", "77.2 % (PubMedQA)", "§1"):
        assert words in out.replace("\n", " ")
    assert (tmp_path / "report.html").is_file()
    (page,) = tmp_path.glob("*.md")
    assert page.name.startswith("proximity-mmlu-quick-k=2-kv_cache_gib=0.25-sample=2-")
    # The same command reads what is there.
    assert run.main(arguments) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == content
    assert list(tmp_path.glob("*.md")) == [page]
    assert list(tmp_path.glob("*.json")) == [page.with_suffix(".json")]
