from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest

import ragcache_integrations
from ragcache_integrations.cli import command as cli
from ragcache_integrations.cli import profile as cli_profile
from ragcache_integrations.engine import RAGCacheEngine
from ragcache_integrations.engine.machine import device_name
from ragcache_integrations.engine.tiny_model import default_model_path
from ragcache_integrations.errors import EngineStartError, MissingExtraError
from ragcache_integrations.knowledge_tree.prefill_cost import (
    PrefillCostModel,
    load_profile,
    profile_path,
)
from ragcache_workbench.demo import run as demo_run
from ragcache_workbench.demo.settings import DemoSettings
from tests.support.programs import run_program


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"ragcache {ragcache_integrations.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["demo", "--top-k", "many"],
        ["demo", "x"],
        ["profile", "one-model", "another"],
        ["profile", "--repeats", "0"],
        ["profile", "--max-tokens", "1"],
        ["profile", "--max-tokens", "many"],
        ["profile", "--kv-cache-gib", "much"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: ragcache" in capsys.readouterr().err


def test_an_unknown_option_is_answered_with_the_command_s_own_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["eval", "nq", "--limit", "3"])
    said = capsys.readouterr().err
    assert "usage: ragcache eval" in said
    assert "--sample N" in said
    assert "ragcache eval: error: unrecognized arguments: --limit 3" in said


