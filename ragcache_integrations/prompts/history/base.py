"""What the chat histories of both frameworks have in common: parts, counting, saving.

The parts of a history belong to the process, such as its model. They may be set at any time, and
are saved in pickles alone.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ragcache_integrations.core.checks import check_int, is_whole
from ragcache_integrations.core.forks import make_lock
from ragcache_integrations.core.prompt import Message, Prompt, PromptDocument
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.repeats import whole_text

from .history import ChatHistory, Dialect, Summary
from .policy import Entry, HistoryStats
from .saved import (
    SavedConversation,
    check_parts,
    copy_parts,
    picklable_parts,
)

__all__ = [
    "HEADING",
    "PARTS",
    "SUMMARY_KEY",
    "CountTokens",
    "DialectBase",
    "HistoryBase",
    "MessageCounter",
    "ModelBase",
    "parse_summary",
]

SUMMARY_KEY = "half_truncation_start"
PINNED_KEY = "pinned"
HEADING = "Summary of the conversation so far:\n"

PARTS = ("llm", "engine", "count_tokens", "pin")
"""Names of the parts, besides the store."""


CountTokens = Callable[[str], int]

MARKUP_TOKENS = 4
"""Tokens that a message takes besides its text if the template is unknown: those of OpenAI."""

_PROBE = "a"


class HistoryBase:
    """Base of a framework's history class, which has the attributes that :data:`PARTS` names."""

    if TYPE_CHECKING:
        _history: ChatHistory[Any]
        _missing: tuple[str, ...]

    # What a framework decides

    _llm_class: ClassVar[type]
    _dialect_class: ClassVar[Any]
    _model_class: ClassVar[Any]

    def _arguments(self) -> dict[str, Any]:
        """Arguments of the constructor that make an object with the same settings."""
        raise NotImplementedError

    def _store_part(self) -> dict[str, Any]:
        """The store as a keyword argument; ``None`` if it is in memory."""
        raise NotImplementedError

    def _default_counter(self, llm: Any) -> CountTokens | None:
        """Counts tokens if neither ``count_tokens`` nor the engine does."""
        raise NotImplementedError

    # The conversation

    def get_all(self) -> list[Any]:
        """All messages, including dropped ones but no summaries."""
        return self._history.messages()

    async def aget_all(self) -> list[Any]:
        """Async version of :meth:`get_all`."""
        return await asyncio.to_thread(self.get_all)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until no summary and no prefill is in progress.

        Args:
            timeout: Seconds to wait; ``None`` for no limit.

        Returns:
            Whether nothing is left to do.
        """
        return self._history.settle(timeout)

    async def asettle(self, timeout: float | None = None) -> bool:
        """Async version of :meth:`settle`."""
        return await asyncio.to_thread(self.settle, timeout)

    def stats(self) -> HistoryStats:
        """Counters of this history."""
        return self._history.stats()

    # Saving and restoring

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts that could not be saved and have not been set again, such as ``llm``."""
        return self._missing

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Write it in a form that JSON can hold, with its conversation."""
        raise NotImplementedError

    async def ato_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Async version of :meth:`to_dict`, which may have to read the store."""
        return await asyncio.to_thread(self.to_dict, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        memo = {} if memo is None else memo
        arguments = self._arguments() | copy_parts(self._parts(), memo)
        arguments |= dict.fromkeys(self._store_part())
        arguments["saved"] = copy.deepcopy(self._save(), memo)
        duplicate = type(self)(**arguments)
        memo[id(self)] = duplicate
        return duplicate

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        parts = self._parts() | self._store_part()
        pickled = picklable_parts(parts)
        arguments = {**self._arguments(), **dict.fromkeys(parts), **pickled}
        return partial(type(self), **arguments | {"saved": self._save(pickled)}), ()

    def _save(self, pickled: Collection[str] = ()) -> SavedConversation[Any]:
        parts = self._parts() | self._store_part()
        lost = {name for name, part in parts.items() if part is not None and name not in pickled}
        return replace(self._history.save(), missing=tuple(sorted({*self._missing, *lost})))

    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in PARTS}

    def _connect(self, name: str, part: Any) -> None:
        check_parts({name: part}, self._llm_class)
        self._history.connect(*self._connection({**self._parts(), name: part}))
        self.__dict__[name] = part
        self._missing = tuple(other for other in self._missing if other != name)

    def _connection(self, parts: Mapping[str, Any]) -> tuple[Dialect[Any], Any]:
        llm, engine = parts["llm"], parts["engine"]
        if engine is None:
            engine = getattr(llm, "engine", None)
        count = parts["count_tokens"] or getattr(engine, "count_tokens", None)
        count = count or self._default_counter(llm)
        if not callable(count):
            raise ConfigurationError("nothing counts tokens: pass llm=, engine= or count_tokens=")
        dialect = self._dialect_class(MessageCounter(count, engine), parts["pin"])
        return dialect, None if llm is None else self._model_class(llm, engine)


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


