"""Where requests wait for their answers, whichever process gives them.

What a process says reaches the receiver of the request it belongs to, once and in order. While
there is no process, requests stay here; the next one is given all of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import queue
import time
from collections.abc import Callable

from ragcache_integrations.core.forks import make_reentrant_lock
from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.engine.counters import Counters
from ragcache_integrations.engine.faults import FaultSettings, backoff_seconds
from ragcache_integrations.engine.protocol import (
    Abort,
    Answer,
    Begun,
    Control,
    FailureKind,
    Output,
    RequestFailed,
    Step,
    Submit,
)
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineDeadError,
    EngineError,
    GenerationTimeoutError,
)
from ragcache_integrations.knowledge_tree.stats import TreeStats

from .client import EngineProcess
from .hot_prefixes import HotPrefixes, Prefix
from .requests import (
    DivergedError,
    PendingControl,
    PendingRequest,
    Received,
    Receiver,
)

__all__ = ["Exchange"]

logger = logging.getLogger(__name__)

PREFILL = SamplingOptions(max_tokens=1)
SUSPECT_DEATHS = 2
"""Processes that ended while they computed a request before it is computed alone among those of its
kind. One more, and it is given up: it may be what ends them, and others should not end with it."""


class Exchange:
    """The requests of an engine that were not answered to their ends. Thread-safe.

    Args:
        faults: How often a request is tried again, and after what time.
        counters: Count what was done.

    Attributes:
        lock: Held while the requests change. Reentrant: a dropped stream may abort its request
            from a garbage collection that runs while this very thread holds it.
        hot: The prompts' most common beginnings.
        tree_stats: What the knowledge tree did, as of the last request that ended or was given up.
    """

    def __init__(self, faults: FaultSettings, counters: Counters) -> None:
        self.lock = make_reentrant_lock()
        self.hot = HotPrefixes(faults.rewarm_tokens)
        self.tree_stats: TreeStats | None = None
        self._faults = faults
        self._counters = counters
        self._numbers = itertools.count(1)
        self._pending: dict[int, PendingRequest | PendingControl] = {}
        self._prefills: dict[int, Receiver] = {}
        self._suspects: dict[int, PendingRequest] = {}
        self._life: EngineProcess | None = None
        self._host_failures = 0  # of this life
        self._retry_soon: Callable[[], None] = lambda: None

    @property
    def connected(self) -> bool:
        """Whether there is a process to send to."""
        return self._life is not None

    def call_on_retry(self, callback: Callable[[], None]) -> None:
        """Have this called when a request is to be submitted again soon, from any thread."""
        self._retry_soon = callback

    # What callers want

    def register(self, receiver: Receiver, message: Submit | Control) -> int:
        """Take in a request, or a question, and return its number. :meth:`send` is yet to follow.

        Args:
            receiver: Gets what comes of it, each thing once. It is called from another thread and
                must not block. The last thing it gets is an output with a finish reason, an answer
                or an exception.
            message: What to send; its number is filled in.
        """
        with self.lock:
            number = next(self._numbers)
            self._pending[number] = (
                PendingRequest(receiver, dataclasses.replace(message, request_id=number))
                if isinstance(message, Submit)
                else PendingControl(receiver, dataclasses.replace(message, request_id=number))
            )
        return number

    def send(self, number: int) -> None:
        """Let the process have what was registered, at once or when it is back."""
        with self.lock:
            pending = self._pending.get(number)
            if pending is not None and self._life is not None and not pending.sent:
                self._life.send(pending.message())

    def abort(self, number: int, *, retract: bool = False) -> bool:
        """Give a request up; nothing more is routed to its receiver.

        Args:
            number: From :meth:`register`.
            retract: Whether its documents were a wrong guess, which is no access to them.

        Returns:
            Whether it was still in flight.
        """
        with self.lock:
            known = self._pending.pop(number, None) is not None
            if self._life is not None and (known or retract):
                self._life.send(Abort((number,), retract))
            self._send_suspect()
        return known

    def forget(self, number: int) -> None:
        """Route nothing more to this receiver."""
        with self.lock:
            self._pending.pop(number, None)
            self._send_suspect()

    def in_flight(self) -> int:
        """How many requests and questions await something."""
        with self.lock:
            return len(self._pending)

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Give all of them up.

        Args:
            error: Makes what each receiver gets.
        """
        with self.lock:
            abandoned, self._pending = list(self._pending.values()), {}
        for pending in abandoned:
            pending.receiver(error())

    # Processes that come and go

    def connect(self, life: EngineProcess) -> tuple[int, int] | None:
        """Give a process all that was not answered to its end, and what comes from now on.

        Returns:
            How many requests begin anew, and how many go on where they were; ``None`` where the
            process is gone already.
        """
        with self.lock:
            if life.ended.is_set():
                return None
            self._life = life
            replayed = resumed = 0
            for number, pending in self._pending.items():
                if isinstance(pending, PendingRequest) and pending.attempts:
                    resumed += pending.begun
                    replayed += not pending.begun
                if number not in self._suspects:
                    life.send(pending.message())
            self._send_suspect()
        return replayed, resumed

    def disconnect(self) -> None:
        """The process is gone."""
        with self.lock:
            self._life = None
            self._host_failures = 0
            given_up = self._count_deaths()
            prefills = list(self._prefills.values())
        for receiver in prefills:
            receiver(EngineDeadError("the engine's process ended"))
        for pending in given_up:
            pending.receiver(
                EngineDeadError(
                    f"the engine's process ended {pending.deaths} times in a row while it computed "
                    "this request, which may be the cause: it was given up"
                )
            )

    def _count_deaths(self) -> list[PendingRequest]:
        """Note what the process computed, and take out what is given up, under the lock."""
        given_up = []
        for number, pending in list(self._pending.items()):
            if not isinstance(pending, PendingRequest):
                continue
            pending.deaths += pending.computing
            pending.sent, pending.computing, pending.due = False, False, None
            if pending.deaths > SUSPECT_DEATHS:
                del self._pending[number]
                given_up.append(pending)
            elif pending.deaths == SUSPECT_DEATHS:
                self._suspects[number] = pending
        return given_up

    def _send_suspect(self) -> None:
        """Let the process have the next suspect if it has none. Called under the lock."""
        for number, suspect in list(self._suspects.items()):
            if self._pending.get(number) is not suspect or not suspect.deaths:
                del self._suspects[number]
        waiting = list(self._suspects.values())
        if self._life is not None and waiting and not any(one.sent for one in waiting):
            self._life.send(waiting[0].message())

    def prefill(self, life: EngineProcess, prefix: Prefix, seconds: float) -> None:
        """Let a process compute a beginning, before it is connected.

        Args:
            life: The process.
            prefix: What to compute.
            seconds: How long to wait for it.
        """
        inbox: queue.SimpleQueue[Received] = queue.SimpleQueue()
        with self.lock:
            if life.ended.is_set():  # it would tell nobody
                return
            number = next(self._numbers)
            self._prefills[number] = inbox.put
        life.send(Submit(number, prefix.token_ids, PREFILL, prefix.namespace, prefix.documents))
        try:
            inbox.get(timeout=seconds)
        except queue.Empty:
            life.send(Abort((number,)))
        finally:
            with self.lock:
                del self._prefills[number]

    # What arrives, in the reading thread of the process

    def received(self, message: Begun | Step | Answer | RequestFailed) -> None:
        """Hand over what a process said."""
        match message:
            case Step():
                self._note(message)
                for output in message.outputs:
                    if isinstance(output, Output):
                        self._output(output)
                    else:
                        self._failed(output)
            case Begun():
                with self.lock:
                    for number in message.request_ids:
                        pending = self._pending.get(number)
                        if isinstance(pending, PendingRequest):
                            pending.computing = True
            case Answer():
                self._answered(message)
            case RequestFailed():
                self._failed(message)

    def _note(self, step: Step) -> None:
        tree = step.tree
        if tree is not None:
            known = self.tree_stats
            if tree.changed_documents and not (known and known.changed_documents):
                logger.warning(
                    "a document's id came with another text than before, or behind another text: "
                    "its KV cache was not reused. If the document has changed, all is well; if ids "
                    "are not unique, give each document an id of its own. EngineStats.tree counts "
                    "further ones"
                )
            self.tree_stats = tree
        if step.host_failures > self._host_failures:
            new = step.host_failures - self._host_failures
            self._host_failures = step.host_failures
            if self._counters.host_tier_failed(new):
                logger.warning(
                    "the host tier fails (%s): what it should have kept is computed again. "
                    "EngineStats.host_tier_failures counts further ones",
                    step.host_error,
                )

    def _output(self, output: Output) -> None:
        number = output.request_id
        final = output.finish_reason is not None
        new: Received | None = None
        with self.lock:
            pending = self._pending.get(number)
            if not isinstance(pending, PendingRequest):
                receiver = self._prefills.get(number)
                new = output
            else:
                receiver = pending.receiver
                try:
                    new = pending.take(output)
                except DivergedError:
                    new = self._diverged(number, pending)
                    final = new is not None
                if final and new is not None:
                    del self._pending[number]
                self._send_suspect()
        if new is not None and receiver is not None:
            receiver(new)
            if final and isinstance(new, Output) and isinstance(pending, PendingRequest):
                prompt = pending.prompt
                self.hot.note(prompt.namespace, prompt.token_ids, prompt.documents)

    def _diverged(self, number: int, pending: PendingRequest) -> EngineDeadError | None:
        """Asked again from the start, it was answered otherwise. Called under the lock."""
        if not pending.go_on_instead():
            return EngineDeadError(
                "the engine's process ended during the request, whose answer is bound to a grammar "
                "or to penalties, and did not come out the same again: ask once more"
            )
        if self._life is not None:
            self._life.send(Abort((number,), retract=True))
            self._life.send(pending.message())
        return None

    def _answered(self, answer: Answer) -> None:
        with self.lock:
            pending = self._pending.pop(answer.request_id, None)
        if pending is None:
            return
        if isinstance(pending, PendingControl) and pending.operation == "reset_cache":
            self.hot.clear()
        pending.receiver(answer)

    def _failed(self, failure: RequestFailed) -> None:
        number = failure.request_id
        with self.lock:
            receiver = self._prefills.get(number)
            pending = self._pending.get(number)
            if isinstance(pending, PendingRequest) and pending.is_current(failure.attempt):
                pending.computing = False
                if failure.kind is FailureKind.HOST_TIER:  # that copy is not read any more
                    if self._life is not None:
                        self._life.send(pending.message())
                    return
                if failure.kind is FailureKind.OTHER and self._try_again(pending):
                    return
                receiver = pending.receiver
                del self._pending[number]
                self._send_suspect()
            elif isinstance(pending, PendingControl):
                receiver = pending.receiver
                del self._pending[number]
        if receiver is not None:
            receiver(_request_error(failure))

    # Trying single requests again

    def _try_again(self, pending: PendingRequest) -> bool:
        """Let a request be submitted once more, later. Called under the lock."""
        if pending.retries >= self._faults.max_retries:
            return False
        pending.retries += 1
        pending.due = time.monotonic() + backoff_seconds(pending.retries)
        self._counters.retried()
        self._retry_soon()
        return True

    def retry_due(self) -> float:
        """Seconds until the next request is to be submitted again; infinite where none is."""
        with self.lock:
            due = [
                pending.due
                for pending in self._pending.values()
                if isinstance(pending, PendingRequest) and pending.due is not None
            ]
        return max(0.0, min(due) - time.monotonic()) if due else float("inf")

    def retry(self) -> None:
        """Submit again what is due, and give up what was waited for too long."""
        limit = self._faults.request_timeout
        expired: list[PendingRequest] = []
        with self.lock:
            life = self._life
            if life is None:
                return
            now = time.monotonic()
            for number, pending in list(self._pending.items()):
                if not isinstance(pending, PendingRequest):
                    continue
                if pending.due is not None:
                    if pending.due <= now:
                        life.send(pending.message())
                elif limit is not None and pending.sent and now - pending.progressed_at > limit:
                    life.send(Abort((number,), retract=True))
                    if not self._try_again(pending):
                        del self._pending[number]
                        expired.append(pending)
                        self._send_suspect()
        for pending in expired:
            pending.receiver(
                GenerationTimeoutError(
                    f"nothing came for {limit:g} s, {pending.attempts} times: the request was "
                    "given up"
                )
            )


def _request_error(failure: RequestFailed) -> Exception:
    if failure.kind is FailureKind.INVALID:
        return ConfigurationError(f"vLLM refuses the request: {failure.message}")
    return EngineError(f"the request failed: {failure.message}")
