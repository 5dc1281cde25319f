"""Processes of the tests that need vLLM start as forks of one that has loaded it already.

Loading it takes ten times as long as all else about starting a tiny engine, and the suite starts
more than a hundred. A fork runs the program that would have been run, with the same arguments, and
is a child of the test's process as that one would have been. The engines of such a program are
forks, too, and its children.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from multiprocessing import context
from pathlib import Path
from typing import ClassVar, NoReturn, Self

from ragcache_integrations.engine.in_vllm.main import kept_without_collecting
from ragcache_integrations.engine.process import client
from ragcache_integrations.engine.serving import launch

__all__ = [
    "ALIKE_ANYWAY",
    "LOADED",
    "SERVER_LOADED",
    "Forks",
    "close_forks",
    "engine_forks",
    "forks",
]

ENGINE = "ragcache_integrations.engine.in_vllm.main"
LOADED = "tests.support.loaded"
SERVER_LOADED = "tests.support.server_loaded"
LARGEST = 1 << 20
ADOPTED = b"adopted"
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h
ALIKE_ANYWAY = {
    *("PYTEST_CURRENT_TEST", "PYTHONPATH", "TMPDIR"),  # the last two are read again
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"),  # set by torch
    "JPY_PARENT_PID",  # of a notebook
}
"""Variables that make no difference to a process that has loaded vLLM."""

StartEngine = Callable[[int, int, dict[str, str]], "subprocess.Popen[bytes]"]


class Forks:
    """Starts processes; the one that has loaded everything is there from the first of them on.

    Args:
        load: The module that is loaded beforehand.
        environment: Of the process that has loaded it. A fork's own is set too late for what is
            read while loading; :meth:`suits` says which makes no difference.
        defaults: Names of variables that programs set themselves before they load vLLM.

    Attributes:
        allowed: Whether any may be started now.
    """

    allowed: ClassVar[bool] = True

    def __init__(
        self, load: str, environment: Mapping[str, str], defaults: frozenset[str] = frozenset()
    ) -> None:
        self._load = load
        self._environment = dict(environment)
        self._defaults = defaults
        self._lock = threading.Lock()
        self._loaded: subprocess.Popen[bytes] | None = None
        self._channel, self._theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)

    @classmethod
    def of_this_process(cls, environment: Mapping[str, str], defaults: frozenset[str]) -> Self:
        """Fork this process as it is; what is started later is a fork of that one."""
        made = cls("", environment, defaults)
        pid = os.fork()
        if not pid:
            made._channel.close()
            os.setsid()
            _let_go_of_output()
            serve(made._theirs, made._environment, defaults)
            os._exit(0)
        made._theirs.close()
        made._loaded = Forked(pid, "")
        return made

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether loading would have gone alike in this environment."""
        names = environment.keys() | self._environment.keys()
        return all(
            environment.get(name) == self._environment.get(name)
            or (name in self._defaults and name not in environment)
            for name in names - ALIKE_ANYWAY
            if not name.startswith("RAGCACHE_")  # ours are read where they are used
        )

    def check(self) -> None:
        """Fail where no test may start any."""
        assert self.allowed, "a test that needs vLLM has the marker `engine`"

    def start(
        self,
        program: str | Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        output: tuple[int, int],
        folder: str | os.PathLike[str] | None = None,
        connection: int | None = None,
        starts_engines: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Run a program in a session of its own, without standard input.

        Args:
            program: The name of a module, or the path of a script.
            arguments: What it is given.
            environment: Its own, whole.
            output: Descriptors of its standard output and error.
            folder: Its working directory; ours where ``None``.
            connection: A descriptor that it takes over, whose number is its last argument.
            starts_engines: Whether it has a child from which its engines are forked.
        """
        self.check()
        message = {
            "program": str(program),
            "is_script": isinstance(program, Path),
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": os.fspath(folder or Path.cwd()),
            "starts_engines": starts_engines,
        }
        descriptors = [*output, *([] if connection is None else [connection])]
        with self._lock:
            if self._loaded is None:
                self._loaded = subprocess.Popen(
                    [
                        *(sys.executable, "-P", __file__),
                        *(str(self._theirs.fileno()), self._load, *self._defaults),
                    ],
                    pass_fds=[self._theirs.fileno()],
                    env=self._environment,
                    start_new_session=True,
                )
                self._theirs.close()
            _adopt(orphans=True)  # the fork's own parent ends at once
            try:
                socket.send_fds(self._channel, [json.dumps(message).encode()], descriptors)
                pid = int(self._channel.recv(LARGEST))
                assert self._channel.recv(LARGEST) == ADOPTED
                _wait_for_session(pid)
                return Forked(pid, str(program))
            finally:
                _adopt(orphans=False)

    def close(self) -> None:
        """End the process that has loaded everything."""
        self._channel.close()
        if self._loaded is None:
            self._theirs.close()
        else:
            self._loaded.wait()


@functools.cache
def forks(load: str = LOADED) -> Forks:
    """The forks of this test process, by the module that is loaded beforehand.

    To be called when the tests are imported: that sets variables, as importing vLLM does.
    """
    whole = launch._environment() | client.environment(tempfile.gettempdir(), {})
    return Forks(load, whole, frozenset(whole.keys() - os.environ.keys()))


def _wait_for_session(pid: int) -> None:
    """Wait until a fork is in a session of its own, as its first act.

    Before that its group is another one, and whoever asks for its group to end it, as Jupyter does
    with its kernels, would end all of these processes.
    """
    with contextlib.suppress(ProcessLookupError):  # it has ended
        while os.getpgid(pid) != pid:
            time.sleep(0.001)


def close_forks() -> None:
    """End those that have loaded everything."""
    for load in (LOADED, SERVER_LOADED):
        forks(load).close()


def engine_forks(forks: Callable[[], Forks], otherwise: StartEngine) -> StartEngine:
    """What stands in for :func:`ragcache_integrations.engine.process.client.start_process`.

    Args:
        forks: Gives what starts the engines.
        otherwise: Starts those whose environment differs.
    """

    def start(connection: int, log: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        forks().check()
        if not forks().suits(environment):
            return otherwise(connection, log, environment)
        return forks().start(ENGINE, (), environment, output=(log, log), connection=connection)

    return start


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


def serve(channel: socket.socket, environment: Mapping[str, str], defaults: frozenset[str]) -> None:
    """Fork for every message.

    Args:
        channel: Where messages come from.
        environment: As for :class:`Forks`.
        defaults: Likewise.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, LARGEST, 3)
        if not message:
            return
        middle = os.fork()
        if not middle:
            pid = os.fork()
            if not pid:
                channel.close()
                _become(descriptors, environment, defaults, **json.loads(message))
            channel.send(str(pid).encode())
            os._exit(0)
        os.waitpid(middle, 0)
        channel.send(ADOPTED)
        for descriptor in descriptors:
            os.close(descriptor)


