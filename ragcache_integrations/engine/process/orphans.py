"""Ends an engine whose application has ended, even if the engine's processes are stopped.

The engine's process starts with this file and runs its actual module from here. Before anything is
imported, it asks Linux to be continued when its application ends: importing vLLM takes seconds, and
a process that is stopped meanwhile could not notice the end.
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

    SIGCONT ends a stop and does nothing else. SIGKILL would be wrong: Linux sends the signal when
    the *thread* that started this process ends, and that may be long before the application ends.
    Then another of the application's threads becomes the parent, and so on to the last.
    """
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, int(signal.SIGCONT), 0, 0, 0)


class ApplicationWatch:
    """Watches the application from within the engine's process, in a separate thread.

    The main thread cannot do so while it loads or hangs. When the application has ended, the
    process may shut down; after that, it and the processes that it has started are killed.

    Args:
        connection: Descriptor of the socket whose other end is the application's.
        folder: Folder of temporary files, which is removed at the end.

    Attributes:
        grace_seconds: Seconds that the process has to shut down; 0 while it loads.
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
        # The closed socket shows the end immediately, unless a fork of the application holds a
        # copy of it.
        while os.getppid() == self._parent and not ends.poll(LOOK_SECONDS * 1000):
            pass
        self._signal_all(signal.SIGCONT)  # a stopped process could not shut down
        time.sleep(self.grace_seconds)
        self.end_all()

    def _signal_all(self, number: signal.Signals) -> None:
        if os.getpgrp() == os.getpid():  # the group is the engine's alone
            os.killpg(0, number)


if __name__ == "__main__":
    resume_when_orphaned()
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
