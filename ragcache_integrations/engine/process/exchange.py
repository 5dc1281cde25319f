"""The requests that wait for their answers, across restarts of the engine's process.

Each output of a process reaches the receiver of its request once and in order. While there is no
process, requests stay here; the next process gets all of them.

Three kinds of threads meet here under ``Exchange.lock``: callers register and abort, the process's
reading thread delivers, and the supervisor connects and retries. Receivers are called without the
lock; outputs stay in order because the reading thread alone delivers them.

Pins and the knowledge tree are lost when the engine's process dies. The application therefore
keeps the requests that made the pins, and a small tree of the first documents of answered prompts,
with their tokens and counts: the upper nodes that RAGCache replicates for recovery (§6). The next
process pins and computes them again.
"""

from __future__ import annotations

import itertools
import logging
import math
import queue
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ragcache_integrations.core.forks import make_lock, make_reentrant_lock
from ragcache_integrations.core.generation import SamplingOptions
from ragcache_integrations.core.prompt import FOREVER
from ragcache_integrations.engine.protocol import (
    Abort,
    Answer,
    Begun,
    Control,
    Counters,
    FailureKind,
    FaultSettings,
    Output,
    RequestFailed,
    Step,
    Submit,
    backoff_seconds,
)
from ragcache_integrations.errors import (
    ConfigurationError,
    EngineDeadError,
    EngineError,
    GenerationTimeoutError,
)
from ragcache_integrations.knowledge_tree.stats import TreeStats

from .client import EngineProcess
from .requests import DivergedError, PendingControl, PendingRequest, Received, Receiver

__all__ = ["Exchange", "HotPrefixes", "PinRecord"]

logger = logging.getLogger(__name__)


FEW = 64
"""Of a record this short nothing is forgotten while it grows."""

_Place = tuple[str, tuple[tuple[str, int, int], ...], tuple[int, ...]]


class PinRecord:
    """The requests that pinned documents. Thread-safe.

    It is at most about twice as large as the pins, for which the KV cache has a limit: those whose
    time is over are forgotten whenever it has doubled.

    Args:
        now: Clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pins: dict[_Place, tuple[Submit, float]] = {}
        self._full = FEW
        self._lock = make_lock()

    def __len__(self) -> int:
        return len(self._pins)

    def note(self, request: Submit) -> None:
        """Record a request that was answered; one that pins nothing is ignored."""
        if request.pin is not None and request.pin > 0:
            until = math.inf if request.pin >= FOREVER else self._now() + request.pin
            with self._lock:
                self._pins[_place(request)] = request, until
                if len(self._pins) >= self._full:
                    self._forget_ended(self._now())
                    self._full = max(FEW, 2 * len(self._pins))

    def forget(self, request: Submit) -> None:
        """Its documents are not pinned any more."""
        with self._lock:
            self._pins.pop(_place(request), None)

    def clear(self) -> None:
        """Nothing is pinned any more."""
        with self._lock:
            self._pins.clear()

    def requests(self) -> list[Submit]:
        """The requests that pin again what is pinned now, for the time that is left."""
        with self._lock:
            now = self._now()
            self._forget_ended(now)
            return [
                replace(request, pin=min(FOREVER, until - now), attempt=0)
                for request, until in self._pins.values()
            ]

    def _forget_ended(self, now: float) -> None:
        self._pins = {place: pin for place, pin in self._pins.items() if pin[1] > now}


def _place(request: Submit) -> _Place:
    """Where in prompts the documents are pinned."""
    end = request.documents[-1][2] if request.documents else 0
    return request.namespace, request.documents, tuple(request.token_ids[:end])


PREFILL = SamplingOptions(max_tokens=1)
DOCUMENTS = 3
"""Number of a prompt's first documents that are recorded; further ones hardly ever repeat."""
RECORDED = 4
"""Tokens recorded for each token that may be computed again."""
MOST_PREFIXES = 256
SEEN_OFTEN = 2
"""Requests after which a beginning is worth computing again."""


@dataclass(slots=True, eq=False)
class _Node:
    """A document after one path, or the text before the first document.

    Attributes:
        above: What is before it; ``None`` for text before the first document.
        name: The document's id; the namespace of text before the first document.
        tokens: Tokens of the document and of the text between it and the previous one.
        begins: Index of the document's first token among them.
        requests: Number of requests, halved whenever the record is too large. No node has more than
            the one above it, so that it never stays longer.
    """

    above: _Node | None
    name: str
    tokens: array[int]
    begins: int
    requests: int = 0

    def path(self) -> list[_Node]:
        """All that is above it, and itself."""
        return [*(() if self.above is None else self.above.path()), self]


