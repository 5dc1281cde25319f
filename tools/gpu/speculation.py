"""The speculative pipeline on the 8B shape, with recorded searches: ``benchmarks/speculation.py``.

Everything is that benchmark's; here are only its arguments. Its last line is its JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.gpu.setting import BATCHED_TOKENS, Setting, say

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "speculation.py"
WINDOW = 8192
CONCURRENT = 8
"""Longest requests that the KV cache holds."""
WORDS = 700
"""Of a document: a prefill of two of them then takes about as long as a stage of a search."""


def main() -> None:
    """Run it."""
    setting = Setting.parse(__doc__, seconds=0.0)
    window = 2048 if setting.cpu else WINDOW
    amount = (
        ("--quick",)
        if setting.cpu
        else ("--requests", "5", "--seeds", "1", "--cancellations", "40")
        if setting.quick
        else ("--requests", "8", "--seeds", "2", "--cancellations", "100")
    )
    command = [
        *(sys.executable, str(SCRIPT), "--model", setting.model, "--dummy-weights"),
        *("--dtype", setting.dtype, "--kv-cache-gib", str(setting.gib(CONCURRENT * window))),
        *("--max-model-len", str(window), "--chunk-tokens", str(BATCHED_TOKENS)),
        *("--words", str(WORDS), *amount),
        *("--only", "low load", "saturated"),
        *(() if setting.cpu else ("loads", "--kind", "ivf", "--cuda-graphs")),
    ]
    say(" ".join(command[1:]))
    lines = []
    with subprocess.Popen(  # noqa: S603 - our own script
        command, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        sys.exit(process.returncode)
    result = next(json.loads(line) for line in reversed(lines) if line.startswith("{"))
    print(
        json.dumps(
            setting.about() | {"command": ["benchmarks/speculation.py", *command[4:]]} | result
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
