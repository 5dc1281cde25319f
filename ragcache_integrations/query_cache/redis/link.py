"""Calls scripts on a Redis server that may be slow or gone."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Protocol

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.forks import make_lock, renew_after_fork

from .bounds import (
    Budget,
    bounded,
    bounded_async,
    bounded_pool,
)
from .breaker import Breaker
from .scripts import Script
from .server import RedisServer

__all__ = ["Link", "ScriptCall", "UnreachableError"]

logger = logging.getLogger(__name__)

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


class ScriptCall(Protocol):
    """A call of a script."""

    @property
    def script(self) -> Script:
        """The script to run."""

    @property
    def counted_arguments(self) -> list[str | bytes | int]:
        """Number of the keys, the keys and the arguments, as Redis reads them."""


class UnreachableError(Exception):
    """The server did not answer in time, refused, or was not called at all.

    Attributes:
        called: Whether the request was sent.
    """

    def __init__(self, *, called: bool) -> None:
        super().__init__("no answer" if called else "not called")
        self.called = called


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
        self._clients: dict[float, Any] = {}
        self._async_clients: dict[tuple[asyncio.AbstractEventLoop, float], Any] = {}
        self._parents: list[Any] = []
        renew_after_fork(self)

    def _after_fork(self) -> None:
        # Kept, but never used: collecting them would take locks that the parent's threads held.
        self._parents += [self._clients, self._async_clients]
        self._clients, self._async_clients = {}, {}

    def budget(self, *, patient: bool = False) -> Budget:
        """Return what an operation may take: time to connect and to be answered, and bytes.

        Args:
            patient: Wait ``change_timeout`` instead of ``timeout``, and try even after earlier
                failures.
        """
        timeout = self.server.change_timeout if patient else self.server.timeout
        return Budget(self.server.connect_timeout + timeout, patient=patient)

    def call(self, request: ScriptCall, budget: Budget) -> Any:
        """Send a request; return the reply.

        Args:
            request: The request.
            budget: What it may take, with all else that belongs to the same operation.

        Raises:
            UnreachableError: The script did not run, as far as is known.
        """
        self._check(budget)
        script, arguments = request.script, request.counted_arguments
        try:
            with budget.spending():
                client = self._client(budget)
                try:
                    reply = client.evalsha(script.sha, *arguments)
                except self._redis.exceptions.NoScriptError:
                    reply = client.eval(script.text, *arguments)
        except Exception as error:  # noqa: BLE001 - a server may cause any: RecursionError, too
            self._note_failure(error)
            raise UnreachableError(called=True) from None
        self._note_success()
        return reply

    async def acall(self, request: ScriptCall, budget: Budget) -> Any:
        """Async version of :meth:`call`."""
        self._check(budget)
        script, arguments = request.script, request.counted_arguments
        try:
            async with asyncio.timeout(budget.seconds()):
                with budget.spending():
                    client = self._async_client(budget)
                    try:
                        reply = await client.evalsha(script.sha, *arguments)
                    except self._redis.exceptions.NoScriptError:
                        reply = await client.eval(script.text, *arguments)
        except Exception as error:  # noqa: BLE001 - as above
            self._note_failure(error)
            raise UnreachableError(called=True) from None
        self._note_success()
        return reply

    def close(self) -> None:
        """Close the connections of threads; they are opened again when needed."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and those of threads."""
        self.close()
        loop = asyncio.get_running_loop()
        with self._lock:
            own = [key for key in self._async_clients if key[0] is loop]
            clients = [self._async_clients.pop(key) for key in own]
        for client in clients:
            await client.aclose()

    def _check(self, budget: Budget) -> None:
        if not budget.patient and not self._breaker.allows():
            raise UnreachableError(called=False)

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

    def _note_success(self) -> None:
        if self._breaker.succeed():
            logger.info("The shared %s at %s answers again", self.what, self.server.where)

    def _client(self, budget: Budget) -> Any:
        timeout = self._timeout(budget)
        client = self._clients.get(timeout)
        if client is None:
            # Not under the lock: that of a cluster connects at once.
            made = self._make_client(self._redis, bounded, timeout)
            with self._lock:
                client = self._clients.setdefault(timeout, made)
            if client is not made:
                made.close()
        return client

    def _async_client(self, budget: Budget) -> Any:
        loop, timeout = asyncio.get_running_loop(), self._timeout(budget)
        with self._lock:
            client = self._async_clients.get((loop, timeout))
            if client is None:
                for key in [key for key in self._async_clients if key[0].is_closed()]:
                    del self._async_clients[key]
                module = require("redis.asyncio", feature="redis.asyncio", extra="redis")
                client = self._async_clients[loop, timeout] = self._make_client(
                    module, bounded_async, timeout
                )
            return client

    def _timeout(self, budget: Budget) -> float:
        return self.server.change_timeout if budget.patient else self.server.timeout

    def _make_client(self, module: Any, bound: Callable[[Any], Any], timeout: float) -> Any:
        """Return a client of ``redis``, or of ``redis.asyncio``."""
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
