"""The application's end of the engine's process: starting, feeding, reading and ending it.

Two daemon threads serve the socket, so that no caller ever waits for it: one writes what was
queued, one hands what arrives to the receiver of the request it belongs to.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ragcache_integrations.engine._protocol import (
    Abort,
    Answer,
    EngineSettings,
    FailureKind,
    Output,
    Ready,
    RequestFailed,
    Shutdown,
    StartFailed,
    Step,
)
from ragcache_integrations.engine._threads import openmp_environment
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineClosedError,
    EngineDeadError,
    EngineError,
    EngineOutOfMemoryError,
    EngineStartError,
    ModelNotFoundError,
)
from ragcache_integrations.knowledge_tree.stats import TreeStats

__all__ = ["EngineProcess", "Received"]

logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_SECONDS = 5.0
LAST_WORDS_BYTES = 4000

Received = Output | Answer | Exception
Receiver = Callable[[Received], None]

_START_ERRORS: dict[FailureKind, type[Exception]] = {
    FailureKind.INVALID: ConfigurationError,
    FailureKind.MODEL_NOT_FOUND: ModelNotFoundError,
    FailureKind.OUT_OF_MEMORY: EngineOutOfMemoryError,
    FailureKind.OTHER: EngineStartError,
}


def _environment() -> dict[str, str]:
    """The engine's environment: ours, with defaults that the user's own settings override."""
    environment = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **openmp_environment(),
        **os.environ,
        # The process itself runs the scheduler: no second hop between it and us.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    package_root = str(Path(__file__).parents[2])
    paths = [package_root, os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


class EngineProcess:
    """A running engine process.

    Every public method may be called from any thread and returns at once, but for
    :meth:`wait_ready` and :meth:`close`.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._owner = os.getpid()
        # Reentrant: a dropped stream may abort its request from a garbage collection that runs
        # while this very thread holds the lock.
        self._lock = threading.RLock()
        self._receivers: dict[int, Receiver] = {}
        self._numbers = itertools.count(1)
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._close_finished = threading.Event()
        self._dead: EngineDeadError | None = None
        self.tree_stats: TreeStats | None = None  # as of the last request that ended
        self._reaping = threading.Lock()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [
                    *(sys.executable, "-P", "-m", "ragcache_integrations.engine._process"),
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the application, which then closes us
            )
        self._connection = Connection(ours.detach())
        self._connection.send(settings)

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def wait_ready(self, timeout: float) -> Ready:
        """Wait until the model is loaded, then serve.

        Args:
            timeout: Seconds to wait.

        Raises:
            EngineStartError: It did not come up, or not in time; the process is gone.
            ConfigurationError: vLLM refuses an argument; the process is gone.
        """
        try:
            message = self._connection.recv() if self._connection.poll(timeout) else None
        except (EOFError, OSError):
            error = self._died_starting()
        else:
            if isinstance(message, Ready):
                for work in (self._read, self._write):
                    name = f"ragcache-engine-{self.pid}{work.__name__}"
                    self._threads.append(threading.Thread(target=work, name=name, daemon=True))
                    self._threads[-1].start()
                return message
            if isinstance(message, StartFailed):
                error = _START_ERRORS[message.kind](f"the engine did not start: {message.message}")
            else:
                error = EngineStartError(f"the engine was not ready after {timeout:g} s")
        self.close()
        raise error

    def _died_starting(self) -> Exception:
        status = self._reap(SHUTDOWN_GRACE_SECONDS)
        what = f"the engine's process ended while starting ({_exit_words(status)})"
        if status == -signal.SIGKILL:
            return EngineOutOfMemoryError(
                f"{what}; the system kills a process so when it runs out of memory"
            )
        return EngineStartError(f"{what}; its last words:\n{self.last_words()}")

    def last_words(self) -> str:
        """The end of what the engine logged."""
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - LAST_WORDS_BYTES)
        return os.pread(self._log.fileno(), LAST_WORDS_BYTES, start).decode(errors="replace")

    def check_usable(self) -> None:
        """Raise what a new request would run into.

        Raises:
            EngineClosedError: It was closed.
            EngineDeadError: It died.
            EngineError: This process is a fork of the one that started the engine.
        """
        if os.getpid() != self._owner:
            msg = (
                "the engine belongs to the process that started it "
                f"(pid {self._owner}, this is {os.getpid()}): start one behind the fork"
            )
            raise EngineError(msg)
        if self._closed:
            msg = "the engine is closed"
            raise EngineClosedError(msg)
        if self._dead is not None:
            raise EngineDeadError(str(self._dead))

    def register(self, receiver: Receiver) -> int:
        """Route what arrives for a new request to ``receiver`` and return the request's number.

        The receiver is called from the reading thread and must not block. The last thing it gets
        is an output with a finish reason, an answer or an exception.
        """
        with self._lock:
            self.check_usable()
            number = next(self._numbers)
            self._receivers[number] = receiver
        return number

    def send(self, message: object) -> None:
        """Queue a message for the process."""
        self._outbox.put(message)

    def abort(self, request_id: int, *, retract: bool = False) -> bool:
        """Give a request up; nothing more is routed to its receiver.

        Args:
            request_id: From :meth:`register`.
            retract: Whether its documents were a wrong guess, which is no access to them.

        Returns:
            Whether it was still in flight.
        """
        with self._lock:
            known = self._receivers.pop(request_id, None) is not None
        if known or retract:
            self.send(Abort((request_id,), retract))
        return known

    def forget(self, request_id: int) -> None:
        """Route nothing more to this receiver."""
        with self._lock:
            self._receivers.pop(request_id, None)

    def in_flight(self) -> int:
        """How many requests await something."""
        with self._lock:
            return len(self._receivers)

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                self._connection.send(message)
            except OSError:
                return  # the reading thread sees the same and tells the requests

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.recv()
                match message:
                    case Step():
                        if message.tree is not None:
                            self._note(message.tree)
                        for output in message.outputs:
                            final = output.finish_reason is not None
                            self._route(output.request_id, output, final=final)
                    case Answer():
                        self._route(message.request_id, message, final=True)
                    case RequestFailed():
                        self._route(message.request_id, _request_error(message), final=True)
        except (EOFError, OSError):
            self._ended()

    def _note(self, stats: TreeStats) -> None:
        if stats.changed_documents and not (self.tree_stats and self.tree_stats.changed_documents):
            logger.warning(
                "a document's id came with another text than before, or behind another text: its "
                "KV cache was not reused. If the document has changed, all is well; if ids are not "
                "unique, give each document an id of its own. EngineStats.tree counts further ones"
            )
        self.tree_stats = stats

    def _route(self, request_id: int, received: Received, *, final: bool) -> None:
        with self._lock:
            receiver = (
                self._receivers.pop(request_id, None) if final else self._receivers.get(request_id)
            )
        if receiver is not None:
            receiver(received)

    def _ended(self) -> None:
        """The process is gone: tell every request that waits."""
        status = self._reap(SHUTDOWN_GRACE_SECONDS)
        with self._lock:
            if not self._closed:
                words = _exit_words(status)
                self._dead = EngineDeadError(
                    f"the engine's process ended unexpectedly ({words}); its last words:\n"
                    f"{self.last_words()}"
                )
                logger.error("%s", self._dead)
            abandoned, self._receivers = list(self._receivers.values()), {}
        for receiver in abandoned:
            receiver(
                EngineClosedError("the engine was closed during the request")
                if self._dead is None
                else EngineDeadError(str(self._dead))
            )
        self._outbox.put(None)

    def _reap(self, grace: float) -> int:
        """Wait for the process, end it where it outlives ``grace`` seconds, and its children.

        Returns:
            Its exit status, negative for a signal.
        """
        with self._reaping:
            if self._process.returncode is None:
                deadline = time.monotonic() + grace
                # Not yet reaped, its number still names its group and nobody else's.
                peek = os.WEXITED | os.WNOWAIT | os.WNOHANG
                while os.waitid(os.P_PID, self.pid, peek) is None and time.monotonic() < deadline:
                    time.sleep(0.01)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            return self._process.wait()

    def close(self) -> None:
        """End the process and wait for it. Requests in flight get :class:`EngineClosedError`."""
        if os.getpid() != self._owner:
            self._closed = True
            return  # a fork holds copies of the descriptors; the process is not its own
        with self._lock:
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
        self._connection.close()
        self._log.close()
        self._close_finished.set()


def _request_error(failure: RequestFailed) -> Exception:
    if failure.kind is FailureKind.INVALID:
        return ConfigurationError(f"vLLM refuses the request: {failure.message}")
    return EngineError(f"the request failed: {failure.message}")


def _exit_words(status: int | None) -> str:
    if status is None:
        return "still exiting"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
