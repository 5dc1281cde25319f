"""Replaces the engine's process when it dies, and sends it control messages.

When a process dies, or hangs and is killed, another one is started with the same settings. It
pins again what was pinned, computes the most common beginnings of prompts again, and gets every
unfinished request. After too many deaths in a row no other one is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import queue
import threading
import time
from typing import Any

from ragcache_integrations.engine.protocol import (
    Answer,
    Control,
    Counters,
    EngineSettings,
    FaultSettings,
    Ready,
    Submit,
    backoff_seconds,
    heartbeat_seconds,
)
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineClosedError,
    EngineDeadError,
    EngineError,
)

from .client import EngineProcess, Silence, why_hung
from .exchange import Exchange
from .requests import Received, Receiver, expect

__all__ = ["Supervisor", "acontrol", "control"]

logger = logging.getLogger(__name__)


TIMEOUT_SECONDS = 60.0


def control(
    process: Supervisor,
    operation: str,
    argument: Any = None,
    *,
    timeout: float | None = TIMEOUT_SECONDS,
) -> Any:
    """Have the process do something between two steps of the model.

    Args:
        process: The process; after a restart the new one gets the message.
        operation: What to do, as in :class:`Control`.
        argument: With what, if it needs something.
        timeout: Seconds to wait for the answer; ``None`` for what may take longer than a step.

    Returns:
        The value that it answers.

    Raises:
        EngineError: There was no answer in time.
        EngineClosedError: The engine was closed.
        EngineDeadError: The process died and is not started again.
    """
    inbox: queue.SimpleQueue[Received] = queue.SimpleQueue()
    number = process.register(inbox.put, Control(0, operation, argument))
    process.exchange.send(number)
    try:
        return expect(Answer, inbox.get(timeout=timeout)).value
    except queue.Empty:
        raise _no_answer(process, operation, timeout) from None
    finally:
        process.exchange.forget(number)


async def acontrol(
    process: Supervisor,
    operation: str,
    argument: Any = None,
    *,
    timeout: float | None = TIMEOUT_SECONDS,
) -> Any:
    """Async version of :func:`control`."""
    loop = asyncio.get_running_loop()
    inbox: asyncio.Queue[Received] = asyncio.Queue()

    def receive(received: Received) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, so no caller waits
            loop.call_soon_threadsafe(inbox.put_nowait, received)

    number = process.register(receive, Control(0, operation, argument))
    process.exchange.send(number)
    try:
        async with asyncio.timeout(timeout):
            return expect(Answer, await inbox.get()).value
    except TimeoutError:
        raise _no_answer(process, operation, timeout) from None
    finally:
        process.exchange.forget(number)


def _no_answer(process: Supervisor, operation: str, timeout: float | None) -> EngineError:
    why = ": it is being restarted" if process.restarting else ""
    return EngineError(f"the engine did not answer {operation!r} in {timeout:g} s{why}")


REWARM_SECONDS = 10.0
"""The longest time that requests wait while pinned documents and common beginnings of prompts are
computed again."""
CLOSE_SECONDS = 15.0


class Supervisor:
    """An engine's process and its requests.

    Every public method may be called from any thread. None blocks, except :meth:`wait_ready` and
    :meth:`close`.

    Args:
        settings: What the process needs to start.
        faults: Limits on restarts, retries and silence.

    Attributes:
        counters: Count requests, restarts, retries and failures.
        exchange: The unfinished requests.
        closed: Whether :meth:`close` was called.
        ready: What the process reported when it was last ready.
    """

    def __init__(self, settings: EngineSettings, faults: FaultSettings) -> None:
        self._owner = os.getpid()
        self._settings = dataclasses.replace(
            settings, heartbeat_seconds=heartbeat_seconds(faults.hang_timeout)
        )
        self._faults = faults
        self.counters = Counters()
        self._wake = threading.Event()
        self.exchange = Exchange(faults, self.counters, self._wake.set)
        self.closed = False
        self._closing = threading.Event()
        self._close_finished = threading.Event()
        self._dead: EngineDeadError | None = None
        self._startup_timeout = 0.0
        self._ends_in_a_row = 0
        self._thread: threading.Thread | None = None
        self.ready: Ready | None = None
        self._process = self._new_process()

    def _new_process(self) -> EngineProcess:
        return EngineProcess(self._settings, self.exchange.received, self._process_ended)

    @property
    def pid(self) -> int:
        """Id of the current process."""
        return self._process.pid

    @property
    def restarting(self) -> bool:
        """Whether requests wait for a new process."""
        return not (self.exchange.connected or self.closed or self._dead)

    def wait_ready(self, timeout: float) -> Ready:
        """Wait until the model is loaded for the first time, then serve.

        Args:
            timeout: Seconds to wait, now and after each restart.

        Raises:
            EngineStartError: It did not start, or not in time; the process is gone.
            ConfigurationError: vLLM refuses an argument; the process is gone.
        """
        self._startup_timeout = timeout
        ready = self.ready = self._process.wait_ready(timeout, self._faults.hang_timeout)
        self.exchange.connect(self._process)
        self._thread = threading.Thread(
            target=self._supervise, name="ragcache-engine-supervisor", daemon=True
        )
        self._thread.start()
        return ready

    def check_usable(self) -> None:
        """Check that a new request can be accepted.

        Raises:
            EngineClosedError: It was closed.
            EngineDeadError: The process died and is not started again.
            EngineError: This process is a fork of the one that started the engine.
        """
        self.check_owner()
        if self.closed:
            raise EngineClosedError("the engine is closed")
        if self._dead is not None:
            raise EngineDeadError(str(self._dead))

    def check_owner(self) -> None:
        """Check that this is the process that started the engine.

        Raises:
            EngineError: It is a fork of that process.
        """
        if os.getpid() != self._owner:
            raise EngineError(
                f"this engine belongs to process {self._owner}, and this is process "
                f"{os.getpid()}: start one in this process"
            )

    def register(self, receiver: Receiver, message: Submit | Control) -> int:
        """Register a request or a control message (see :meth:`Exchange.register`).

        Raises:
            EngineError: As :meth:`check_usable`.
        """
        with self.exchange.lock:
            self.check_usable()
            return self.exchange.register(receiver, message)

    def close(self) -> None:
        """End the process and wait for it. Requests in flight get :class:`EngineClosedError`."""
        if os.getpid() != self._owner:
            self.closed = True
            return  # a fork holds copies of the descriptors; the process is not its own
        current = threading.current_thread()
        if current is self._thread or self._process.owns(current):
            # A garbage collection ended the engine in one of the threads that serve it. Joining
            # them here could wait for a lock that this very thread holds.
            threading.Thread(target=self.close, name="ragcache-engine-close", daemon=True).start()
            return
        with self.exchange.lock:
            first, self.closed = not self.closed, True
            process = self._process
        if not first:  # another thread is closing it; wait, so that it is closed when we return
            self._close_finished.wait(CLOSE_SECONDS)
            return
        self._closing.set()
        self._wake.set()
        process.close()
        if self._thread is not None:
            self._thread.join()
        words = "the engine was closed during the request"
        self.exchange.fail_all(lambda: EngineClosedError(words))
        self._close_finished.set()

    def _process_ended(self) -> None:
        self.exchange.disconnect()
        self._wake.set()

    # The supervising thread

    def _supervise(self) -> None:
        try:
            self._watch()
        except Exception as error:
            logger.exception("the engine is not supervised any more")
            self._process.kill("its supervisor failed")
            self._declare_dead(f"could not be supervised: {error!r}")

    def _watch(self) -> None:
        limits = (self._faults.hang_timeout, self._faults.step_timeout)
        silences = (self._faults.hang_timeout, self._faults.request_timeout)
        tick = min([1.0, *(limit / 4 for limit in silences if limit is not None)])
        silence = Silence(tick)
        while True:
            self._wake.wait(min(tick, self.exchange.retry_due()))
            self._wake.clear()
            if self.closed:
                return
            process = self._process
            if process.ended.is_set():
                if not self._restart(process):
                    return
                silence = Silence(tick)
                continue
            silent = silence.measure(process.messages)
            why = why_hung(silent, process.busy_seconds, *limits)
            if why is not None:
                process.kill(f"it hung: {why}")
            self.exchange.retry()

    def _restart(self, lost: EngineProcess) -> bool:
        """Start another process.

        Args:
            lost: The process that ended.

        Returns:
            Whether it serves; otherwise the engine is dead or closed.
        """
        if lost.ended_at - lost.ready_at >= self._faults.restart_window:
            self._ends_in_a_row = 0
        end = f"ended unexpectedly {lost.end}"
        while True:
            lost.close()
            if self.closed:
                return False
            self._ends_in_a_row += 1
            if self._ends_in_a_row > self._faults.max_restarts:
                self._declare_dead(end)
                return False
            logger.warning(
                "the engine is started again (%d of at most %d times in a row): its process %s",
                self._ends_in_a_row,
                self._faults.max_restarts,
                end,
            )
            failures = self._ends_in_a_row - 1
            if failures and self._closing.wait(backoff_seconds(failures)):
                return False
            try:
                process = self._begin_process()
                if process is None:
                    return False
                self.ready = process.wait_ready(self._startup_timeout, self._faults.hang_timeout)
            except (EngineError, ConfigurationError, OSError) as error:
                end = f"did not start again: {error}"
                continue
            deadline = time.monotonic() + REWARM_SECONDS
            self._pin_again(process, deadline)
            self._compute_hot_again(process, self.ready, deadline)
            if self._serve_again(process):
                return True
            lost, end = process, f"ended unexpectedly {process.end}"

    def _begin_process(self) -> EngineProcess | None:
        with self.exchange.lock:
            if self.closed:
                return None
            self._process = self._new_process()
            return self._process

    def _pin_again(self, process: EngineProcess, deadline: float) -> None:
        """Pin what was pinned. What is not computed by the deadline is computed among requests."""
        requests = self.exchange.pins.requests()
        pinned = 0
        for request in requests:
            left = deadline - time.monotonic()
            answer = self.exchange.compute(process, request, left, abort=False)
            if isinstance(answer, ConfigurationError):
                self.exchange.pins.forget(request)
                logger.warning("documents are pinned no more: %s", answer)
            else:
                pinned += 1
        if requests and not process.ended.is_set():
            logger.warning("pinned again after the restart: %d of %d pins", pinned, len(requests))

    def _compute_hot_again(self, process: EngineProcess, ready: Ready, deadline: float) -> None:
        """Compute the most common beginnings of prompts, as far as time and memory allow."""
        for request in self.exchange.hot.hottest(ready.total_kv_tokens // 2):
            left = deadline - time.monotonic()
            if left <= 0 or self.closed or process.ended.is_set():
                return
            if len(request.token_ids) < ready.max_model_len:
                self.exchange.compute(process, request, left, abort=True)

    def _serve_again(self, process: EngineProcess) -> bool:
        counts = self.exchange.connect(process)
        if counts is None:
            return False
        replayed, resumed = counts
        self.counters.add(restarts=1, replayed_requests=replayed, resumed_requests=resumed)
        logger.warning(
            "the engine is back: %d requests resume, %d restart",
            resumed,
            replayed,
        )
        return True

    def _declare_dead(self, end: str) -> None:
        times = self._ends_in_a_row
        error = EngineDeadError(
            f"the engine's process {end}"
            if times <= 1
            else f"the engine's process ended {times} times in a row and is not started again; "
            f"finally it {end}"
        )
        with self.exchange.lock:
            self._dead = error
        logger.error("%s", error)
        self.exchange.fail_all(lambda: EngineDeadError(str(error)))
