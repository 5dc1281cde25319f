"""The name of the device on which the engine computes."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
from pathlib import Path

from .openmp import computes_on_cpu

__all__ = ["device_name"]

NVIDIA_SMI_SECONDS = 30.0


@functools.cache
def device_name() -> str:
    """The device's name, which distinguishes the profiles of different machines.

    The name of the first visible CUDA device; on a CPU its model and number of logical CPUs. It is
    the same in the application and in the engine's process, even if threads are bound to some
    cores.
    """
    return (None if computes_on_cpu() else _cuda_name()) or _cpu_name()


def _cuda_name() -> str | None:
    """The device's name from NVIDIA's tool; using torch would load it into the application."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(  # noqa: S603 - NVIDIA's own tool
            [*command, *([f"--id={visible}"] if visible else [])],
            check=True,
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return next((line.strip() for line in answer.stdout.splitlines() if line.strip()), None)


def _cpu_name(description: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = description.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    fields = (line.partition(":") for line in lines)
    named = (value.strip() for key, _, value in fields if key.strip() == "model name")
    model = next(named, "") or platform.processor() or platform.machine()
    return f"cpu-{model}-{os.cpu_count()}"
