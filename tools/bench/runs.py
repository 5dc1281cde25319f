"""Quick runs of benchmarks that resume: a finished run is kept, an interrupted one begins again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

__all__ = ["Runs", "code_version", "commit", "quick_scripts", "run_quickly"]

ROOT = Path(__file__).parents[2]
CODE = (
    "ragcache_integrations",
    "reader",
    "minilm",
    "benchmarks/*.py",
    "benchmarks/parts",
    "requirements",
)
"""What a benchmark's figures depend on, as patterns for git."""

LAST_LINES = 5
"""Lines of a failed benchmark's output that are shown."""


class FailedRunError(Exception):
    """A benchmark ended without a result."""


@dataclass
class Runs:
    """What the runs of some benchmarks printed.

    Attributes:
        results: Results of each benchmark, one for each run.
        seconds: How long each run took.
        errors: Why a benchmark has no or fewer results.
    """

    results: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def quick_scripts(folder: Path) -> dict[str, Path]:
    """Return the benchmarks of a folder that take ``--quick``, by name."""
    return {
        path.stem: path
        for path in sorted([*folder.glob("*.py"), *folder.glob("servers/*.py")])
        if '"--quick"' in path.read_text(encoding="utf-8")
    }


def code_version() -> str:
    """Return a digest of the code that benchmarks run, as it is now, committed or not."""
    digest = hashlib.blake2b(digest_size=8)
    for command in (("ls-files", "--stage"), ("diff",)):
        digest.update(_git(*command, "--", *CODE))
    return digest.hexdigest()


def commit() -> str:
    """Return the commit that is checked out, ``unknown`` without git."""
    return _git("rev-parse", "--short=12", "HEAD").decode().strip() or "unknown"


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - fixed words
    return done.stdout if done.returncode == 0 else b""


def run_quickly(
    scripts: Mapping[str, Path], folder: Path, *, repeats: int, limit: float, again: bool = False
) -> Runs:
    """Run benchmarks several times each, and keep what they printed.

    All run once before any runs again, so that each is spread over the whole time. A benchmark that
    fails is not repeated, and does not stop the others.

    Args:
        scripts: The benchmarks, by name.
        folder: Where finished runs are kept. Those that are there are not run again.
        repeats: Runs of each.
        limit: Seconds after which a run is killed, with all that it has started.
        again: Forget the runs that are in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if again:
        for path in _kept(folder, scripts):
            path.unlink()
    runs = Runs()
    for number in range(1, repeats + 1):
        for name, script in scripts.items():
            if name in runs.errors:
                continue
            path = folder / f"{name}-{number}.json"
            if path.exists():
                outcome = json.loads(path.read_text(encoding="utf-8"))
                print(f"{name}, run {number} of {repeats}: kept", flush=True)
            else:
                print(f"{name}, run {number} of {repeats} ...", end=" ", flush=True)
                try:
                    outcome = _run(script, limit)
                except FailedRunError as error:
                    runs.errors[name] = str(error)
                    print("failed", flush=True)
                    continue
                _write(path, outcome)
                print(f"{outcome['seconds']:.0f} s", flush=True)
            runs.results.setdefault(name, []).append(outcome["result"])
            runs.seconds.setdefault(name, []).append(outcome["seconds"])
    return runs


def _kept(folder: Path, names: Iterable[str]) -> list[Path]:
    return [path for name in names for path in folder.glob(f"{name}-[0-9]*.json")]


def _write(path: Path, outcome: Mapping[str, Any]) -> None:
    """Write a file at once: one that an interruption cut short would pass for a finished run."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(outcome), encoding="utf-8")
    unfinished.replace(path)


def _run(script: Path, limit: float) -> dict[str, Any]:
    """Run a benchmark once.

    Raises:
        FailedRunError: It failed, took too long, or printed no result; with its last lines.
    """
    began = time.monotonic()
    # Files, not pipes: a process that outlives the benchmark would keep a pipe open.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        status = _wait([sys.executable, str(script), "--quick"], output, errors, limit)
        seconds = time.monotonic() - began
        printed, complaints = _text(output), _text(errors)
    if status:
        lines = [*printed.splitlines(), *complaints.splitlines()][-LAST_LINES:]
        why = f"it took more than {limit:g} s" if status == "late" else f"exit status {status}"
        raise FailedRunError("\n".join([why, *lines]))
    last = printed.rstrip().rpartition("\n")[2]
    try:
        result = json.loads(last)
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise FailedRunError(f"its last line is no JSON object: {last[:200]!r}")
    return {"result": result, "seconds": round(seconds, 1)}


def _wait(command: list[str], output: IO[bytes], errors: IO[bytes], limit: float) -> int | str:
    """Wait for the end of a command; its exit status, or ``late`` if it was killed."""
    with subprocess.Popen(  # noqa: S603 - our own scripts
        command, cwd=ROOT, stdout=output, stderr=errors, start_new_session=True
    ) as process:
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return "late"
        finally:
            if process.returncode is None:
                # Engines and servers that it has started are in its process group.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
