"""The application's end of one life of the engine's process: starting, feeding, reading, ending.

Two daemon threads serve the socket, so that no caller ever waits for it: one writes what was
queued, one hands over what arrives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import logging
import math
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ragcache_integrations.core.forks import make_reentrant_lock
from ragcache_integrations.engine.compiler_caches import compiler_caches
from ragcache_integrations.engine.openmp import openmp_environment
from ragcache_integrations.engine.process import orphans as _orphans
from ragcache_integrations.engine.protocol import (
    EngineSettings,
    FailureKind,
    Heartbeat,
    Ready,
    RequestFailed,
    Shutdown,
    StartFailed,
    Submit,
)
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineClosedError,
    EngineOutOfMemoryError,
    EngineStartError,
    ModelNotFoundError,
)

from .loopback import loopback_environment
from .silence import Silence
from .states import is_group_stopped

__all__ = ["EngineProcess"]

logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_SECONDS = 5.0
LAST_WORDS_BYTES = 4000
MOST_WORDS_BYTES = 16 * 2**20
"""What the engine may log before it is forgotten; only the last of it is ever shown."""
LOOK_SECONDS = 1.0
"""Between two looks at a process that loads."""
STOPPED = (
    "the engine's process {} was stopped for {:g} s while it loaded the model, as by SIGSTOP or "
    "job control, and was ended: start the engine again; if the pause was meant, with a longer "
    "hang_timeout, or None for no limit"
)
LONGEST_SOCKET_FOLDER = 70
"""Bytes: the path of a socket may have 107, and its name has 36."""

_START_ERRORS: dict[FailureKind, type[Exception]] = {
    FailureKind.INVALID: ConfigurationError,
    FailureKind.MODEL_NOT_FOUND: ModelNotFoundError,
    FailureKind.OUT_OF_MEMORY: EngineOutOfMemoryError,
    FailureKind.OTHER: EngineStartError,
}


def environment(folder: str, vllm_args: Mapping[str, Any]) -> dict[str, str]:
    """The engine's environment: ours, with defaults that the user's own settings override.

    Args:
        folder: A private one, for compiled code that cannot be kept safely anywhere else.
        vllm_args: The engine's.
    """
    settings = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **openmp_environment(),
        **loopback_environment(vllm_args),
        **os.environ,
        **compiler_caches(folder),
        # The process itself runs the scheduler: no second hop between it and us.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    package_root = str(Path(__file__).parents[3])
    paths = [package_root, os.environ.get("PYTHONPATH", "")]
    settings["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return settings


def start_process(
    connection: int, log: int, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start Python anew, which loads vLLM.

    Args:
        connection: Descriptor of the socket that it reads messages from.
        log: Descriptor of the file that it writes words to.
        environment: Its own, whole.
    """
    return subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-P", _orphans.__file__, str(connection)],
        pass_fds=[connection],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the application, which then closes us
    )


