"""Processes of the tests that need vLLM start as forks of one that has loaded it already.

Loading it takes ten times as long as all else about starting a tiny engine, and the suite starts
more than a hundred. A fork runs the module that would have been run, with the same arguments, and
is a child of the test's process as that one would have been. What an application that a test runs
starts by itself starts as for users.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from importlib import import_module

from ragcache_integrations.engine.in_vllm.garbage import kept_without_collecting

__all__ = ["ALIKE_ANYWAY", "Forks", "engine_forks"]

ENGINE = "ragcache_integrations.engine.in_vllm.main"
LARGEST = 1 << 20
ADOPTED = b"adopted"
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
ALIKE_ANYWAY = {
    *("PYTEST_CURRENT_TEST", "PYTHONPATH", "TMPDIR"),  # the last two are read again
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"),  # set by torch
}
"""Variables that make no difference to a process that has loaded vLLM."""

StartEngine = Callable[[int, int, dict[str, str]], "subprocess.Popen[bytes]"]


class Forks:
    """Starts processes; the one that has loaded everything is there from the first of them on.

    Args:
        load: The module that is loaded beforehand.
        environment: Of the process that has loaded it. A fork's own is set too late for what is
            read while loading; :meth:`suits` says which makes no difference.
    """

    def __init__(self, load: str, environment: dict[str, str]) -> None:
        self._load = load
        self._environment = environment
        self._lock = threading.Lock()
        self._loaded: subprocess.Popen[bytes] | None = None
        self._channel, self._theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)

    def suits(self, environment: dict[str, str]) -> bool:
        """Whether loading would have gone alike in this environment."""
        return _compared(environment) == _compared(self._environment)

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: dict[str, str],
        *,
        output: tuple[int, int],
        connection: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run a module as a program, in a session of its own.

        Args:
            module: Its name.
            arguments: What it is given.
            environment: Its own, whole.
            output: Descriptors of its standard output and error.
            connection: A descriptor that it takes over, whose number is its last argument.
        """
        said = {"module": module, "arguments": list(arguments), "environment": environment}
        given = [*output, *([] if connection is None else [connection])]
        with self._lock:
            if self._loaded is None:
                self._loaded = subprocess.Popen(
                    [sys.executable, "-P", __file__, str(self._theirs.fileno()), self._load],
                    pass_fds=[self._theirs.fileno()],
                    env=self._environment,
                )
                self._theirs.close()
            _adopt(orphans=True)  # the fork's own parent ends at once
            try:
                socket.send_fds(self._channel, [json.dumps(said).encode()], given)
                pid = int(self._channel.recv(LARGEST))
                assert self._channel.recv(LARGEST) == ADOPTED
                return Forked(pid, module)
            finally:
                _adopt(orphans=False)

    def close(self) -> None:
        """End the process that has loaded everything."""
        self._channel.close()
        if self._loaded is None:
            self._theirs.close()
        else:
            self._loaded.wait()


def engine_forks(forks: Forks, otherwise: StartEngine) -> StartEngine:
    """What stands in for :func:`ragcache_integrations.engine.process.client.start_process`.

    Args:
        forks: Start the engines.
        otherwise: Starts those whose environment differs.
    """

    def start(connection: int, log: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        if not forks.suits(environment):
            return otherwise(connection, log, environment)
        return forks.start(ENGINE, (), environment, output=(log, log), connection=connection)

    return start


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
        args: What it runs.
    """

    def __init__(self, pid: int, args: str) -> None:  # the one of Popen starts a process
        self.pid = pid
        self.args = args
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._sigint_wait_secs = 0.25
        self._waitpid_lock = threading.Lock()


def _adopt(*, orphans: bool) -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, int(orphans), 0, 0, 0)


def main() -> None:
    """Load, and fork for every message."""
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        with kept_without_collecting():
            import_module(sys.argv[2])  # this is the slow part
        while True:
            message, descriptors, _, _ = socket.recv_fds(channel, LARGEST, 3)
            if not message:
                return
            middle = os.fork()
            if not middle:
                pid = os.fork()
                if not pid:
                    channel.close()
                    _become(descriptors, **json.loads(message))
                channel.send(str(pid).encode())
                os._exit(0)
            os.waitpid(middle, 0)
            channel.send(ADOPTED)
            for descriptor in descriptors:
                os.close(descriptor)


def _become(
    descriptors: list[int], module: str, arguments: list[str], environment: dict[str, str]
) -> None:
    os.setsid()
    out, err, *connection = descriptors
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nowhere, 0), (out, 1), (err, 2)):
        os.dup2(descriptor, place)
    for descriptor in (nowhere, out, err):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    tempfile.tempdir = None
    sys.argv = [module, *arguments, *map(str, connection)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    main()
