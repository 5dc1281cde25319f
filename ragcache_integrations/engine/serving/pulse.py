"""Engines that hang: how a server notices, and ends them.

A scheduler lives in the engine's process, where a thread of its own says every so often that the
process lives, and for how long it has been at the present step: a stopped process, or one whose
Python lock is held, falls silent, and one that waits for ever for its device tells so. It says it
in datagrams to the server's API processes on its machine, which need no room on a disk that may be
full.
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

from ragcache_integrations.engine.process import Silence

__all__ = ["Pulse", "PulseWatch"]

LISTENER = ".pulse"
ENGINE = ".engine"
_LONGEST_MESSAGE = 200


class Pulse:
    """One engine's, told from within its process.

    Args:
        folder: Where those who listen have their sockets.
        seconds: Between two messages.
        has_work: Whether there is anything to compute.
    """

    def __init__(self, folder: str, seconds: float, has_work: Callable[[], bool]) -> None:
        self._folder = Path(folder)
        self._seconds = seconds
        self._has_work = has_work
        self._moves = 0
        with contextlib.suppress(OSError):  # it is known once it is heard
            (self._folder / f"{os.getpid()}{ENGINE}").touch()
        threading.Thread(target=self._beat, name="ragcache-pulse", daemon=True).start()

    def moved(self) -> None:
        """Say that a step begins or has ended."""
        self._moves += 1

    def _beat(self) -> None:
        busy, moves = 0.0, -1
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(0)
            while self._folder.is_dir():  # it goes with the server
                time.sleep(self._seconds)
                at_it = moves == self._moves and self._has_work()
                busy, moves = (busy + self._seconds if at_it else 0.0), self._moves
                message = json.dumps([os.getpid(), busy]).encode()
                for listener in self._folder.glob(f"*{LISTENER}"):
                    with contextlib.suppress(OSError):  # it has gone, or is busy itself
                        sender.sendto(message, str(listener))


class _Engine:
    """What one of them said of itself last."""

    def __init__(self, pid: int, interval: float) -> None:
        # Another process may have its number by the time it is to be ended.
        self.handle = os.pidfd_open(pid)
        self.silence = Silence(interval)
        self.heard = 0
        self.busy_seconds = 0.0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)


class PulseWatch:
    """Listens to the engines of this machine.

    Args:
        folder: Where its socket stands.
        interval: Seconds between two calls of :meth:`kill_hung`.
        hang_timeout: Seconds of silence after which an engine counts as hung; ``None`` for no
            limit.
        step_timeout: Seconds that one step may take; ``None`` for no limit.

    Raises:
        OSError: There can be no socket.
    """

    def __init__(
        self,
        folder: str,
        interval: float,
        hang_timeout: float | None,
        step_timeout: float | None,
    ) -> None:
        self._interval = interval
        self._hang_timeout = hang_timeout
        self._step_timeout = step_timeout
        self._engines: dict[int, _Engine] = {}
        self._path = Path(folder) / f"{os.getpid()}{LISTENER}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.settimeout(0)
            self._socket.bind(str(self._path))
        except OSError:
            self._socket.close()
            raise
        for found in Path(folder).glob(f"*{ENGINE}"):
            self._watch(int(found.stem))

    def kill_hung(self) -> list[str]:
        """Read what came, and kill each engine that hangs: vLLM notices its end at once.

        Returns:
            What was wrong with each that was killed.
        """
        self._listen()
        words = []
        for pid, engine in list(self._engines.items()):
            why = self._why_hung(engine)
            if why is not None:
                engine.kill()
                self._forget(pid)
                words.append(f"the engine's process {pid} hung: {why}")
        return words

    def close(self) -> None:
        """Listen no more."""
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
                    engine.heard += 1
                    engine.busy_seconds = busy_seconds

    def _watch(self, pid: int) -> None:
        if pid not in self._engines:
            with contextlib.suppress(OSError):  # it has just gone, or cannot be watched
                self._engines[pid] = _Engine(pid, self._interval)

    def _why_hung(self, engine: _Engine) -> str | None:
        hang, step = self._hang_timeout, self._step_timeout
        if hang is not None and engine.silence.look(engine.heard) > hang:
            return f"no sign of life for {hang:g} s"
        if step is not None and engine.busy_seconds > step:
            return f"one step took more than {step:g} s"
        return None

    def _forget(self, pid: int) -> None:
        os.close(self._engines.pop(pid).handle)