def main() -> None:
    """Load, and fork for every message."""
    environment = dict(os.environ)
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        with kept_without_collecting():
            import_module(sys.argv[2])  # this is the slow part
        serve(channel, environment, frozenset(sys.argv[3:]))
    os._exit(0)  # taking all that apart lasts


def _become(
    descriptors: list[int],
    loaded_in: Mapping[str, str],
    defaults: frozenset[str],
    *,
    program: str,
    is_script: bool,
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
    starts_engines: bool,
) -> None:
    os.setsid()
    out, err, *connection = descriptors
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nowhere, 0), (out, 1), (err, 2)):
        os.dup2(descriptor, place)
    for descriptor in (nowhere, out, err):
        os.close(descriptor)
    os.chdir(folder)
    if starts_engines:
        # They are forks of what it is now, without anything that is its own.
        own = Forks.of_this_process(loaded_in, defaults)
        vars(client).update(start_process=engine_forks(lambda: own, client.start_process))
    if program != ENGINE:
        # vLLM starts a server's processes anew on CPUs, which loads everything twice more. Here
        # they are forks, too, as they are on GPUs. Private; vLLM names the way itself, so that
        # choosing one in public changes nothing.
        ways = vars(context)["_concrete_contexts"]
        ways["spawn"] = ways["fork"]
    os.environ.clear()
    os.environ.update(environment)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    tempfile.tempdir = None
    sys.argv = [program, *arguments, *map(str, connection)]
    try:
        if is_script:
            sys.path.insert(0, str(Path(program).parent))
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except BaseException as error:
        _end(error)
    _end(SystemExit())


def _end(error: BaseException) -> NoReturn:
    """End as the interpreter does, but leave it to Linux to take vLLM apart, which lasts."""
    status = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif not isinstance(status, int | None):
        sys.stderr.write(f"{status}\n")
        status = 1
    vars(threading)["_shutdown"]()
    vars(atexit)["_run_exitfuncs"]()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(status or 0))


def _let_go_of_output() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for place in (1, 2):
        os.dup2(nowhere, place)
    os.close(nowhere)


if __name__ == "__main__":
    main()
