"""Whether processes are stopped, from Linux's ``/proc``."""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["is_group_stopped"]

_PROCESSES = Path("/proc")
STOPPED = b"T"  # by a signal; a debugger's is "t"


def is_group_stopped(group: int) -> bool:
    """Whether a process of a process group is stopped, as by SIGSTOP or job control."""
    return any(state == (STOPPED, group) for state in _states())


def _states() -> list[tuple[bytes, int]]:
    """State and process group of each process; empty if the system is not Linux."""
    states = []
    for stat in _PROCESSES.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            # The name before them may hold anything, parentheses included.
            state, _, group, *_ = stat.read_bytes().rpartition(b")")[2].split()
            states.append((state, int(group)))
    return states
