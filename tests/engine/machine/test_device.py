"""The device's name, which distinguishes the profiles of machines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragcache_integrations.engine import machine
from ragcache_integrations.engine.machine import device_name


@pytest.fixture
def _no_remembered_name() -> Iterator[None]:
    device_name.cache_clear()
    yield
    device_name.cache_clear()


def test_the_name_does_not_depend_on_the_cores_of_a_thread() -> None:
    """The engine's process binds its threads to cores."""
    script = (
        "import os; from ragcache_integrations.engine.machine import device_name;"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(device_name())"
    )
    bound = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert bound.stdout == device_name() + "\n"


def test_the_name_of_a_cpu(tmp_path: Path) -> None:
    described = tmp_path / "cpuinfo"
    described.write_text("processor\t: 0\nmodel\t\t: 49\nmodel name\t: AMD EPYC 7R32\n\n" * 2)
    assert machine._cpu_name(described) == f"cpu-AMD EPYC 7R32-{os.cpu_count()}"
    described.write_text("processor\t: 0\nCPU part\t: 0xd0c\n")  # as on ARM
    for path in (described, tmp_path / "missing"):
        name = machine._cpu_name(path)
        assert name.startswith("cpu-")
        assert name.endswith(f"-{os.cpu_count()}")
        assert len(name) > len(f"cpu--{os.cpu_count()}")


@pytest.mark.usefixtures("_no_remembered_name")
def test_the_name_of_a_cuda_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for NVIDIA's tool: the tests need no GPU."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\ncase "$*" in\n'
        '"--query-gpu=name --format=csv,noheader --id=1") echo "NVIDIA L4" ;;\n'
        '"--query-gpu=name --format=csv,noheader") echo "NVIDIA A10G"; echo "NVIDIA L4" ;;\n'
        "*) exit 6 ;;\nesac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "computes_on_cpu", lambda: True)
    assert device_name().startswith("cpu-")  # that build of vLLM leaves the GPU alone
    monkeypatch.setattr(machine, "computes_on_cpu", lambda: False)
    for visible, name in {
        "": "NVIDIA A10G",
        "1,0": "NVIDIA L4",
        "none": machine._cpu_name(),
    }.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        device_name.cache_clear()
        assert device_name() == name
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    device_name.cache_clear()
    assert device_name() == machine._cpu_name()