class DialectBase:
    """What both frameworks' dialects have in common.

    Args:
        count: Counts a message by role and text.
        pin: Decides which messages always stay, besides those that say it themselves.
    """

    def __init__(self, count: MessageCounter, pin: Callable[[Any], bool] | None) -> None:
        self._count = count
        self._pin = pin

    def text(self, message: Any) -> str:
        """Return a message's text."""
        raise NotImplementedError

    def shown_text(self, message: Any) -> str:
        """Return a message's text, that of documents in it included."""
        raise NotImplementedError

    def unmarked(self, message: Any) -> Any:
        """Make an ordinary message of a summary."""
        extras = {name: v for name, v in message.additional_kwargs.items() if name != SUMMARY_KEY}
        return message.model_copy(update={"additional_kwargs": extras})

    def _entry(
        self, message: Any, role: str, calls: Sequence[tuple[str, Any]], answers: tuple[str, ...]
    ) -> Entry:
        """Count a message.

        Args:
            message: The message.
            role: Its role.
            calls: Ids and contents of its tool calls.
            answers: Ids of the tool calls that it answers.
        """
        contents = "".join(json.dumps(content, default=str) for _, content in calls)
        shown = self.shown_text(message)
        whole = whole_text(message.additional_kwargs, shown)
        text = shown if whole is None else whole
        pinned = role == "system" or bool(message.additional_kwargs.get(PINNED_KEY))
        return Entry(
            self._count(role, text + contents),
            role,
            pinned or (self._pin is not None and bool(self._pin(message))),
            tuple(name for name, _ in calls),
            answers,
        )


class ModelBase:
    """What both frameworks' models have in common.

    Args:
        llm: A model of the framework.
        engine: The engine that answers for it, which knows whether it is idle; ``None`` for others.
    """

    def __init__(self, llm: Any, engine: Any) -> None:
        self._llm = llm
        self._load = getattr(engine, "load", None)

    def is_idle(self) -> bool:
        """Whether the engine has no requests; ``True`` if there is no way to know."""
        if self._load is None:
            return True
        load = self._load()
        return not load.running_requests and not load.waiting_requests

    def _options(self, max_tokens: int, timeout: float | None) -> dict[str, Any]:
        known = {"timeout": timeout} if hasattr(self._llm, "timeout") else {}
        return {"max_tokens": max_tokens, **known}


def parse_summary(text: str, extras: Mapping[str, Any]) -> Summary | None:
    """Read the summary that a system message holds; ``None`` if it holds none.

    Args:
        text: The message's text.
        extras: The message's ``additional_kwargs``.
    """
    start = extras.get(SUMMARY_KEY)
    if not is_whole(start) or start < 0 or not text.startswith(HEADING):
        return None
    return Summary(text.removeprefix(HEADING), start)
