"""Connections to an OpenAI-compatible server, what goes wrong with them, and which server it is.

An async client's connections belong to the event loop that opened them, so there is one client
for each loop, closed with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic import ValidationError

from ragcache_integrations.core.extras import require
from ragcache_integrations.core.flows import Call
from ragcache_integrations.core.forks import make_lock, renew_after_fork
from ragcache_integrations.engine.serving import FACTS_PATH, PROTOCOL, ServerFacts
from ragcache_integrations.errors import (
    EngineClosedError,
    PromptTooLongError,
    RAGCacheError,
    ServerError,
    ServerResponseError,
    ServerTimeoutError,
    ServerUnreachableError,
)

from .answers import WORDS, AnswerError, error_labels, failure_message, shortened

if TYPE_CHECKING:
    import openai

__all__ = ["Handshake", "OpenAIClients"]

logger = logging.getLogger(__name__)

NO_KEY = "none"  # the package requires a key, servers without keys ignore it

RATE_LIMIT = 429
CONTEXT_OVERFLOW = re.compile("|".join(WORDS["context_overflow"]), re.DOTALL | re.IGNORECASE)
RATE_WORDS = re.compile(r"tokens per (?:minute|day)|rate[ _]limit|\bTP[MD]\b", re.IGNORECASE)


class OpenAIClients:
    """Makes, keeps and closes the ``openai`` package's clients of one server. Thread-safe.

    Args:
        base_url: Address of the server, with its ``/v1``.
        api_key: The server's key, if it requires one.
        max_retries: How often a request is retried after a transient failure.
        headers: HTTP headers for every request.

    Raises:
        MissingExtraError: The ``openai`` package is not installed.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        max_retries: int,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._openai: Any = require("openai", feature="base_url=", extra="openai")
        self._base_url = base_url
        self._arguments = {
            "base_url": base_url,
            "api_key": api_key or NO_KEY,
            "max_retries": max_retries,
            "default_headers": dict(headers or {}),
        }
        self._lock = make_lock()
        self._closed = False
        self._sync: openai.OpenAI | None = None
        self._async: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[openai.AsyncOpenAI, AsyncIterator[None]]
        ] = WeakKeyDictionary()
        self._parents: list[Any] = []
        renew_after_fork(self)

    def _after_fork(self) -> None:
        # Kept, but never used: collecting them would take locks that the parent's threads held.
        self._parents += [self._sync, dict(self._async)]
        self._sync, self._async = None, WeakKeyDictionary()

    @property
    def stream_types(self) -> tuple[type[openai.Stream[object]], type[openai.AsyncStream[object]]]:
        """The types in which the clients give streams of plain JSON values."""
        return self._openai.Stream[object], self._openai.AsyncStream[object]

    def get(self) -> openai.OpenAI:
        """The client for synchronous use."""
        with self._lock:
            self._check_open()
            if self._sync is None:
                self._sync = self._openai.OpenAI(**self._arguments)
            return self._sync

    async def aget(self) -> openai.AsyncOpenAI:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._check_open()
            if loop in self._async:
                return self._async[loop][0]
        made = await asyncio.to_thread(self._make_async)  # reads certificates from the disk
        with self._lock:
            for other in [other for other in self._async if other.is_closed()]:
                del self._async[other]
            if not self._closed and loop not in self._async:
                guard = _closed_with_loop(made)
                self._async[loop] = (made, guard)
            else:
                guard = None
        if guard is None:  # another task was faster
            await made.close()
            return await self.aget()
        await anext(guard)
        return made

    def close(self) -> None:
        """Close all connections, those of event loops as soon as their loop runs."""
        with self._lock:
            self._closed = True
            sync, self._sync = self._sync, None
            self._async.clear()  # a dropped guard has its loop close the client
        if sync is not None:
            sync.close()

    async def aclose(self) -> None:
        """Async version of :meth:`close`."""
        loop = asyncio.get_running_loop()
        with self._lock:
            here, _ = self._async.get(loop, (None, None))
        if here is not None:
            await here.close()
        await asyncio.to_thread(self.close)

    @contextmanager
    def errors_in_words(self, timeout: float | None = None) -> Iterator[None]:
        """Turn what the package raises into this package's errors."""
        try:
            yield
        except Exception as error:
            translated = self._translate(error, timeout)
            if translated is None:
                raise
            raise translated from error

    def _translate(self, error: Exception, timeout: float | None) -> Exception | None:
        where = f"the server at {self._base_url}"
        package = self._openai
        translated: Exception | None = None
        if isinstance(error, RAGCacheError):
            pass
        elif self._closed:
            translated = EngineClosedError(f"the client of {self._base_url} was closed")
        elif isinstance(error, package.APITimeoutError) or _is_timeout(error):
            limit = "" if timeout is None else f" within {timeout:g} s"
            translated = ServerTimeoutError(f"{where} did not answer{limit}")
        elif isinstance(error, package.APIConnectionError):
            translated = _unreachable(where, error)
        elif isinstance(error, package.APIStatusError):
            translated = _refusal(where, error)
        elif isinstance(error, AnswerError):
            translated = _failure(where, error)
        elif isinstance(error, package.APIError):
            translated = ServerResponseError(f"{where} failed: {shortened(error.message)}")
        elif isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
            sent = error.doc if isinstance(error, json.JSONDecodeError) else str(error)
            msg = f"{where} answered something that makes no sense: {shortened(sent)}"
            translated = ServerResponseError(msg)
        elif type(error).__module__.partition(".")[0] in {"httpx", "httpx2"}:
            translated = _unreachable(where, error)  # while a stream is read
        return translated

    def _make_async(self) -> openai.AsyncOpenAI:
        # With a plain HTTP client: the package's own would, once collected, close itself on
        # whichever loop happens to run then.
        transport = self._openai.DefaultAsyncHttpxClient()
        client: openai.AsyncOpenAI = self._openai.AsyncOpenAI(
            **self._arguments, http_client=transport
        )
        return client

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError(f"the client of {self._base_url} was closed")


