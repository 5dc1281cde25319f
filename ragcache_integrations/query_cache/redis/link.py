"""Calls scripts on a Redis server that may be slow or gone.

The timeouts of redis-py are those of a single read, and a server that sends a byte now and then
never exceeds them. redis-py also reads as much as a server announces. So every socket
and every stream reader of a connection is wrapped here, and asks the budget of the operation under
way, which covers connecting, logging in and retries alike. A breaker leaves a server alone for a
while if it does not answer.

If a shard cannot be reached in time after a change, its entries may answer wrongly until they are
cleared. Until then this process does not ask that shard; a thread clears it as soon as it can.
Other processes that reach the server when this one cannot may get answers that are out of date.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.forks import make_lock, renew_after_fork

from .scripts import Script
from .server import RedisServer

__all__ = [
    "LARGEST_ANSWER",
    "Arguments",
    "Breaker",
    "Budget",
    "Call",
    "Channel",
    "Link",
    "UnreachableError",
    "bounded",
    "bounded_async",
    "bounded_pool",
    "check_reply",
]

logger = logging.getLogger(__name__)


_FAILURES = ("failed", "skipped", "lost", "corrupt")

LARGEST_ANSWER = 1 << 26
"""Bytes that an operation may read, answers of the server to logging in included."""


class Budget:
    """Time and bytes of an operation.

    Args:
        seconds: Time for the whole operation.
        patient: Whether it is a change, which must not get lost.

    Attributes:
        patient: As given.
        deadline: When the time is over, by ``time.monotonic``.
    """

    def __init__(self, seconds: float, *, patient: bool = False) -> None:
        self.patient = patient
        self.deadline = time.monotonic() + seconds
        self._bytes = LARGEST_ANSWER

    def seconds(self) -> float:
        """Return the time that is left.

        Raises:
            TimeoutError: None is.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the operation took too long")
        return left

    def take(self, count: int) -> None:
        """Note that bytes are read.

        Raises:
            ConnectionError: The budget is exceeded.
        """
        self._bytes -= count
        if self._bytes < 0:
            raise ConnectionError(f"the server sends more than {LARGEST_ANSWER} bytes")

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Charge all reads and writes within the block to this budget."""
        before = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(before)


_CURRENT: ContextVar[Budget | None] = ContextVar("ragcache_redis_budget", default=None)


class _Socket:
    """A socket whose reads and writes end with the operation."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._timeout: float | None = socket.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def settimeout(self, seconds: float | None) -> None:
        """Set the timeout of a single read or write; 0: do not wait."""
        self._timeout = seconds
        self._socket.settimeout(seconds)

    def recv(self, size: int) -> bytes:
        """Read some bytes."""
        content: bytes = self._within(self._socket.recv, size)
        _take(len(content))
        return content

    def recv_into(self, *arguments: Any) -> int:
        """Read some bytes into a buffer."""
        count: int = self._within(self._socket.recv_into, *arguments)
        _take(count)
        return count

    def sendall(self, content: bytes) -> None:
        """Write all bytes."""
        self._within(self._socket.sendall, content)

    def _within(self, act: Callable[..., Any], *arguments: Any) -> Any:
        budget = _CURRENT.get()
        # One that does not wait is asked whether there is something to read.
        if budget is not None and self._timeout != 0:
            left = budget.seconds()
            self._socket.settimeout(left if self._timeout is None else min(self._timeout, left))
        return act(*arguments)


