"""How a server notices engines that hang, and ends them.

The scheduler runs in the engine's process. A separate thread there reports at regular intervals
that the process lives, and how long its current step has taken. A stopped process, or one whose
Python lock is held, falls silent; a process that waits for its device for ever reports a long step.
The reports are datagrams to the server's API processes on the same machine: they need no space on a
disk, which may be full.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ragcache_integrations.engine.process import Silence, why_hung

__all__ = ["Pulse", "PulseWatch"]

LISTENER = ".pulse"
ENGINE = ".engine"
_LONGEST_MESSAGE = 200


class Pulse:
    """Reports that an engine lives, from within its process.

    Args:
        folder: Folder of the sockets to which the reports are sent.
        seconds: Seconds between two reports.
        has_work: Whether there is anything to compute.
    """

    def __init__(self, folder: str, seconds: float, has_work: Callable[[], bool]) -> None:
        self._folder = Path(folder)
        self._seconds = seconds
        self._has_work = has_work
        self._moves = 0
        with contextlib.suppress(OSError):  # the first report makes it known, too
            (self._folder / f"{os.getpid()}{ENGINE}").touch()
        threading.Thread(target=self._beat, name="ragcache-pulse", daemon=True).start()

    def moved(self) -> None:
        """Note that a step begins or has ended."""
        self._moves += 1

    def _beat(self) -> None:
        busy, moves = 0.0, -1
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(0)
            while self._folder.is_dir():  # it is removed when the server ends
                time.sleep(self._seconds)
                same_step = moves == self._moves and self._has_work()
                busy, moves = (busy + self._seconds if same_step else 0.0), self._moves
                message = json.dumps([os.getpid(), busy]).encode()
                for listener in self._folder.glob(f"*{LISTENER}"):
                    with contextlib.suppress(OSError):  # it has gone, or is busy itself
                        sender.sendto(message, str(listener))


class _Engine:
    """The last report of one engine."""

    def __init__(self, pid: int, interval: float) -> None:
        # A handle keeps denoting this process; its id may belong to another by the time we kill it.
        self.handle = os.pidfd_open(pid)
        self.silence = Silence(interval)
        self.messages = 0
        self.busy_seconds = 0.0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)


class PulseWatch:
    """Listens to the engines of this machine.

    Args:
        folder: Folder of its socket, and of those of the other API processes.
        interval: Seconds between two calls of :meth:`kill_hung`.
        hang_timeout: Seconds of silence after which an engine counts as hung; ``None`` for no
            limit.
        step_timeout: Seconds that one step may take; ``None`` for no limit.

    Raises:
        OSError: The socket cannot be made.
    """

    def __init__(
        self,
        folder: str,
        interval: float,
        hang_timeout: float | None,
        step_timeout: float | None,
    ) -> None:
        self._interval = interval
        self._limits = hang_timeout, step_timeout
        self._engines: dict[int, _Engine] = {}
        self._path = Path(folder) / f"{os.getpid()}{LISTENER}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.settimeout(0)
            self._socket.bind(str(self._path))
        except OSError:
            self._socket.close()
            raise
        for engine in Path(folder).glob(f"*{ENGINE}"):
            self._watch(int(engine.stem))

    def kill_hung(self) -> list[str]:
        """Read the reports and kill each engine that hangs; vLLM notices that immediately.

        Returns:
            A message about each engine that was killed.
        """
        self._listen()
        messages = []
        for pid, engine in list(self._engines.items()):
            silent = engine.silence.measure(engine.messages)
            why = why_hung(silent, engine.busy_seconds, *self._limits)
            if why is not None:
                engine.kill()
                self._forget(pid)
                messages.append(f"the engine's process {pid} hung: {why}")
        return messages

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        self._path.unlink(missing_ok=True)
        for pid in list(self._engines):
            self._forget(pid)

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                pid, busy_seconds = json.loads(self._socket.recv(_LONGEST_MESSAGE))
                self._watch(pid)
                if (engine := self._engines.get(pid)) is not None:
                    engine.messages += 1
                    engine.busy_seconds = busy_seconds

    def _watch(self, pid: int) -> None:
        if pid not in self._engines:
            with contextlib.suppress(OSError):  # it has just gone, or cannot be watched
                self._engines[pid] = _Engine(pid, self._interval)

    def _forget(self, pid: int) -> None:
        os.close(self._engines.pop(pid).handle)