class EngineProcess:
    """A running engine process.

    Every public method may be called from any thread and returns at once, but for
    :meth:`wait_ready` and :meth:`close`.

    Args:
        settings: What it needs to start.
        deliver: Gets what it says. Called from the reading thread, and from the writing one with
            a request that cannot be sent; must not block.
        tell_end: Called once, from the reading thread and after the last delivery, when it is gone.

    Attributes:
        ended: Set when it is gone after it was ready.
        heard: How many messages came.
        busy_seconds: How long it has been at its present step, as it last said.
        ready_at: When it was ready, by the monotonic clock.
        ended_at: When it was gone.
    """

    def __init__(
        self,
        settings: EngineSettings,
        deliver: Callable[[Any], None],
        tell_end: Callable[[], None],
    ) -> None:
        self._deliver = deliver
        self._tell_end = tell_end
        self.ended = threading.Event()
        self.heard = 0
        self.busy_seconds = 0.0
        self.ready_at = self.ended_at = time.monotonic()
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        # Reentrant, all three: a garbage collection that runs in a thread which holds one of them
        # may end the engine.
        self._closing = make_reentrant_lock()
        self._loading = make_reentrant_lock()
        self._reaping = make_reentrant_lock()
        self._closed = False
        self._close_finished = threading.Event()
        self._killed_because: str | None = None
        self._end = ""
        self._started_words = 0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        # The process shares these flags, and goes on at the beginning when the file was emptied.
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)
        # What vLLM leaves in its temporary folder goes with it.
        self._folder = tempfile.mkdtemp(prefix="ragcache-engine-")
        own = {"TMPDIR": self._folder} if len(self._folder) <= LONGEST_SOCKET_FOLDER else {}
        ours, theirs = socket.socketpair()
        with theirs:
            settled = environment(self._folder, settings.vllm_args) | own
            self._process = start_process(theirs.fileno(), self._log.fileno(), settled)
        self._connection = Connection(ours.detach())
        with contextlib.suppress(OSError):  # it is gone already, as wait_ready will find
            self._connection.send(dataclasses.replace(settings, folder=self._folder))

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def end(self) -> str:
        """How it ended, once it has, with its last words."""
        return self._end

    def owns(self, thread: threading.Thread) -> bool:
        """Whether this is one of the two threads that serve the socket."""
        return thread in self._threads

    def wait_ready(self, timeout: float | None, hang_timeout: float | None) -> Ready:
        """Wait until the model is loaded, then serve.

        Args:
            timeout: Seconds to wait; ``None`` for no limit.
            hang_timeout: Seconds that the process may be stopped meanwhile; ``None`` for no limit.

        Raises:
            EngineStartError: It did not come up, was stopped, or was not ready in time; the process
                is gone.
            ConfigurationError: vLLM refuses an argument; the process is gone.
            EngineClosedError: It was closed meanwhile.
        """
        with self._loading:
            try:
                message = self._first_message(timeout, hang_timeout)
                if isinstance(message, Ready):
                    return self._serve(message)
                kind = _START_ERRORS[message.kind]
                error = kind(f"the engine did not start: {message.message}")
            except (EOFError, OSError):
                error = self._died_starting()
            except EngineStartError as late:
                error = late
        self.close()
        raise error

    def _first_message(
        self, timeout: float | None, hang_timeout: float | None
    ) -> Ready | StartFailed:
        """What the process says when it has loaded the model.

        Raises:
            EOFError: It has ended, which its socket does not say while a child of it has a copy.
            EngineStartError: It was stopped for too long, or its time is over.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        tick = LOOK_SECONDS if hang_timeout is None else min(LOOK_SECONDS, hang_timeout / 4)
        silence, looks_alive = Silence(tick), 0
        while (left := deadline - time.monotonic()) > 0:
            ended = self._has_ended()
            if self._connection.poll(0 if ended else min(left, tick)):
                message: Ready | StartFailed = self._connection.recv()
                return message
            if ended:
                raise EOFError
            looks_alive += not is_group_stopped(self.pid)
            if hang_timeout is not None and silence.look(looks_alive) > hang_timeout:
                raise EngineStartError(STOPPED.format(self.pid, hang_timeout))
        msg = f"the engine was not ready after {timeout:g} s: startup_timeout allows for more"
        raise EngineStartError(msg)

    def _has_ended(self) -> bool:
        """Whether the process has; not yet reaped, its number still names it and its group.

        Raises:
            ChildProcessError: It was reaped already, perhaps by the application.
        """
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _serve(self, ready: Ready) -> Ready:
        with self._closing:
            if self._closed:
                msg = "the engine was closed while it started"
                raise EngineClosedError(msg)
            self.ready_at = time.monotonic()
            self._started_words = os.fstat(self._log.fileno()).st_size
            for work in (self._read, self._write):
                name = f"ragcache-engine-{self.pid}{work.__name__}"
                self._threads.append(threading.Thread(target=work, name=name, daemon=True))
                self._threads[-1].start()
        return ready

    def _died_starting(self) -> Exception:
        if self._closed:
            return EngineClosedError("the engine was closed while it started")
        status = self._reap(SHUTDOWN_GRACE_SECONDS)
        what = f"the engine's process ended while starting ({_exit_words(status)})"
        if status == -signal.SIGKILL:
            return EngineOutOfMemoryError(
                f"{what}; the system kills a process so when it runs out of memory: take a smaller "
                "model, kv_cache_gib or max_model_len. If somebody killed it, start it again"
            )
        return EngineStartError(what + self._last_words())

    def _last_words(self) -> str:
        """The end of what the engine logged, in its start or after it; often nothing."""
        try:
            log = self._log.fileno()
            start = max(self._started_words, os.fstat(log).st_size - LAST_WORDS_BYTES)
            words = os.pread(log, LAST_WORDS_BYTES, start).decode(errors="replace").strip()
        except (OSError, ValueError):  # closed meanwhile: nobody asks any more
            return ""
        return f"; its last words:\n{words}" if words else ""

    def _forget_words(self) -> None:
        """Empty the log if it has grown too long."""
        log = self._log.fileno()
        if os.fstat(log).st_size > MOST_WORDS_BYTES:
            os.ftruncate(log, 0)
            self._started_words = 0

    def send(self, message: object) -> None:
        """Queue a message for the process."""
        self._outbox.put(message)

    def kill(self, because: str) -> None:
        """End it at once.

        Args:
            because: What it did wrong, in words that follow "the engine's process ended
                unexpectedly".
        """
        if self._process.returncode is None:
            self._killed_because = because
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._connection.send(message)
            except OSError:
                return  # the reading thread sees the same, and tells
            except Exception as error:  # it cannot be pickled: none of it was written
                if not isinstance(message, Submit):
                    raise
                words = f"it cannot be sent to the engine's process: {error!r}"
                number, attempt = message.request_id, message.attempt
                self._deliver(RequestFailed(number, FailureKind.INVALID, words, attempt))

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._connection.recv()
                self.heard += 1
                if isinstance(message, Heartbeat):
                    self.busy_seconds = message.busy_seconds
                    self._forget_words()
                else:
                    self._deliver(message)
        words = _exit_words(self._reap(SHUTDOWN_GRACE_SECONDS))
        self._end = f"({self._killed_because or words}){self._last_words()}"
        self.ended_at = time.monotonic()
        self._outbox.put(None)
        self.ended.set()
        self._tell_end()

    def _reap(self, grace: float) -> int:
        """Wait for the process, end it where it outlives ``grace`` seconds, and its children.

        Returns:
            Its exit status, negative for a signal.
        """
        with self._reaping:
            if self._process.returncode is None:
                deadline = time.monotonic() + grace
                with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
                    while not self._has_ended() and time.monotonic() < deadline:
                        time.sleep(0.01)
                    os.killpg(self.pid, signal.SIGKILL)
            status = self._process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)
            return status

    def close(self) -> None:
        """End the process and wait for it. Idempotent."""
        with self._closing:
            first, self._closed = not self._closed, True
        if not first:  # another thread is at it: it is done when we return, too
            self._close_finished.wait(2 * SHUTDOWN_GRACE_SECONDS)
            return
        self._outbox.put(Shutdown())
        self._outbox.put(None)
        self._reap(SHUTDOWN_GRACE_SECONDS if self._threads else 0)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        with self._loading:  # whoever waits for it to start has seen that it is gone
            self._connection.close()
            self._log.close()
        self._close_finished.set()


def _exit_words(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
