"""The application's side of one engine process: it starts, feeds, reads and ends the process.

Two daemon threads serve the socket, so that no caller ever waits for it: one writes the queued
messages, the other delivers the messages that arrive. The ports that torch opens in the engine's
process are kept to this machine.
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
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ragcache_integrations.core.forks import make_reentrant_lock
from ragcache_integrations.core.interrupts import remove_when_ended
from ragcache_integrations.engine.machine import compiler_caches, openmp_environment
from ragcache_integrations.engine.process import orphans as _orphans
from ragcache_integrations.engine.protocol import (
    START_ERRORS,
    EngineSettings,
    FailureKind,
    Heartbeat,
    Ready,
    RequestFailed,
    Shutdown,
    StartFailed,
    Submit,
)
from ragcache_integrations.errors import EngineClosedError, EngineOutOfMemoryError, EngineStartError

__all__ = [
    "EngineProcess",
    "Silence",
    "is_group_stopped",
    "loopback_environment",
    "why_hung",
]

logger = logging.getLogger(__name__)


_LOOPBACKS = ("lo", "lo0")
# With one of these the engine's workers may be on several machines.
_SEVERAL_MACHINES = (
    *("distributed_executor_backend", "nnodes", "node_rank", "master_addr"),
    *("data_parallel_address", "data_parallel_backend"),
)


def loopback_environment(vllm_args: Mapping[str, Any]) -> dict[str, str]:
    """Environment variables for the engine; those that are set already take precedence.

    Gloo, which connects torch's process groups, listens on a port for each group, even of a single
    process. It takes the address that the machine's name resolves to, which others can often reach.

    Args:
        vllm_args: The engine's arguments for vLLM. Nothing is set if they may spread it over
            several machines.
    """
    if any(name in vllm_args for name in _SEVERAL_MACHINES):
        return {}
    interfaces = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in _LOOPBACKS if name in interfaces), None)
    return {} if loopback is None else {"GLOO_SOCKET_IFNAME": loopback}


_PROCESSES = Path("/proc")
STOPPED_STATE = b"T"  # by a signal; a debugger's is "t"


def is_group_stopped(group: int) -> bool:
    """Whether a process of a process group is stopped, as by SIGSTOP or job control.

    ``False`` if the system is not Linux.
    """
    for stat in _PROCESSES.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            # The name before them may hold anything, parentheses included.
            state, _, owner, *_ = stat.read_bytes().rpartition(b")")[2].split()
            if state == STOPPED_STATE and int(owner) == group:
                return True
    return False


class Silence:
    """Measures how long no message has come, by counts that are taken at regular intervals.

    If this very process was stopped, it could take no counts and receive nothing. So no interval
    between two measurements counts for more than twice its planned length.

    Args:
        interval: Planned seconds between two measurements.
    """

    def __init__(self, interval: float) -> None:
        self._longest = 2 * interval
        self._messages = -1
        self._measured_at = time.monotonic()
        self._seconds = 0.0

    def measure(self, messages: int) -> float:
        """Take a measurement.

        Args:
            messages: How many messages have come in total.

        Returns:
            Seconds since the measurement that saw the last new message.
        """
        now = time.monotonic()
        passed = min(now - self._measured_at, self._longest)
        self._seconds = self._seconds + passed if messages == self._messages else 0.0
        self._messages, self._measured_at = messages, now
        return self._seconds


def why_hung(
    silent: float, busy: float, hang_timeout: float | None, step_timeout: float | None
) -> str | None:
    """Why a process counts as hung; ``None`` if it does not.

    Args:
        silent: Seconds since its last sign of life.
        busy: Seconds that it has spent in its current step.
        hang_timeout: Seconds of silence that are allowed; ``None`` for no limit.
        step_timeout: Seconds that one step may take; ``None`` for no limit.
    """
    if hang_timeout is not None and silent > hang_timeout:
        return f"no sign of life for {hang_timeout:g} s"
    if step_timeout is not None and busy > step_timeout:
        return f"one step took more than {step_timeout:g} s"
    return None


SHUTDOWN_GRACE_SECONDS = 5.0
LAST_WORDS_BYTES = 4000
MOST_WORDS_BYTES = 16 * 2**20
"""Size of the log at which it is emptied; only its end is ever shown."""
LOOK_SECONDS = 1.0
"""Seconds between two checks of a process that loads."""
SLOW_START_SECONDS = 15.0
"""Seconds from the start of a process after which a user who waits hears why."""
SLOW_START = (
    "The engine is still starting: it loads vLLM and the model, and compiles the model unless an "
    "earlier start has. A first start takes up to two minutes on a CPU, later starts are faster."
)
STOPPED = (
    "the engine's process {} was stopped for {:g} s while it loaded the model, as by SIGSTOP or "
    "job control, and was ended: start the engine again; if the pause was intended, with a longer "
    "hang_timeout, or None for no limit"
)
LONGEST_SOCKET_FOLDER = 70
"""Bytes: the path of a socket may have 107, and its name has 36."""


def environment(folder: str, vllm_args: Mapping[str, Any]) -> dict[str, str]:
    """The engine's environment: ours, with defaults that the user's own settings override.

    Args:
        folder: A private folder, for compiled code that cannot be kept safely anywhere else.
        vllm_args: The engine's arguments for vLLM.
    """
    settings = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **openmp_environment(),
        **loopback_environment(vllm_args),
        **os.environ,
        **compiler_caches(folder),
        # The process itself runs the scheduler, which saves a second hop between processes.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    package_root = str(Path(__file__).parents[3])
    paths = [package_root, os.environ.get("PYTHONPATH", "")]
    settings["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return settings


def start_process(
    connection: int, log: int, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a new Python interpreter, which loads vLLM.

    Args:
        connection: Descriptor of the socket from which it reads messages.
        log: Descriptor of the file that gets its standard output and error.
        environment: All environment variables of the process.
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


@dataclass(eq=False, repr=False)
class EngineProcess:
    """A running engine process.

    Every public method may be called from any thread. None blocks, except :meth:`wait_ready` and
    :meth:`close`.

    Attributes:
        settings: What the process needs to start.
        deliver: Gets each message of the process. Called from the reading thread, and from the
            writing thread for a request that cannot be sent; must not block.
        on_end: Called once when the process has ended, from the reading thread and after the last
            delivery.
        ended: Set when the process has ended after it was ready.
        end: How the process ended, with the end of its log; empty before that.
        messages: Number of messages that came from the process.
        busy_seconds: Seconds that it has spent in its current step, as it last reported.
        ready_at: When it was ready, by the monotonic clock.
        ended_at: When it had ended, by the monotonic clock.
    """

    settings: EngineSettings
    deliver: Callable[[Any], None]
    on_end: Callable[[], None]

    def __post_init__(self) -> None:
        self.ended = threading.Event()
        self.messages = 0
        self.busy_seconds = 0.0
        self._started_at = self.ready_at = self.ended_at = time.monotonic()
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        # All three are reentrant: a garbage collection may close the engine in a thread that holds
        # one of them.
        self._closing = make_reentrant_lock()
        self._loading = make_reentrant_lock()
        self._reaping = make_reentrant_lock()
        self._closed = False
        self._close_finished = threading.Event()
        self._killed_because: str | None = None
        self.end = ""
        self._started_words = 0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        # The process shares these flags: in append mode it writes from the start again once we
        # have emptied the file.
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)
        # Holds vLLM's temporary files, and is removed when the process has ended.
        self._folder = tempfile.mkdtemp(prefix="ragcache-engine-")
        remove_when_ended(self._folder)
        own = {"TMPDIR": self._folder} if len(self._folder) <= LONGEST_SOCKET_FOLDER else {}
        ours, theirs = socket.socketpair()
        with theirs:
            settled = environment(self._folder, self.settings.vllm_args) | own
            self._process = start_process(theirs.fileno(), self._log.fileno(), settled)
        self._connection = Connection(ours.detach())
        with contextlib.suppress(OSError):  # it has ended already, as wait_ready will report
            self._connection.send(dataclasses.replace(self.settings, folder=self._folder))

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def owns(self, thread: threading.Thread) -> bool:
        """Whether this is one of the two threads that serve the socket."""
        return thread in self._threads

    def wait_ready(self, timeout: float | None, hang_timeout: float | None) -> Ready:
        """Wait until the model is loaded, then serve.

        Args:
            timeout: Seconds to wait; ``None`` for no limit.
            hang_timeout: Seconds that the process may be stopped meanwhile; ``None`` for no limit.

        Raises:
            EngineStartError: It did not start, was stopped, or was not ready in time; the process
                is gone.
            ConfigurationError: vLLM refuses an argument; the process is gone.
            EngineClosedError: The engine was closed meanwhile.
        """
        with self._loading:
            try:
                message = self._first_message(timeout, hang_timeout)
                if isinstance(message, Ready):
                    return self._serve(message)
                kind = START_ERRORS[message.kind]
                error: Exception = kind(f"the engine did not start: {message.message}")
            except (EOFError, OSError):
                error = self._died_starting()
            except EngineStartError as late:
                error = late
        self.close()
        raise error

    def _first_message(
        self, timeout: float | None, hang_timeout: float | None
    ) -> Ready | StartFailed:
        """The message that the process sends when it has loaded the model.

        Raises:
            EOFError: It has ended. The socket does not show that while a child process holds a
                copy of its other end.
            EngineStartError: It was stopped for too long, or the timeout is over.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        tick = LOOK_SECONDS if hang_timeout is None else min(LOOK_SECONDS, hang_timeout / 4)
        silence, running_looks = Silence(tick), 0
        # Of the start, not of the wait: meanwhile the application may have loaded a tokenizer.
        slow_at = self._started_at + SLOW_START_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            ended = self._has_ended()
            if self._connection.poll(0 if ended else min(left, tick)):
                message: Ready | StartFailed = self._connection.recv()
                return message
            if ended:
                raise EOFError
            if time.monotonic() >= slow_at:
                slow_at = math.inf
                logger.warning(SLOW_START)
            running_looks += not is_group_stopped(self.pid)
            if hang_timeout is not None and silence.measure(running_looks) > hang_timeout:
                raise EngineStartError(STOPPED.format(self.pid, hang_timeout))
        msg = f"the engine was not ready after {timeout:g} s: startup_timeout allows for more"
        raise EngineStartError(msg)

    def _has_ended(self) -> bool:
        """Whether the process has ended.

        It is not reaped here, so that its id keeps denoting it and its group.

        Raises:
            ChildProcessError: It was reaped already, perhaps by the application.
        """
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _serve(self, ready: Ready) -> Ready:
        with self._closing:
            if self._closed:
                raise EngineClosedError("the engine was closed while it started")
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
        """The end of the log since the engine was ready, or since its start; often empty."""
        try:
            log = self._log.fileno()
            start = max(self._started_words, os.fstat(log).st_size - LAST_WORDS_BYTES)
            words = os.pread(log, LAST_WORDS_BYTES, start).decode(errors="replace").strip()
        except (OSError, ValueError):  # closed meanwhile, so that nobody needs it
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
        """Kill the process.

        Args:
            because: The reason, in words that follow "the engine's process ended unexpectedly".
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
                return  # the reading thread sees the same, and reports it
            except Exception as error:  # it cannot be pickled: none of it was written
                if not isinstance(message, Submit):
                    raise
                words = f"it cannot be sent to the engine's process: {error!r}"
                number, attempt = message.request_id, message.attempt
                self.deliver(RequestFailed(number, FailureKind.INVALID, words, attempt))

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._connection.recv()
                self.messages += 1
                if isinstance(message, Heartbeat):
                    self.busy_seconds = message.busy_seconds
                    self._forget_words()
                else:
                    self.deliver(message)
        words = _exit_words(self._reap(SHUTDOWN_GRACE_SECONDS))
        self.end = f"({self._killed_because or words}){self._last_words()}"
        self.ended_at = time.monotonic()
        self._outbox.put(None)
        self.ended.set()
        self.on_end()

    def _reap(self, grace: float) -> int:
        """Wait for the process, then kill it and its children if they still run.

        Args:
            grace: Seconds to wait before it is killed.

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
        if not first:  # another thread is closing it; wait, so that it is closed when we return
            self._close_finished.wait(2 * SHUTDOWN_GRACE_SECONDS)
            return
        self._outbox.put(Shutdown())
        self._outbox.put(None)
        self._reap(SHUTDOWN_GRACE_SECONDS if self._threads else 0)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        with self._loading:  # a thread in wait_ready has seen the end, and reads no more
            self._connection.close()
            self._log.close()
        self._close_finished.set()


def _exit_words(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
