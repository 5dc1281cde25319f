"""Engines of the tests start as forks of a process that has loaded vLLM already.

Loading it takes ten times as long as all else about starting a tiny engine, and the suite starts
more than a hundred. The fork runs the module that :mod:`ragcache_integrations.engine._client`
starts, and is a child of the test's process as that one is. An engine whose environment differs
from the loaded process's, and every one in an application that a test runs, starts as for users.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

__all__ = ["ForkedEngines"]

ENGINE = "ragcache_integrations.engine._process"
LARGEST = 1 << 20
ADOPTED = b"adopted"
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
ALIKE_ANYWAY = {
    *("PYTEST_CURRENT_TEST", "PYTHONPATH"),  # the latter is read again
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"),  # set by torch
}

Start = Callable[[int, int, dict[str, str]], "subprocess.Popen[bytes]"]


class ForkedEngines:
    """Starts engines; the process that has loaded vLLM is there from the first of them on.

    Args:
        environment: Of the process that has loaded vLLM, and of those that are its forks.
        otherwise: Starts those whose environment differs.
    """

    def __init__(self, environment: dict[str, str], otherwise: Start) -> None:
        self._environment = _compared(environment)
        self._otherwise = otherwise
        self._lock = threading.Lock()
        self._loaded: subprocess.Popen[bytes] | None = None
        self._channel, self._theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)

    def __call__(
        self, connection: int, log: int, environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start one; see :func:`ragcache_integrations.engine._client.start_process`."""
        if _compared(environment) != self._environment:
            return self._otherwise(connection, log, environment)
        with self._lock:
            if self._loaded is None:
                self._loaded = subprocess.Popen(
                    [sys.executable, "-P", __file__, str(self._theirs.fileno())],
                    pass_fds=[self._theirs.fileno()],
                    env=environment,
                )
                self._theirs.close()
            _adopt(orphans=True)  # the fork's own parent ends at once
            try:
                said = json.dumps(environment).encode()
                socket.send_fds(self._channel, [said], [connection, log])
                pid = int(self._channel.recv(LARGEST))
                assert self._channel.recv(LARGEST) == ADOPTED
                return Forked(pid)
            finally:
                _adopt(orphans=False)

    def close(self) -> None:
        """End the process that has loaded vLLM."""
        self._channel.close()
        if self._loaded is None:
            self._theirs.close()
        else:
            self._loaded.wait()


def _compared(environment: dict[str, str]) -> dict[str, str]:
    """What vLLM may have read while it was loaded."""
    return {
        name: value
        for name, value in environment.items()
        if name not in ALIKE_ANYWAY and not name.startswith("RAGCACHE_TEST_")
    }


class Forked(subprocess.Popen[bytes]):
    """A child that somebody else started for us.

    Args:
        pid: Its number.
    """

    def __init__(self, pid: int) -> None:  # the one of Popen starts a process
        self.pid = pid
        self.args = ENGINE
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._sigint_wait_secs = 0.25
        self._waitpid_lock = threading.Lock()


def _adopt(*, orphans: bool) -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, int(orphans), 0, 0, 0)


def main() -> None:
    """Load vLLM, and fork for every message."""
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        import ragcache_integrations.engine._vllm  # noqa: F401, PLC0415 - this is the slow part

        while True:
            message, descriptors, _, _ = socket.recv_fds(channel, LARGEST, 2)
            if not message:
                return
            connection, log = descriptors
            middle = os.fork()
            if not middle:
                pid = os.fork()
                if not pid:
                    channel.close()
                    _become_engine(connection, log, json.loads(message))
                channel.send(str(pid).encode())
                os._exit(0)
            os.waitpid(middle, 0)
            channel.send(ADOPTED)
            os.close(connection)
            os.close(log)


def _become_engine(connection: int, log: int, environment: dict[str, str]) -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nowhere, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, place)
    os.close(nowhere)
    os.close(log)
    os.environ.clear()
    os.environ.update(environment)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    sys.argv = [ENGINE, str(connection)]
    runpy.run_module(ENGINE, run_name="__main__", alter_sys=True)  # which exits


if __name__ == "__main__":
    main()