class HotPrefixes:
    """Counts the beginnings of prompts in bounded memory. Thread-safe.

    Args:
        tokens: The most tokens that :meth:`hottest` returns; 0 records nothing.

    Attributes:
        recorded_tokens: Size of the record in tokens.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._nodes: dict[tuple[_Node | None, str, bytes], _Node] = {}
        self.recorded_tokens = 0
        self._lock = make_lock()

    def note(
        self, namespace: str, token_ids: Sequence[int], documents: Sequence[tuple[str, int, int]]
    ) -> None:
        """Record an answered prompt; prompts without documents are ignored.

        Args:
            namespace: The prompt's tenant.
            token_ids: The prompt's tokens.
            documents: Each document's id, first token, and token after the last.
        """
        if not self._tokens or not documents:
            return
        node: _Node | None = None
        start = 0
        with self._lock:
            for name, begin, end in [(namespace, 0, documents[0][1]), *documents[:DOCUMENTS]]:
                tokens = array("i", token_ids[start:end])
                key = (node, name, tokens.tobytes())
                node = self._nodes.get(key)
                if node is None:
                    node = self._nodes[key] = _Node(key[0], name, tokens, begin - start)
                    self.recorded_tokens += len(tokens) + 1
                node.requests += 1
                start = end
            while self.recorded_tokens > RECORDED * self._tokens:
                self._halve()

    def hottest(self, limit: int) -> list[Submit]:
        """Requests that compute the most common beginnings, each after those that it continues.

        Args:
            limit: The most tokens in total; shared beginnings count once.
        """
        left = min(limit, self._tokens)
        with self._lock:
            paths = sorted(
                (node.path() for node in self._nodes.values()),
                key=lambda path: (-path[-1].requests, len(path)),
            )
            chosen: set[_Node | None] = {None}
            prefixes: list[Submit] = []
            for path in paths:
                node = path[-1]
                if len(prefixes) == MOST_PREFIXES or node.requests < SEEN_OFTEN:
                    break
                if len(node.tokens) > left or node.above not in chosen:
                    continue
                chosen.add(node)
                left -= len(node.tokens)
                prefixes.append(_prefix(path))
        return [prefix for prefix in prefixes if prefix.token_ids]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._nodes.clear()
            self.recorded_tokens = 0

    def _halve(self) -> None:
        """Halve the counts, and drop nodes whose count is 0."""
        for key, node in list(self._nodes.items()):
            node.requests //= 2
            if not node.requests:
                del self._nodes[key]
                self.recorded_tokens -= len(node.tokens) + 1


def _prefix(path: Sequence[_Node]) -> Submit:
    token_ids: list[int] = []
    documents = []
    for depth, node in enumerate(path):
        begin = len(token_ids) + node.begins
        token_ids += node.tokens
        if depth:
            documents.append((node.name, begin, len(token_ids)))
    return Submit(0, token_ids, PREFILL, path[0].name, tuple(documents))


SUSPECT_DEATHS = 2
"""Deaths after which a request is suspected of killing the engine's process.

