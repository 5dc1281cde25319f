"""Ends an engine whose application has ended, in whatever state the engine's processes are.

The engine's process starts with this file, not with the module that it is for: nothing is imported
before it has asked Linux to be continued should it be stopped when its application ends. Importing
vLLM takes seconds, and who is stopped then sees no end of anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import select
import shutil
import signal
import threading
import time

__all__ = ["ApplicationWatch", "resume_when_orphaned"]

MODULE = "ragcache_integrations.engine.in_vllm.main"
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h
LOOK_SECONDS = 1.0


def resume_when_orphaned() -> None:
    """Have Linux continue this process when its parent ends.

    SIGCONT ends a stop and does nothing else. SIGKILL would be wrong here: Linux sends the signal
    when the parent's *thread* ends that started this process, and engines may well be started in a
    thread that ends long before its application does. Afterwards the process belongs to another of
    the application's threads, and so on to the last.
    """
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, int(signal.SIGCONT), 0, 0, 0)


class ApplicationWatch:
    """Looks after the application from within the engine's process, in a thread of its own.

    The main thread cannot while it loads or hangs. When the application has ended, the process may
    end in good order; what is left of it and of those that it has started is killed.

    Args:
        connection: Descriptor of the socket whose other end is the application's.
        folder: With temporary files, removed before the end.

    Attributes:
        grace_seconds: How long the process is given to end in good order; nothing at first, while
            it loads.
    """

    def __init__(self, connection: int, folder: str) -> None:
        self.grace_seconds = 0.0
        self._connection = connection
        self._folder = folder
        self._parent = os.getppid()
        threading.Thread(target=self._watch, name="ragcache-application", daemon=True).start()

    def end_all(self) -> None:
        """End every process of the engine, this one included."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._signal_all(signal.SIGKILL)
        os._exit(1)

    def _watch(self) -> None:
        ends = select.poll()
        ends.register(self._connection, select.POLLRDHUP)
        # The closed socket says it at once, unless a fork of the application holds a copy of it.
        while os.getppid() == self._parent and not ends.poll(LOOK_SECONDS * 1000):
            pass
        self._signal_all(signal.SIGCONT)  # who is stopped does not end in good order
        time.sleep(self.grace_seconds)
        self.end_all()

    def _signal_all(self, number: signal.Signals) -> None:
        if os.getpgrp() == os.getpid():  # the group is the engine's alone
            os.killpg(0, number)


if __name__ == "__main__":
    resume_when_orphaned()
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
