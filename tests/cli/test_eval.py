from __future__ import annotations

import html
import json
import re
import shlex
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from ragcache_integrations.cli import command as cli
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.llms import backend_kinds
from ragcache_workbench.commands import eval as cli_eval
from ragcache_workbench.evaluation import EvalRun
from ragcache_workbench.evaluation.datasets.base import DATASETS
from ragcache_workbench.evaluation.settings import KNOBS
from tests.support.programs import start_program


def test_the_flags_are_knobs() -> None:
    assert {name.replace("-", "_") for name in cli_eval.FLAGS} <= set(KNOBS)
    assert list(cli_eval.DATASETS) == list(DATASETS)


@pytest.mark.parametrize("arguments", [["eval"], ["eval", "nq", "--nonsense"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: ragcache" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sweep", "tau=0.1,0.2"], "unknown knob 'tau': allowed are answer_once"),
        (["--sweep", "tolerance"], "name=value"),
        (["--sweep", "k=1", "--sweep", "k=2"], "k must be given once"),
        (["--sweep", "k=1,2", "--k", "3"], "k must be given once"),
        (["--retriever", "plain", "--set", "retriever=none"], "retriever must be given once"),
        (["--retriever", "plain", "--sweep", "retriever=none"], "retriever must be given once"),
        (["--set", "capacity=ten"], "capacity must be a whole number"),
        (["--set", "policy=mru"], "policy must be one of"),
        (["--sample", "many"], "sample must be a whole number"),
        (["--sample", "0"], "sample must be a whole number of at least 1"),
        (["--rate", "fast"], "rate must be a number"),
        (["--minutes", "5"], "minutes needs a rate"),
        (["--data", "/no/such/folder"], "'/no/such/folder' must be a folder"),
        (["--retriever", "google"], "retriever must be one of cache, plain, none"),
        (["--retriever", "no_such_module:make"], "names no function that can be imported"),
        (["--retriever", "json:nothing"], "names no function that can be imported"),
        (["--retriever", "json:__all__"], "must name a function, got list"),
        (["--model", "/no/such/model"], "no model at '/no/such/model'"),
        (["--prices", "input=1"], "must name input and cached_input"),
        (["--documents", "/no/such/file"], "cannot read /no/such/file"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    assert cli.main(["eval", "nq", "--out", str(out), *arguments]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("ragcache: ")
    assert words in error
    assert not out.exists()


@pytest.mark.parametrize("flag", ["--retriever", "--model"])
def test_a_function_may_be_in_a_file_of_this_folder(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As for the program itself, whose path begins with the folder that it is in.
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in {"", str(tmp_path)}])
    monkeypatch.chdir(tmp_path)
    name = f"part_for_{flag.strip('-')}"
    Path(f"{name}.py").write_text("made = []\n", encoding="utf-8")
    assert cli.main(["eval", "nq", "--out", "runs", flag, f"{name}:made"]) == 2
    assert "must name a function, got list" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["raise SystemExit(1)", "1 / 0", "def f(:"])
def test_a_file_that_fails_is_named_without_a_traceback(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    Path("part_that_fails.py").write_text(source, encoding="utf-8")
    assert cli.main(["eval", "nq", "--out", "runs", "--model", "part_that_fails:made"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ragcache: --model part_that_fails:made names no function that can be")


def test_a_data_set_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", "nqq", "--out", str(tmp_path / "runs")]) == 2
    assert "got 'nqq'; did you mean 'nq'?" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"data": []}', r"^the data set from [\w-]+/file\.json has no questions$"),
        (b"\xff", r"^file\.json is not in its format: byte 0 is not UTF-8\. Expected is entries"),
        (b'{"data": [1', r"it is no JSON at line 1, column 12 \(Expecting"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"data": [3]}', "format: entry 0 must be an object, got 3"),
        (b'{"data": [{"paragraphs": [{"context": "x", "qas": [{}]}]}]}', "'answers' is missing"),
    ],
)
def test_malformed_files_are_told_in_words(
    content: bytes,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.json").write_bytes(content)
    assert cli.main(["eval", "squad", "--data", "file.json", "--out", "runs"]) == 2
    assert re.search(words, capsys.readouterr().err.removeprefix("ragcache: ").strip())


@pytest.mark.engine
def test_a_sweep_by_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Compiling would take longer than all the rest.
    eager = partial(RAGCacheEngine, vllm_args={"enforce_eager": True})
    monkeypatch.setattr(backend_kinds, "RAGCacheEngine", eager)
    arguments = ["--sample", "4", "--workload", "uniform", "--set", "variants=2", "--json"]
    arguments += ["--sweep", "tolerance=0,1.5", "--set", "kv_cache_gib=0.25", "--out"]
    prices = ["--prices", "input=1,cached_input=0.1,search=2"]
    assert cli.main(["eval", "mmlu", *arguments, str(tmp_path), *prices]) == 0
    out, error = capsys.readouterr()
    content = json.loads(out.splitlines()[-1])
    assert len(content) == 2
    none, all_ = content.values()
    assert none["settings"]["tolerance"] == 0
    assert none["figures"]["cache_hits"] == 0
    assert all_["figures"]["cache_hits"] > 0
    assert all_["figures"]["money_saved"] > none["figures"]["money_saved"]
    assert none["quality"] == "mechanics only"
    assert "mechanics only" in out
    assert "MMLU: 100%" in error
    for name in content:
        assert f"Run: {tmp_path / name}\n" in out
    assert f"Report: {tmp_path / 'report.html'}\n" in out
    typed = shlex.join(["ragcache", "eval", "mmlu", *arguments, str(tmp_path), *prices])
    for name in content:
        assert EvalRun.load(tmp_path / name).environment["command"] == typed
    page = (tmp_path / "report.html").read_text()
    assert typed in html.unescape(page.replace("<span>", "").replace("</span>", ""))
    assert "mechanics only" in page
    # The same command reads what is there.
    assert cli.main(["eval", "mmlu", *arguments, str(tmp_path)]) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again == content


SCRIPT = """
import sys
from functools import partial
from ragcache_integrations.cli.command import main
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.llms import backend_kinds

if __name__ == "__main__":
    # Compiling would take longer than all the rest.
    backend_kinds.RAGCacheEngine = partial(RAGCacheEngine, vllm_args={"enforce_eager": True})
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.engine
@pytest.mark.timeout(1500)
def test_killed_it_goes_on_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real engine: the same answers, hits and scores as without a break."""
    script = tmp_path / "eager.py"
    script.write_text(SCRIPT)
    arguments = ["eval", "nq", "--sample", "10", "--k", "2", "--workload", "uniform"]
    arguments += ["--max-tokens", "4", "--checkpoint-seconds", "0"]
    arguments += ["--set", "kv_cache_gib=0.25", "--out"]
    eager = partial(RAGCacheEngine, vllm_args={"enforce_eager": True})
    monkeypatch.setattr(backend_kinds, "RAGCacheEngine", eager)
    assert cli.main([*arguments, str(tmp_path / "whole")]) == 0
    kills = 0
    said = tmp_path / "said"
    for count in (9, 22, None):
        with said.open("wb") as file:
            into = file.fileno()
            process = start_program(script, [*arguments, str(tmp_path / "broken")], into, into)
        try:
            while count is not None and process.poll() is None:
                lines = [part.read_text().count("\n") for part in tmp_path.glob("broken/*/rec*")]
                if sum(lines) >= count:
                    process.kill()
                    kills += 1
                    break
                time.sleep(0.005)
            status = process.wait(600)
        finally:
            process.kill()
            process.wait()
        assert status == (0 if count is None else -signal.SIGKILL), said.read_text()[-3000:]
    assert kills == 2
    whole, broken = (
        EvalRun.load(next((tmp_path / name).glob("nq-*"))) for name in ("whole", "broken")
    )
    assert len(whole.records) == 40
    for name in ("text", "answer", "hit", "distance", "documents", "prompt_tokens"):
        assert [getattr(one, name) for one in broken.records] == [
            getattr(one, name) for one in whole.records
        ]
    assert broken.scores == whole.scores
    assert broken.figures["cache_hits"] == whole.figures["cache_hits"] > 0
    assert len(broken.summary["breaks"]) == 2
    assert {record.session for record in broken.records} == {1, 2, 3}


def test_the_papers_experiments_are_run_in_a_clone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["eval", "qmsum", "--preset", "metis", "--quick", "--seeds", "2"])
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "run python benchmarks/papers/run.py metis qmsum, with the same other options" in line
