"""Ends an interrupted process in time, also while its main thread cannot.

Python turns Ctrl-C into an exception of the main thread. That thread may be in compiled code or
wait for other threads, a library may catch the exception, and taking torch apart at the end takes
seconds. So a thread of ours waits for the signal, too: it leaves the main thread a while to write
down what is done and to close what is open, and then ends the process and all that it has started.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import NoReturn

__all__ = [
    "INTERRUPTED",
    "Deadline",
    "deadline",
    "end_process",
    "remove_when_ended",
]

INTERRUPTED = 128 + signal.SIGINT
"""Exit status, as shells have it."""

GRACE_SECONDS = 1.0
"""Seconds that the main thread has to end the process in its own way."""

KILLS = 10
"""The most times that processes are killed: one may start another meanwhile."""
KILL_SECONDS = 0.01
STANDARD_ERROR = 2

_folders: set[str] = set()


class Deadline:
    """Ends this process :data:`GRACE_SECONDS` after it was interrupted.

    Its thread runs from the beginning, because a signal handler must start none: the code that it
    interrupts may hold the lock that starting a thread takes.

    Attributes:
        begun: Set when it has begun.
        status: The exit status, once it has begun; ``None`` before that.
    """

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.status: int | None = None
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)  # as a wakeup descriptor must be
        threading.Thread(target=self._wait, name="ragcache-deadline", daemon=True).start()
        # A child has the signal's handler and our pipe, but its Ctrl-C is not ours.
        os.register_at_fork(after_in_child=self.unwatch)

    def watch(self) -> None:
        """Begin with the next SIGINT, even if no Python code runs then. In the main thread only."""
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)

    def unwatch(self) -> None:
        """Leave SIGINT to its handler, which may call :meth:`begin`. In the main thread only."""
        signal.set_wakeup_fd(-1)

    def begin(self, status: int) -> None:
        """Begin now. May be called from a signal handler.

        Args:
            status: Exit status if the process has not ended in time.
        """
        self.status = status
        with contextlib.suppress(BlockingIOError):
            os.write(self._writing, bytes([signal.SIGINT]))

    def _wait(self) -> None:
        # Signals that have other handlers are noted, too.
        while signal.SIGINT not in os.read(self._reading, 100):
            pass
        self.status = INTERRUPTED if self.status is None else self.status
        self.begun.set()
        time.sleep(GRACE_SECONDS)
        with contextlib.suppress(OSError):
            os.write(STANDARD_ERROR, b"\n")  # below a progress bar that is left unfinished
        end_process(self.status)


@functools.cache
def deadline() -> Deadline:
    """The deadline of this process."""
    return Deadline()


def remove_when_ended(folder: str | os.PathLike[str]) -> None:
    """Let :func:`end_process` remove a folder of temporary files, if it is still there."""
    _folders.add(os.fspath(folder))


def end_process(status: int) -> NoReturn:
    """End this process now, with all processes that it has started, whose files are removed.

    Args:
        status: The exit status.
    """
    for _ in range(KILLS):
        running = _descendants(os.getpid())
        for pid in running:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not running:
            break
        time.sleep(KILL_SECONDS)
    for folder in _folders:
        shutil.rmtree(folder, ignore_errors=True)
    if threading.current_thread() is threading.main_thread():  # which may hold the streams' locks
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    os._exit(status)


def _descendants(ancestor: int) -> list[int]:
    """The ids of the running processes that a process, or one of these, has started."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in {"Z", "X"}:
                children[int(parent)].append(int(path.parent.name))
    found = [ancestor]
    for pid in found:  # which grows meanwhile
        found += children[pid]
    return found[1:]