class _Reader:
    """A stream reader of asyncio whose bytes are counted; its time is bounded where it is used."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def readexactly(self, count: int) -> bytes:
        """Read this many bytes, if the budget allows."""
        _take(count)
        content: bytes = await self._reader.readexactly(count)
        return content

    async def readline(self) -> bytes:
        """Read a line, which asyncio bounds at 64 KiB."""
        content: bytes = await self._reader.readline()
        _take(len(content))
        return content

    async def read(self, count: int = -1) -> bytes:
        """Read the bytes that have arrived."""
        content: bytes = await self._reader.read(count)
        _take(len(content))
        return content


def _take(count: int) -> None:
    budget = _CURRENT.get()
    if budget is not None:
        budget.take(count)


@cache
def bounded(kind: Any) -> Any:
    """Return a subclass of a connection of redis-py, with bounds."""

    def connect(self: Any) -> Any:
        return _Socket(kind._connect(self))  # noqa: SLF001 - redis-py has no other hook

    return type(f"Bounded{kind.__name__}", (kind,), {"_connect": connect})


@cache
def bounded_async(kind: Any) -> Any:
    """Return a subclass of a connection of ``redis.asyncio``, with bounds."""

    async def connect(self: Any) -> None:
        await kind._connect(self)  # noqa: SLF001 - as above
        self._reader = _Reader(self._reader)

    return type(f"Bounded{kind.__name__}", (kind,), {"_connect": connect})


@cache
def bounded_pool(kind: Any, usual: Any) -> Any:
    """Return the same kind of pool of redis-py, whose connections have bounds.

    Args:
        kind: Class of the pool.
        usual: Class of its connections where none is named.
    """

    def make(self: Any, connection_class: Any = usual, **options: Any) -> None:
        kind.__init__(self, connection_class=bounded(connection_class), **options)

    return type(f"Bounded{kind.__name__}", (kind,), {"__init__": make})


class Breaker:
    """A circuit breaker: after some failures in a row, most requests are not even tried.

    Once in a while one is let through; when it succeeds, so are all. Thread-safe.

    Args:
        failures: How many failures in a row open it.
        pause: Seconds between two tries while it is open.
        clock: Returns a monotonic time in seconds.
    """

    def __init__(
        self, failures: int, pause: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = failures
        self._pause = pause
        self._clock = clock
        self._lock = make_lock()
        self._failed = 0
        self._next_try = 0.0

    def allows(self) -> bool:
        """Whether a request may be tried now. Who hears yes says what came of it."""
        if self._failed < self._most:
            return True
        with self._lock:
            now = self._clock()
            if now < self._next_try:
                return False
            self._next_try = now + self._pause
            return True

    def fail(self) -> bool:
        """Note a failure; return whether it was the one that opened the breaker."""
        with self._lock:
            self._failed += 1
            self._next_try = self._clock() + self._pause
            return self._failed == self._most

    def succeed(self) -> bool:
        """Note a success; return whether the breaker was open."""
        if not self._failed:
            return False
        with self._lock:
            was_open = self._failed >= self._most
            self._failed = 0
            return was_open


# Options of every client. RESP2 answers alike in all versions of redis-py from 5 on, and connects
# in fewer steps.
_OPTIONS: dict[str, Any] = {"protocol": 2, "decode_responses": False}
# A cluster's client learns where a slot has moved to by a failure.
_CLUSTER_RETRIES = 1
_KINDS = {
    "redis": "Connection",
    "rediss": "SSLConnection",
    "unix": "UnixDomainSocketConnection",
}


Arguments = list[str | bytes | int]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a script.

    Attributes:
        shard: Number of the shard that all keys belong to.
        script: The script to run.
        keys: The script's keys, all in one slot.
        arguments: The script's arguments.
        patient: Whether the call must not be lost.
    """

    shard: int
    script: Script
    keys: list[str]
    arguments: Arguments
    patient: bool = field(default=False, kw_only=True)

    @property
    def counted_arguments(self) -> Arguments:
        """Number of the keys, the keys and the arguments, as Redis reads them."""
        return [len(self.keys), *self.keys, *self.arguments]


_LARGEST_NUMBER = 1 << 53  # what Lua counts with exactly


def check_reply(numbers: Iterable[object], texts: Iterable[object]) -> None:
    """Refuse replies that none of our scripts can have sent; a reply may hold errors, too.

    Raises:
        TypeError, ValueError: A number is no count, or a text is not of bytes.
    """
    if not all(type(number) is int and 0 <= number < _LARGEST_NUMBER for number in numbers):
        raise ValueError("numbers must be those of a server's script")
    if not all(type(text) is bytes for text in texts):
        raise TypeError("texts must be bytes")


