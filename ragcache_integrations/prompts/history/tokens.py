"""How many tokens a message takes in a prompt, the chat template's markup included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ragcache_integrations.core.checks import check_int
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError

__all__ = ["MARKUP_TOKENS", "CountTokens", "MessageCounter"]

CountTokens = Callable[[str], int]

MARKUP_TOKENS = 4
"""Tokens that a message takes besides its text if the template is unknown: those of OpenAI."""

_PROBE = "a"


class MessageCounter:
    """Counts messages. Thread-safe where ``count_tokens`` is.

    Args:
        count_tokens: Counts the tokens of a text.
        engine: A :class:`~ragcache_integrations.engine.RAGCacheEngine`, whose chat template is
            measured. With anything else, or ``None``, a message's markup counts as
            ``MARKUP_TOKENS``.
    """

    def __init__(self, count_tokens: CountTokens, engine: Any = None) -> None:
        self._count_tokens = count_tokens
        self._engine = engine if hasattr(engine, "render") else None
        self._lock = make_lock()
        self._markup: dict[str, int] = {}

    def __call__(self, role: str, text: str) -> int:
        """Count a message.

        Raises:
            ConfigurationError: ``count_tokens`` does not return a whole number of at least 0.
        """
        tokens = check_int("the result of count_tokens", self._count(text), 0)
        return tokens + self._markup_of(role)

    def _count(self, text: str) -> int:
        engine = self._engine
        if engine is None or not text or self._count_tokens != engine.count_tokens:
            return self._count_tokens(text)
        # A document's text is never read as markup, which is how a chat's content is counted. The
        # probe takes away the tokens that begin every prompt.
        whole, probe = (
            len(engine.render(Prompt.raw(PromptDocument(part))).token_ids)
            for part in (text, _PROBE)
        )
        return int(whole - probe + self._count_tokens(_PROBE))

    def _markup_of(self, role: str) -> int:
        if self._engine is None:
            return MARKUP_TOKENS
        # Templates wrap other roles much as they do a user's message, and some refuse those roles.
        role = "assistant" if role == "assistant" else "user"
        with self._lock:
            if role not in self._markup:
                self._markup[role] = self._measure(role)
            return self._markup[role]

    def _measure(self, role: str) -> int:
        """Number of tokens that one more message of a role adds to a conversation."""
        turn = [Message("user", _PROBE), Message("assistant", _PROBE)]
        more = turn if role == "user" else turn[:1]
        try:
            before, after = (self._length(more), self._length([*more, Message(role, _PROBE)]))
        except ConfigurationError:  # the template refuses these messages
            return MARKUP_TOKENS
        return max(0, after - before - self._count_tokens(_PROBE))

    def _length(self, messages: list[Message]) -> int:
        assert self._engine is not None  # noqa: S101 - for type checkers
        return len(self._engine.render(Prompt(messages=tuple(messages))).token_ids)