A death counts for each request that the process was computing when it ended; any output of a
request resets its count. Suspects are submitted one at a time, next to requests that are not
suspected, because nobody could say which of two suspects killed a process. A suspect whose count
rises once more fails with :class:`EngineDeadError`, so that it cannot end the engine for others."""


@dataclass(eq=False)
class Exchange:
    """The unfinished requests of an engine. Thread-safe.

    Attributes:
        faults: How often and after what pause a request is retried.
        counters: Count retries and failures of the host tier.
        on_retry: Called, from any thread, when a retry has been scheduled.
        lock: Held while the requests change. Reentrant, because a garbage collection that runs in
            the very thread that holds it may drop a stream, which aborts its request.
        hot: The prompts' most common beginnings.
        pins: The requests that pinned documents.
        tree_stats: Counts of the knowledge tree, as of the last request that ended or was aborted.
    """

    faults: FaultSettings
    counters: Counters
    on_retry: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.lock = make_reentrant_lock()
        self.hot = HotPrefixes(self.faults.rewarm_tokens)
        self.pins = PinRecord()
        self.tree_stats: TreeStats | None = None
        self._numbers = itertools.count(1)
        self._pending: dict[int, PendingRequest] = {}
        self._controls: dict[int, PendingControl] = {}
        self._prefills: dict[int, Receiver] = {}
        self._suspects: dict[int, PendingRequest] = {}
        self._process: EngineProcess | None = None
        self._host_failures = 0  # of this process

    @property
    def connected(self) -> bool:
        """Whether there is a process to send to."""
        return self._process is not None

    # For callers

    def register(self, receiver: Receiver, message: Submit | Control) -> int:
        """Register a request or a control message; :meth:`send` must follow.

        Args:
            receiver: Gets each output once. It is called from another thread and must not block.
                The last call passes an output with a finish reason, an answer or an exception.
            message: The message to send; its number is filled in.

        Returns:
            The number of the request.
        """
        with self.lock:
            number = next(self._numbers)
            if isinstance(message, Submit):
                self._pending[number] = PendingRequest(
                    receiver, replace(message, request_id=number)
                )
            else:
                self._controls[number] = PendingControl(
                    receiver, replace(message, request_id=number)
                )
        return number

    def send(self, number: int) -> None:
        """Send a registered message to the process, now or once it has restarted."""
        with self.lock:
            pending = self._pending.get(number) or self._controls.get(number)
            if pending is not None and self._process is not None and not pending.sent:
                self._process.send(pending.message())

    def abort(self, number: int, *, retract: bool = False) -> bool:
        """Abort a request; its receiver gets nothing more.

        Args:
            number: The request's number, from :meth:`register`.
            retract: Whether its documents were a wrong guess, which does not count as an access.

        Returns:
            Whether it was still in flight.
        """
        with self.lock:
            known = self._pending.pop(number, None) is not None
            if self._process is not None and (known or retract):
                self._process.send(Abort((number,), retract))
            self._send_suspect()
        return known

    def forget(self, number: int) -> None:
        """Drop a control message that needs no answer any more."""
        with self.lock:
            self._controls.pop(number, None)

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Fail all requests and control messages.

        Args:
            error: Makes the exception for each receiver.
        """
        with self.lock:
            abandoned = [pending.receiver for pending in self._pending.values()]
            abandoned += [control.receiver for control in self._controls.values()]
            self._pending, self._controls = {}, {}
        for receiver in abandoned:
            receiver(error())

    # Processes that start and end

    def connect(self, process: EngineProcess) -> tuple[int, int] | None:
        """Send all unfinished requests to a process, and new ones from now on.

        Returns:
            How many requests restart and how many resume; ``None`` if the process has already
            ended.
        """
        with self.lock:
            if process.ended.is_set():
                return None
            self._process = process
            replayed = resumed = 0
            for number, pending in self._pending.items():
                if pending.attempts:
                    resumed += pending.begun
                    replayed += not pending.begun
                if number not in self._suspects:
                    process.send(pending.message())
            for control in self._controls.values():
                process.send(control.message())
            self._send_suspect()
        return replayed, resumed

    def disconnect(self) -> None:
        """Keep requests until the next process, and fail those that may have killed this one."""
        with self.lock:
            self._process = None
            self._host_failures = 0
            killers = self._count_deaths()
            prefills = list(self._prefills.values())
        for receiver in prefills:
            receiver(EngineDeadError("the engine's process ended"))
        for pending in killers:
            pending.receiver(
                EngineDeadError(
                    f"the engine's process ended {pending.deaths} times in a row while it computed "
                    "this request, which may be the cause: it was aborted"
                )
            )

    def _count_deaths(self) -> list[PendingRequest]:
        """Count a death for what the process was computing. Called under the lock.

        Returns:
            Requests with too many deaths, which are removed.
        """
        killers = []
        for number, pending in list(self._pending.items()):
            pending.deaths += pending.computing
            pending.sent, pending.computing, pending.due = False, False, None
            if pending.deaths > SUSPECT_DEATHS:
                del self._pending[number]
                killers.append(pending)
            elif pending.deaths == SUSPECT_DEATHS:
                self._suspects[number] = pending
        return killers

    def _send_suspect(self) -> None:
        """Send the next suspect unless one is being computed. Called under the lock.

        A suspect that has ended or has produced output is none any more.
        """
        for number, suspect in list(self._suspects.items()):
            if self._pending.get(number) is not suspect or not suspect.deaths:
                del self._suspects[number]
        waiting = list(self._suspects.values())
        if self._process is not None and waiting and not any(suspect.sent for suspect in waiting):
            self._process.send(waiting[0].message())

    def compute(
        self, process: EngineProcess, request: Submit, seconds: float, *, abort: bool
    ) -> Received | None:
        """Have a request computed in a process that is not connected yet.

        Args:
            process: The process, which has just started.
            request: The request; its number is filled in.
            seconds: How long to wait for it.
            abort: Whether it is aborted then.

        Returns:
            Its last output, or why it failed; ``None`` if that is not known.
        """
        inbox: queue.SimpleQueue[Received] = queue.SimpleQueue()
        with self.lock:
            if process.ended.is_set():  # nobody would answer
                return None
            number = next(self._numbers)
            self._prefills[number] = inbox.put
        process.send(replace(request, request_id=number))
        try:
            return inbox.get(timeout=max(0.0, seconds))
        except queue.Empty:
            if abort:
                process.send(Abort((number,)))
            return None
        finally:
            with self.lock:
                del self._prefills[number]

    # Messages from the process, in its reading thread

    def received(self, message: Begun | Step | Answer | RequestFailed) -> None:
        """Pass a message from a process to its receivers."""
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
                        if number in self._pending:
                            self._pending[number].computing = True
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
                    "a document's id came with another text than before, or after another text: "
                    "its KV cache was not reused. If the document has changed, all is well; if ids "
                    "are not unique, give each document a unique one. EngineStats.tree counts "
                    "further cases"
                )
            self.tree_stats = tree
        if step.host_failures > self._host_failures:
            new = step.host_failures - self._host_failures
            self._host_failures = step.host_failures
            if not self.counters.add(host_tier_failures=new).host_tier_failures:
                logger.warning(
                    "the host tier fails (%s): what it should have kept is computed again. "
                    "EngineStats.host_tier_failures counts further failures",
                    step.host_error,
                )

    def _output(self, output: Output) -> None:
        number = output.request_id
        final = output.finish_reason is not None
        new: Received | None = None
        with self.lock:
            pending = self._pending.get(number)
            if pending is None:
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
            if final and isinstance(new, Output) and pending is not None:
                prompt = pending.request
                self.hot.note(prompt.namespace, prompt.token_ids, prompt.documents)
                self.pins.note(prompt)

    def _diverged(self, number: int, pending: PendingRequest) -> EngineDeadError | None:
        """Resume a request whose second answer differs. Called under the lock."""
        if not pending.resume_differently():
            return EngineDeadError(
                "the engine's process ended during the request, whose answer is bound to a grammar "
                "or to penalties, and the second attempt gave another answer: send it again"
            )
        if self._process is not None:
            self._process.send(Abort((number,), retract=True))
            self._process.send(pending.message())
        return None

    def _answered(self, answer: Answer) -> None:
        with self.lock:
            pending = self._controls.pop(answer.request_id, None)
        if pending is None:
            return
        match pending.control.operation:
            case "reset_cache":
                self.hot.clear()
                if answer.value:
                    self.pins.clear()
            case "unpin":
                self.pins.forget(pending.control.argument)
        pending.receiver(answer)

    def _failed(self, failure: RequestFailed) -> None:
        number = failure.request_id
        with self.lock:
            receiver = self._prefills.get(number)
            pending = self._pending.get(number)
            control = self._controls.pop(number, None)
            if pending is not None and pending.is_current(failure.attempt):
                pending.computing = False
                if failure.kind is FailureKind.HOST_TIER:  # the tier won't read that copy again
                    if self._process is not None:
                        self._process.send(pending.message())
                    return
                if failure.kind is FailureKind.OTHER and self._try_again(pending):
                    return
                receiver = pending.receiver
                del self._pending[number]
                self._send_suspect()
            elif control is not None:
                receiver = control.receiver
        if receiver is not None:
            receiver(_request_error(failure))

    # Retries of single requests

    def _try_again(self, pending: PendingRequest) -> bool:
        """Schedule another attempt if any is left. Called under the lock."""
        if pending.retries >= self.faults.max_retries:
            return False
        pending.retries += 1
        pending.due = time.monotonic() + backoff_seconds(pending.retries)
        self.counters.add(retried_requests=1)
        self.on_retry()
        return True

    def retry_due(self) -> float:
        """Seconds until the next retry; infinite if there is none."""
        with self.lock:
            due = [pending.due for pending in self._pending.values() if pending.due is not None]
        return max(0.0, min(due) - time.monotonic()) if due else float("inf")

    def retry(self) -> None:
        """Submit the retries that are due, and fail requests that were silent for too long."""
        limit = self.faults.request_timeout
        expired: list[PendingRequest] = []
        with self.lock:
            process = self._process
            if process is None:
                return
            now = time.monotonic()
            for number, pending in list(self._pending.items()):
                if pending.due is not None:
                    if pending.due <= now:
                        process.send(pending.message())
                elif limit is not None and pending.sent and now - pending.progressed_at > limit:
                    process.send(Abort((number,), retract=True))
                    if not self._try_again(pending):
                        del self._pending[number]
                        expired.append(pending)
                        self._send_suspect()
        for pending in expired:
            pending.receiver(
                GenerationTimeoutError(
                    f"there was no output for {limit:g} s, {pending.attempts} times: the request "
                    "was aborted"
                )
            )


def _request_error(failure: RequestFailed) -> Exception:
    if failure.kind is FailureKind.REFUSED:
        return ConfigurationError(failure.message)
    if failure.kind is FailureKind.INVALID:
        return ConfigurationError(f"vLLM refuses the request: {failure.message}")
    return EngineError(f"the request failed: {failure.message}")