class UnreachableError(Exception):
    """The server did not answer in time, refused, or was not called at all.

    Attributes:
        called: Whether the request was sent.
        counted_as: Name of what counts such lookups.
    """

    def __init__(self, *, called: bool) -> None:
        super().__init__("no answer" if called else "not called")
        self.called = called
        self.counted_as = "failed" if called else "skipped"


class Link:
    """Talks to one server from any thread and any event loop.

    Connections of threads are shared; those of coroutines belong to their event loop, and are to be
    closed in it: :meth:`aclose`.

    Args:
        server: Where Redis is, and how long to wait for it.
        what: What is kept there, for messages.
        instead: What happens without it, for messages.

    Raises:
        MissingExtraError: redis-py is not installed.
    """

    def __init__(
        self,
        server: RedisServer,
        what: str = "query cache",
        instead: str = "questions are searched for without it",
    ) -> None:
        self._redis = require("redis", feature=f"A shared {what}", extra="redis")
        self.server = server
        self.what = what
        self._instead = instead
        self._breaker = Breaker(server.failures, server.retry_after)
        self._lock = make_lock()
        # By event loop, none for threads, and by timeout.
        self._clients: dict[tuple[asyncio.AbstractEventLoop | None, float], Any] = {}
        self._parents: list[Any] = []
        renew_after_fork(self)

    def _after_fork(self) -> None:
        # Kept, but never used: collecting them would take locks that the parent's threads held.
        self._parents.append(self._clients)
        self._clients = {}

    def budget(self, *, patient: bool = False) -> Budget:
        """Return what an operation may take: time to connect and to be answered, and bytes.

        Args:
            patient: Wait ``change_timeout`` instead of ``timeout``, and try even after earlier
                failures.
        """
        timeout = self.server.change_timeout if patient else self.server.timeout
        return Budget(self.server.connect_timeout + timeout, patient=patient)

    def call(self, request: Call, budget: Budget) -> Any:
        """Send a request; return the reply.

        Args:
            request: The request.
            budget: What it may take, with all else that belongs to the same operation.

        Raises:
            UnreachableError: The script did not run, as far as is known.
        """
        script, arguments = request.script, request.counted_arguments
        with self._trying(budget):
            client = self._client(budget)
            try:
                return client.evalsha(script.sha, *arguments)
            except self._redis.exceptions.NoScriptError:
                return client.eval(script.text, *arguments)

    async def acall(self, request: Call, budget: Budget) -> Any:
        """Async version of :meth:`call`."""
        script, arguments = request.script, request.counted_arguments
        with self._trying(budget):
            async with asyncio.timeout(budget.seconds()):
                client = self._client(budget, asyncio.get_running_loop())
                try:
                    return await client.evalsha(script.sha, *arguments)
                except self._redis.exceptions.NoScriptError:
                    return await client.eval(script.text, *arguments)

    @contextmanager
    def _trying(self, budget: Budget) -> Iterator[None]:
        """Charge a call to a budget, unless the server is left alone, and note what comes of it."""
        if not budget.patient and not self._breaker.allows():
            raise UnreachableError(called=False)
        try:
            with budget.spending():
                yield
        except Exception as error:  # noqa: BLE001 - a server may cause any: RecursionError, too
            self._note_failure(error)
            raise UnreachableError(called=True) from None
        if self._breaker.succeed():
            logger.info("The shared %s at %s answers again", self.what, self.server.where)

    def close(self) -> None:
        """Close the connections of threads; they are opened again when needed."""
        for client in self._take_clients(None):
            client.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and those of threads."""
        self.close()
        for client in self._take_clients(asyncio.get_running_loop()):
            await client.aclose()

    def _take_clients(self, loop: asyncio.AbstractEventLoop | None) -> list[Any]:
        with self._lock:
            own = [key for key in self._clients if key[0] is loop]
            return [self._clients.pop(key) for key in own]

    def _note_failure(self, error: Exception) -> None:
        opened = self._breaker.fail()
        server = self.server
        reason = server.without_secrets(f"{type(error).__name__}: {error}")
        if opened:
            logger.warning(
                "The shared %s at %s fails, and %s. It is tried again every %g s: %s",
                self.what,
                server.where,
                self._instead,
                server.retry_after,
                reason,
            )
        else:
            logger.debug("The shared %s at %s failed: %s", self.what, server.where, reason)

    def _client(self, budget: Budget, loop: asyncio.AbstractEventLoop | None = None) -> Any:
        """Return the client of ``redis`` for threads, or of ``redis.asyncio`` for an event loop."""
        timeout = self.server.change_timeout if budget.patient else self.server.timeout
        client = self._clients.get((loop, timeout))
        if client is None:
            # Not under the lock: that of a cluster connects at once.
            made = self._make_client(timeout, asynchronous=loop is not None)
            with self._lock:
                for key in [key for key in self._clients if key[0] and key[0].is_closed()]:
                    del self._clients[key]
                client = self._clients.setdefault((loop, timeout), made)
            if client is not made:
                made.close()
        return client

    def _make_client(self, timeout: float, *, asynchronous: bool) -> Any:
        module, bound = self._redis, bounded
        if asynchronous:
            module = require("redis.asyncio", feature="redis.asyncio", extra="redis")
            bound = bounded_async
        server = self.server
        kind = module.RedisCluster if server.cluster else module.Redis
        # redis-py's own way is to try several times, with pauses.
        options = dict(_OPTIONS)
        # It tells the server its version, which it reads from the disk for every connection.
        if "driver_info" in inspect.signature(self._redis.Redis).parameters:
            options["driver_info"] = None
        retry = module.retry.Retry(
            self._redis.backoff.NoBackoff(), _CLUSTER_RETRIES if server.cluster else 0
        )
        options |= {
            "socket_timeout": timeout,
            "socket_connect_timeout": server.connect_timeout,
            "retry": retry,
        }
        if not server.cluster:
            connection = module.connection
            options["connection_class"] = bound(getattr(connection, _KINDS[server.scheme]))
            # The parser of hiredis makes room for whatever a server announces.
            parser = "_RESP2Parser" if module is self._redis else "_AsyncRESP2Parser"
            options["parser_class"] = getattr(connection, parser)
        elif module is self._redis:
            options["connection_pool_class"] = bounded_pool(
                module.ConnectionPool, module.connection.Connection
            )
        client = kind.from_url(server.url, **options)
        if server.cluster and module is not self._redis:
            bounds = {"connection_class": bound(client.connection_kwargs["connection_class"])}
            client.connection_kwargs |= bounds
            for node in client.startup_nodes:
                node.connection_class = bounds["connection_class"]
        return client


class Channel:
    """Sends the calls of a shared cache, and counts what became of them. Thread-safe.

    A shard that did not receive a change in time may hold what is out of date until it is cleared.
    Until then this process does not ask it; a thread clears it as soon as it can.

    Args:
        server: Where Redis is, and how long to wait for it.
        clearing: Makes the call that clears a shard.
        what: As for :class:`Link`.
        instead: As for :class:`Link`.

    Attributes:
        link: The link to the server.

    Raises:
        MissingExtraError: redis-py is not installed.
    """

    def __init__(
        self,
        server: RedisServer,
        clearing: Callable[[int], Call],
        what: str = "query cache",
        instead: str = "questions are searched for without it",
    ) -> None:
        self.link = Link(server, what, instead)
        self._clearing = clearing
        self._lock = make_lock()
        self._owed: dict[int, int] = {}  # how often each was owed, so that none gets lost
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._counts: Counter[str] = Counter()
        self._warned = False
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._thread, self._closed = None, threading.Event()  # the next lookup starts a thread

    def counts(self) -> dict[str, int]:
        """Return what was counted, ``failed``, ``skipped``, ``lost``, ``corrupt`` and ``owed``."""
        with self._lock:
            counts = dict.fromkeys(_FAILURES, 0) | self._counts
        return counts | {"owed": len(self._owed)}

    def count(self, **amounts: int) -> None:
        """Count what happened."""
        with self._lock:
            self._counts.update(amounts)

    def note_corrupt(self, count: int) -> None:
        """Count values that are no entries, or replies that are none; log the first."""
        if not count:
            return
        self.count(corrupt=count)
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        logger.log(
            level,
            "The shared %s at %s holds or answers what no process of this version wrote. "
            "It is not used: these are misses, counted as corrupt",
            self.link.what,
            self.link.server.where,
        )

    def send(self, calls: Sequence[Call]) -> list[Any]:
        """Send what belongs to one operation; return the replies.

        Of calls that must not get lost there are no replies, and nothing is raised: a thread clears
        the shards that they did not reach.

        Raises:
            UnreachableError: One of the calls was not answered, or not made.
        """
        budget = self._begin(calls)
        if not budget.patient:
            return [self.link.call(call, budget) for call in calls]
        owed = {call.shard for call in calls}
        try:
            for call in calls:
                self.link.call(call, budget)
                owed.discard(call.shard)
        except UnreachableError:
            pass  # the others would have to wait as long
        finally:
            self.owe(owed)
        return []

    async def asend(self, calls: Sequence[Call]) -> list[Any]:
        """Async version of :meth:`send`."""
        budget = self._begin(calls)
        if not budget.patient:
            return await asyncio.gather(*(self.link.acall(call, budget) for call in calls))
        owed = {call.shard for call in calls}

        async def deliver(call: Call) -> None:
            with suppress(UnreachableError):
                await self.link.acall(call, budget)
                owed.discard(call.shard)

        try:
            await asyncio.gather(*map(deliver, calls))
        finally:  # also if this is cancelled
            self.owe(owed)
        return []

    def _begin(self, calls: Sequence[Call]) -> Budget:
        """Return what an operation may take, unless it asks a shard whose entries are old."""
        if any(call.patient for call in calls):
            return self.link.budget(patient=True)
        if any(call.shard in self._owed for call in calls):
            self.owe(())  # if no thread is trying, as after close()
            raise UnreachableError(called=False)
        return self.link.budget()

    def owe(self, shards: Iterable[int]) -> None:
        """Have shards cleared as soon as possible, along with those owed already."""
        with self._lock:
            for shard in shards:
                self._owed[shard] = self._owed.get(shard, 0) + 1
            if self._owed and self._thread is None and not self._closed.is_set():
                self._begin_clearing()

    def _begin_clearing(self) -> None:
        """Start the thread; the lock is held. Where that fails, the next lookup tries again."""
        thread = threading.Thread(
            target=self._clear_owed, name="ragcache-redis-changes", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # as where there are too many threads
            logger.warning("What Redis has to forget cannot be sent to it yet: %s", error)
        else:
            self._thread = thread

    def _clear_owed(self) -> None:
        pause = 0.0
        warned = False
        while not self._closed.wait(pause):
            try:
                self._clear_once()
            except Exception:  # of any kind: what is owed stays owed and is tried again
                level = logging.DEBUG if warned else logging.WARNING
                warned = True
                logger.log(level, "Redis cannot receive changes of the store", exc_info=True)
            with self._lock:
                if not self._owed:
                    self._thread = None
                    return
            pause = self.link.server.retry_after

    def _clear_once(self) -> None:
        for shard, times in list(self._owed.items()):
            try:
                self.link.call(self._clearing(shard), self.link.budget(patient=True))
            except UnreachableError:
                return
            with self._lock:
                if self._owed.get(shard) == times:  # else it is owed once more since
                    del self._owed[shard]

    def close(self) -> None:
        """Close the connections of threads; clear no more until something is owed again."""
        self._stop()
        self.link.close()

    async def aclose(self) -> None:
        """Async version of :meth:`close`, for the connections of this event loop, too."""
        await asyncio.to_thread(self._stop)
        await self.link.aclose()

    def _stop(self) -> None:
        """Stop trying. Shards still owed stay out of date."""
        self._closed.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        self._thread = None
        self._closed.clear()
        if self._owed:
            logger.warning(
                "The shared %s at %s did not receive changes, and holds what is out of date",
                self.link.what,
                self.link.server.where,
            )