async def _closed_with_loop(client: openai.AsyncOpenAI) -> AsyncIterator[None]:
    """Close ``client`` when this generator is dropped, or its event loop shuts down.

    ``asyncio.run`` and its like close the generators that are still open before they close the
    loop; a dropped generator is closed by its own loop, whichever thread drops it.
    """
    try:
        yield
    finally:
        await client.close()


def _unreachable(where: str, error: Exception) -> ServerUnreachableError:
    cause = error.__cause__ or error  # the package's own words are "Connection error."
    return ServerUnreachableError(f"{where} can't be reached: {type(cause).__name__}: {cause}")


def _is_timeout(error: Exception) -> bool:
    """Whether it is a timeout: those of ``httpx``, while a stream is read, are of a class apart."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"TimeoutError", "TimeoutException"})


def _refusal(where: str, error: openai.APIStatusError) -> Exception:
    # The package's own message leaves out errors that are plain strings or pages.
    whole = failure_message(error.body) or error.message
    message = shortened(whole)
    status, labels = error.status_code, error_labels(error.body)
    if status != RATE_LIMIT and (too_long := _overflow(where, whole, labels)):
        return too_long
    msg = f"{where} refused with status {status}: {message}"
    return ServerResponseError(msg, status)


def _failure(where: str, error: AnswerError) -> Exception:
    """An answer without one: sent with a status that claims success, as gateways do."""
    message = str(error)
    too_long = _overflow(where, message, error.labels)
    return too_long or ServerResponseError(f"{where} failed: {message}", error.status_code)


def _overflow(where: str, message: str, labels: str) -> PromptTooLongError | None:
    match = CONTEXT_OVERFLOW.search(message) or CONTEXT_OVERFLOW.search(labels)
    if match is None or RATE_WORDS.search(f"{message} {labels}"):
        return None
    length, limit = (
        next((int(match[name]) for name in names if match[name]), None)
        for names in (("length", "tokens", "given"), ("limit", "window", "most"))
    )
    if length is not None and limit is not None and length > limit:
        return PromptTooLongError(length, limit, f"as {where} says")
    return PromptTooLongError(None, limit, f"as {where} says: {shortened(message)}")


HANDSHAKE_SECONDS = 10.0
"""Seconds to wait for the answer; without one, this request's documents are sent as text."""

# Statuses that say nothing about the server: it requires another key, or fewer requests.
_PASSING = frozenset({401, 403, 408, 425, 429})
_CLIENT_ERRORS = range(400, 500)


class Handshake:
    """Asks a server once for its facts. Thread-safe: concurrent first calls ask twice.

    An answer is remembered, a transient failure is not.

    Args:
        clients: Connections to the server.
        base_url: Its address, for warnings.
    """

    def __init__(self, clients: OpenAIClients, base_url: str) -> None:
        self._clients = clients
        self._base_url = base_url
        self._known = False
        self._facts: ServerFacts | None = None

    def ask(self, timeout: float | None = None) -> Generator[Call, Any, ServerFacts | None]:
        """The server's facts; ``None`` if it is another server, or does not answer.

        Args:
            timeout: Timeout of the request that follows, in seconds; ``None`` for no limit.
        """
        if not self._known:
            with self._noting_failures(timeout):
                client = yield Call(self._clients.get, self._clients.aget)
                get = partial(client.get, FACTS_PATH, cast_to=object, options=_options(timeout))
                self._note((yield Call(get, get)))
        return self._facts

    @contextmanager
    def _noting_failures(self, timeout: float | None) -> Iterator[None]:
        try:
            with self._clients.errors_in_words(timeout):
                yield
        except ServerResponseError as error:
            status = error.status_code  # without one, the answer was no JSON
            self._known = status is None or (status in _CLIENT_ERRORS and status not in _PASSING)
        except ServerError:
            pass  # it may pass

    def _note(self, answer: object) -> None:
        facts: ServerFacts | None = None
        with suppress(ValidationError):
            facts = ServerFacts.model_validate(answer)
        if facts is not None and facts.protocol == PROTOCOL:
            self._facts = facts
        was_known, self._known = self._known, True  # last: others look at it first
        if facts is not None and self._facts is None and not was_known:
            logger.warning(
                "the server at %s runs ragcache-integrations %s, which speaks another protocol "
                "than this version (%s, not %s): documents are sent to it as plain text",
                self._base_url,
                facts.ragcache,
                facts.protocol,
                PROTOCOL,
            )


def _options(timeout: float | None) -> openai.RequestOptions:
    return {
        "timeout": HANDSHAKE_SECONDS if timeout is None else min(timeout, HANDSHAKE_SECONDS),
        "max_retries": 0,
    }
