"""What statements change in a process, each in one of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

FORKING = """
import os, sys
for statement in {statements!r}:
    if not os.fork():
        exec(statement)
        print({shown}, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, statement
"""


def shown_by_each(script: str, statements: Iterable[str], shown: str) -> dict[str, int]:
    """Run a script once, then each statement in a fork.

    Args:
        script: What goes before.
        statements: They leave the others alone.
        shown: The expression whose value each of them shows.
    """
    statements = list(statements)
    forking = FORKING.format(statements=statements, shown=shown)
    command = [sys.executable, "-c", script + forking]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(zip(statements, map(int, run.stdout.split()), strict=True))