class TestOtherDistributions:
    MISSING = (
        ["demo", "--quick"],
        ["cache-report", "log"],
        ["lint", "--help"],
        ["eval"],
        ["report"],
    )

    def fails(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        """The one line that a command says, which the user can put right."""
        assert cli.main(arguments) == 2
        out, said = capsys.readouterr()
        assert not out
        assert said.count("\n") == 1
        return said

    @pytest.mark.parametrize("arguments", [*MISSING, ["profile", "--replicas=2", "--workload=log"]])
    def test_without_the_workbench_a_command_says_how_to_install_it(
        self,
        arguments: list[str],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setattr(cli, "entry_points", lambda **_: ())
        said = self.fails(capsys, *arguments)
        assert f"ragcache {arguments[0]} " in said
        assert "pip install" in said
        assert "minilm" in said
        assert "workbench" in said

    def test_without_the_workbench_the_other_commands_work(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(cli, "entry_points", lambda **_: ())
        measured: list[str] = []
        monkeypatch.setattr(cli_profile, "_profile", lambda options: measured.append(options.model))
        assert cli.main(["profile", "some-model"]) == 0
        assert measured == ["some-model"]
        with pytest.raises(SystemExit):
            cli.main(["profile", "--wrkload", "log"])
        assert "error: unrecognized arguments: --wrkload\n" in capsys.readouterr().err
        assert len(measured) == 1

    def test_a_workbench_of_another_version_says_so_and_breaks_nothing_else(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in [name for name in sys.modules if name.startswith("ragcache_workbench")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(ragcache_integrations, "__version__", "9.9")
        for arguments in (["demo"], ["profile", "--workload", "log"]):
            assert "but 9.9 is installed" in self.fails(capsys, *arguments)
        with pytest.raises(SystemExit) as ended:
            cli.main(["serve", "--help"])
        assert ended.value.code == 0

    @pytest.mark.parametrize(
        ("origin", "words"),
        [
            ({"url": "file:///a%20b", "dir_info": {"editable": True}}, "'/a b/minilm'"),
            (
                {"url": "https://x.org/r", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
                "'ragcache-minilm @ git+https://x.org/r@c0ffee#subdirectory=minilm'",
            ),
            (
                {"url": "https://x.org/r.tar.gz", "archive_info": {}},
                "'ragcache-minilm @ https://x.org/r.tar.gz#subdirectory=minilm'",
            ),
            (
                {"url": "file:///dist/ragcache_integrations-1-py3-none-any.whl"},
                "--find-links /dist ragcache-minilm",
            ),
            (None, "--find-links FOLDER-OF-THE-WHEELS ragcache-minilm"),
        ],
    )
    def test_siblings_are_installed_from_where_the_package_came(
        self, origin: dict[str, object] | None, words: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Installed:
            def read_text(self, _: str) -> str | None:
                return None if origin is None else json.dumps(origin)

        monkeypatch.setattr(metadata, "distribution", lambda _: Installed())
        command = f"pip install {words} 'ragcache-integrations[embeddings]'"
        assert MissingExtraError("It", "embeddings").command == command
        assert "--find-links" not in MissingExtraError("It", "redis").command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--top-k", "0"], "top_k must be a whole number of at least 1, got 0"),
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
def test_demo_failures(
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
def test_a_quick_demo(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    arguments = ["--quick", "--json", "--questions", "20", "--distractors", "2000"]
    with tempfile.TemporaryDirectory() as temporary:  # tmp_path is too long for sockets
        run = run_program(
            *("ragcache_integrations.cli", "demo", *arguments, "--report", str(report)),
            environment=os.environ | {"TMPDIR": temporary},
        )
        assert run.returncode == 0, run.stderr
        # torch makes a folder of its own where it is imported, unless one is set.
        left = [path for path in Path(temporary).iterdir() if "torchinductor" not in path.name]
        assert not left, "nothing is left"
    out = " ".join(run.stdout.split())
    assert "2,000 generated vectors" in out
    assert str(report) in out
    content = json.loads(run.stdout.splitlines()[-1])
    assert list(content) == ["langchain"]
    before, after = content["langchain"]["before"], content["langchain"]["after"]
    assert before["store_calls"] == 20
    assert after["store_calls"] == 20 - after["hits"] < 20
    assert after["hit_recall"] >= 0.95
    assert before["prompt_tokens"] == after["prompt_tokens"] > 20 * 100
    for side in (before, after):
        assert 0 < side["cached_prompt_tokens"] < side["prompt_tokens"]
        assert side["embedding_ms"] + side["retrieval_ms"] + side["ttft_ms"] > 0
        assert side["ttft_ms"] < side["end_to_end_ms"]
    assert content["langchain"]["ttft_ratio"] > 0
    assert "LangChain" in report.read_text(encoding="utf-8")


# ragcache profile


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/no/such/model"], "no model at '/no/such/model'"),
        (["--kv-cache-gib", "-1"], "kv_cache_gib must be a number above 0"),
        (["--output", "/no/such/folder/profile.json"], "a folder that exists"),
        (["--output", "/"], "a folder that exists"),
        (["--output", "/proc/profile.json"], "cannot write to /proc"),
    ],
)
def test_profile_errors_are_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["profile", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ragcache: ")
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "status"), [(EngineStartError("no memory"), 2), (KeyboardInterrupt(), 130)]
)
def test_profile_failures(
    raised: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def fail(*arguments: object, **knobs: object) -> None:
        raise raised

    monkeypatch.setattr(cli_profile, "RAGCacheEngine", fail)
    assert cli.main(["profile", "--output", str(tmp_path / "profile.json")]) == status
    assert "Traceback" not in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def running(engine: RAGCacheEngine, monkeypatch: pytest.MonkeyPatch) -> RAGCacheEngine:
    """The shared engine in place of the one that the command would start."""
    monkeypatch.setattr(cli_profile, "RAGCacheEngine", lambda *_, **__: nullcontext(engine))
    return engine


@pytest.mark.engine
def test_a_profile_is_written_where_it_was_asked_for(
    running: RAGCacheEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    arguments = ["--max-tokens", "300", "--repeats", "1", "--output", "mine.json"]
    assert cli.main(["profile", *arguments]) == 0
    out, error = capsys.readouterr()
    assert "Measuring prefills: 100%" in error
    assert f"Profile: {tmp_path / 'mine.json'}\n" in out
    assert f"Device: {device_name()}\n" in out
    assert "Measuring takes about" in out
    model = PrefillCostModel.load("mine.json")
    assert f"{1000 * model(0, 8):,.1f}" in out
    assert (tmp_path / "mine.json").is_file()
    assert not (tmp_path / "home" / "profiles").exists()


def test_a_profile_is_replaced_only_where_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    path = profile_path(str(default_model_path()), device_name())
    PrefillCostModel.default().save(path)
    before = path.read_bytes()
    assert cli.main(["profile"]) == 2
    assert f"in {path}: measure again with --overwrite" in capsys.readouterr().err
    assert cli.main(["profile", "--output", str(path)]) == 2
    assert path.read_bytes() == before


def test_a_busy_machine_is_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as working:
        try:
            assert cli_profile._busy_cores() >= cli_profile.BUSY_CORES
        finally:
            working.kill()


@pytest.mark.engine
def test_a_cache_folder_that_is_none_is_noticed_before_measuring(
    running: RAGCacheEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "file"))
    requests = running.stats().requests
    assert cli.main(["profile"]) == 2
    assert "set RAGCACHE_HOME to a folder" in capsys.readouterr().err
    assert running.stats().requests == requests


@pytest.mark.engine
def test_a_window_beyond_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profile", "--max-tokens", "20000"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("ragcache: --max-tokens 20000 is no context window of this model: ")
    assert "8192" in error


@pytest.mark.engine
def test_a_whole_profile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = str(default_model_path())
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path))
    # Compiling would take longer than all the rest.
    eager = partial(RAGCacheEngine, vllm_args={"enforce_eager": True})
    monkeypatch.setattr(cli_profile, "RAGCacheEngine", eager)
    arguments = ["--max-tokens", "400", "--repeats", "1", "--kv-cache-gib", "0.25", "--json"]
    assert cli.main(["profile", model, *arguments]) == 0
    out = capsys.readouterr().out
    content = json.loads(out.splitlines()[-1])
    assert content["model"] == model
    stored = load_profile(content["model"], content["device"])
    assert stored is not None
    assert stored == PrefillCostModel.load(content["path"])
    assert stored == PrefillCostModel.from_dict(content["profile"])
    assert stored.new_tokens[-1] == 399
    assert content["device"] == device_name()
    shown = " ".join(out.split())
    for tokens in (*stored.cached_tokens, *stored.new_tokens[-1::-2]):
        assert f" {tokens} " in shown
    assert f"{1000 * stored(0, 399):,.1f}" in shown


def test_a_big_table_is_thinned() -> None:
    model = PrefillCostModel.default()
    assert cli_profile._thinned(model.new_tokens, 6)[-1] == model.new_tokens[-1]
    for count in range(1, 40):
        axis = range(count)
        thin = cli_profile._thinned(axis, 6)
        assert thin[-1] == axis[-1]
        assert min(count, 4) <= len(thin) <= 6
