"""Whether a server is ``ragcache serve``, which understands documents, or any other."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ragcache_integrations.engine.serving import FACTS_PATH, PROTOCOL, ServerFacts
from ragcache_integrations.errors import ServerError, ServerResponseError

from .clients import OpenAIClients

if TYPE_CHECKING:
    import openai

__all__ = ["Handshake"]

logger = logging.getLogger(__name__)

SECONDS = 10.0
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

    def ask(self, timeout: float | None = None) -> ServerFacts | None:
        """The server's facts; ``None`` if it is another server, or does not answer.

        Args:
            timeout: Timeout of the request that follows, in seconds; ``None`` for no limit.
        """
        if not self._known:
            with self._noting_failures(timeout):
                client = self._clients.get()
                self._note(client.get(FACTS_PATH, cast_to=object, options=_options(timeout)))
        return self._facts

    async def aask(self, timeout: float | None = None) -> ServerFacts | None:
        """Async version of :meth:`ask`."""
        if not self._known:
            with self._noting_failures(timeout):
                client = await self._clients.aget()
                self._note(await client.get(FACTS_PATH, cast_to=object, options=_options(timeout)))
        return self._facts

    @contextlib.contextmanager
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
        with contextlib.suppress(ValidationError):
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
    return {"timeout": SECONDS if timeout is None else min(timeout, SECONDS), "max_retries": 0}
