"""How many tokens a message takes in a prompt, the chat template's markup included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError

__all__ = ["MARKUP_TOKENS", "CountTokens", "MessageCounter"]

CountTokens = Callable[[str], int]

MARKUP_TOKENS = 4
"""Of a message whose template is not known: what OpenAI's models take."""

_PROBE = "a"


class MessageCounter:
    """Counts messages. Thread-safe where ``count_tokens`` is.

    Args:
        count_tokens: Counts the tokens of a text.
        engine: A :class:`~ragcache_integrations.engine.RAGCacheEngine`, whose chat template tells
            what the markup takes. Anything else, or ``None``: each message takes
            ``MARKUP_TOKENS`` more.
    """

    def __init__(self, count_tokens: CountTokens, engine: Any = None) -> None:
        self._count_tokens = count_tokens
        self._engine = engine if hasattr(engine, "render") else None
        self._lock = make_lock()
        self._markup: dict[str, int] = {}

    def __call__(self, role: str, text: str) -> int:
        """Count a message.

        Raises:
            ConfigurationError: The counter does not give a whole number of at least 0.
        """
        tokens = self._count(text)
        if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
            msg = f"count_tokens must return a whole number of at least 0, got {tokens!r}"
            raise ConfigurationError(msg)
        return tokens + self._markup_of(role)

    def _count(self, text: str) -> int:
        engine = self._engine
        if engine is None or not text or self._count_tokens != engine.count_tokens:
            return self._count_tokens(text)
        # In a chat no content is markup, and a document is counted so; what stands before any
        # prompt is not part of it.
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
        """What one more message of a role adds to a conversation."""
        turn = [Message("user", _PROBE), Message("assistant", _PROBE)]
        more = turn if role == "user" else turn[:1]
        try:
            before, after = (self._length(more), self._length([*more, Message(role, _PROBE)]))
        except ConfigurationError:  # the template wants something else
            return MARKUP_TOKENS
        return max(0, after - before - self._count_tokens(_PROBE))

    def _length(self, messages: list[Message]) -> int:
        assert self._engine is not None  # noqa: S101 - for type checkers
        return len(self._engine.render(Prompt(messages=tuple(messages))).token_ids)
