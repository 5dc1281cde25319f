from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ragcache_integrations
from ragcache_integrations import cli
from ragcache_integrations.demo import run as demo_run
from ragcache_integrations.demo.settings import DemoSettings
from ragcache_integrations.errors import EngineStartError


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"ragcache {ragcache_integrations.__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["demo", "--top-k", "many"], ["demo", "x"]]
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: ragcache" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--top-k", "0"], "top_k must be at least 1, got 0"),
        (["--tolerance", "-1"], "tolerance"),
        (["--model", "/no/such/model"], "/no/such/model"),
        (["--report", "/no/such/folder/report.html"], "a folder that exists"),
        (["--report", "/"], "a folder that exists"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", *arguments]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("ragcache: ")
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "status"), [(EngineStartError("no memory"), 2), (KeyboardInterrupt(), 130)]
)
def test_failures(
    raised: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def fail(settings: DemoSettings) -> None:
        raise raised

    monkeypatch.setattr(demo_run, "run_demo", fail)
    assert cli.main(["demo", "--report", str(tmp_path / "report.html")]) == status
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_quick_demo(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    arguments = ["--quick", "--json", "--questions", "24", "--distractors", "2000"]
    command = [sys.executable, "-m", "ragcache_integrations.cli", "demo", *arguments]
    # A process of its own: vLLM, imported in this one, gives warnings, which are errors here.
    run = subprocess.run(
        [*command, "--report", str(report)],
        check=False,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert run.returncode == 0, run.stderr
    out = " ".join(run.stdout.split())
    assert "2,000 generated distractor vectors" in out
    assert str(report) in out
    content = json.loads(run.stdout.splitlines()[-1])
    assert list(content) == ["langchain"]
    before, after = content["langchain"]["before"], content["langchain"]["after"]
    assert before["store_calls"] == 24
    assert after["store_calls"] == 24 - after["hits"] < 24
    assert after["hit_recall"] >= 0.95
    assert before["prompt_tokens"] == after["prompt_tokens"] > 24 * 100
    for side in (before, after):
        assert 0 < side["cached_prompt_tokens"] < side["prompt_tokens"]
        assert side["embedding_ms"] + side["retrieval_ms"] + side["ttft_ms"] > 0
        assert side["ttft_ms"] < side["end_to_end_ms"]
    assert content["langchain"]["ttft_ratio"] > 0
    assert "LangChain" in report.read_text(encoding="utf-8")
