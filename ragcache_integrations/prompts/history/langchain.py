"""Chat history for LangChain: an adapter, see :mod:`.history`."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Self, Unpack

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
)
from typing_extensions import override

from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.knowledge_tree.simulation.corpora import estimate_tokens
from ragcache_integrations.prompts.history.history import ChatHistory, Summary
from ragcache_integrations.prompts.history.policy import Entry
from ragcache_integrations.prompts.history.saved import (
    SavedConversation,
    check_parts,
    check_saved,
    copied,
    missing_parts,
    travelling,
)
from ragcache_integrations.prompts.history.settings import (
    HistoryArguments,
    HistoryStats,
    read_settings,
)
from ragcache_integrations.prompts.history.tokens import CountTokens, MessageCounter

__all__ = ["HalfTruncationHistory"]

SUMMARY_KEY = "half_truncation_start"
PINNED_KEY = "pinned"
HEADING = "Summary of the conversation so far:\n"

PARTS = ("llm", "engine", "count_tokens", "pin")
"""What belongs to the process: it may be set at any time, and is saved in pickles alone."""

Pin = Callable[[BaseMessage], bool]


class HalfTruncationHistory(BaseChatMessageHistory):
    """A chat history that drops its oldest half at once, before its budget is full.

    Takes the place of any other chat-message history, and keeps its messages in one::

        history = HalfTruncationHistory(8000, llm=model, store=RedisChatMessageHistory("alice"))

    ``messages`` is what goes into the prompt: pinned messages, a summary of what was dropped, and
    what was said since. The store has all messages, and the summaries as messages among them,
    marked in their ``additional_kwargs``. One object for each conversation; a new one over the same
    store goes on where the old one stopped. The async methods call the store's sync ones in a
    thread.

    Setting ``messages`` replaces the conversation. Saved by :meth:`to_dict` or pickle, a history is
    restored as it was, with its whole conversation; a summary that was being written is written
    again. ``llm``, ``store``, ``engine``, ``count_tokens`` and ``pin`` cannot be written as JSON:
    :attr:`missing` names them until they are set again or given to :meth:`from_dict`. A pickle has
    those of them that can be pickled. A deep copy is another conversation, in memory.

    Args:
        budget: The most tokens that the history may have in the prompt.
        llm: Asked for the summaries, at the end of the conversation, and for one token of the
            shortened history, both in the background. Give the model that answers the
            conversation, because it has the KV cache. Without one there are no summaries.
        store: Where the messages are kept; in memory where ``None``.
        engine: Tells when it is idle, and what its chat template adds to a message; the ``llm``'s
            own where it was given one.
        count_tokens: Counts the tokens of a text; the engine's or the ``llm``'s where ``None``.
        system: The text that your prompt has as system message in front of the history, without
            which nothing of the KV cache could be shared.
        pin: Says which messages stay for ever, besides system messages and those that have
            ``additional_kwargs={"pinned": True}``.
        saved: What :meth:`to_dict` gave, of a conversation to go on with.
        **knobs: See :class:`~ragcache_integrations.prompts.history.settings.HistorySettings`.

    Raises:
        ConfigurationError: An argument is unknown or out of its range, nothing counts tokens, or
            what is restored is damaged. On a finished object: anything but ``messages``, ``llm``,
            ``engine``, ``count_tokens`` or ``pin`` is set.
    """

    llm: BaseChatModel | None
    engine: Any
    count_tokens: CountTokens | None
    pin: Pin | None

    def __init__(
        self,
        budget: int,
        *,
        llm: BaseChatModel | None = None,
        store: BaseChatMessageHistory | None = None,
        engine: Any = None,
        count_tokens: CountTokens | None = None,
        system: str = "",
        pin: Pin | None = None,
        saved: Mapping[str, Any] | SavedConversation[BaseMessage] | None = None,
        **knobs: Unpack[HistoryArguments],
    ) -> None:
        super().__init__()
        if saved is not None and not isinstance(saved, SavedConversation):
            saved = SavedConversation.from_dict(saved, _load)
        parts = {"llm": llm, "engine": engine, "count_tokens": count_tokens, "pin": pin}
        check_parts(parts, BaseChatModel)
        self._settings = read_settings(budget, knobs)
        self._system = system
        self._store = store
        self._missing = missing_parts(type(self).__name__, saved, {**parts, "store": store})
        self.__dict__.update(parts)
        dialect, model = self._connection(parts)
        self._history: ChatHistory[BaseMessage] = ChatHistory(
            self._settings,
            dialect,
            _Memory() if store is None else _Store(store),
            model,
            [SystemMessage(system)] if system else [],
            saved,
        )

    @property
    def messages(self) -> list[BaseMessage]:
        """What goes into the prompt. What it is set to takes the place of the conversation."""
        return self.get_messages()

    @messages.setter
    def messages(self, messages: Sequence[BaseMessage]) -> None:
        self._history.replace(list(messages))

    def get_messages(self) -> list[BaseMessage]:
        """What goes into the prompt: pinned messages, the summary, and what was said since."""
        return self._history.view()

    @override
    async def aget_messages(self) -> list[BaseMessage]:
        """The async twin of :meth:`get_messages`."""
        return await asyncio.to_thread(self.get_messages)

    def get_all(self) -> list[BaseMessage]:
        """All messages, dropped ones included, summaries not."""
        return self._history.messages()

    async def aget_all(self) -> list[BaseMessage]:
        """The async twin of :meth:`get_all`."""
        return await asyncio.to_thread(self.get_all)

    @override
    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages: all of them, or none.

        Raises:
            ConfigurationError: They cannot be kept within the budget.
        """
        self._history.add(list(messages))

    @override
    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """The async twin of :meth:`add_messages`."""
        await asyncio.to_thread(self.add_messages, messages)

    @override
    def clear(self) -> None:
        """Remove all messages, from the store as well."""
        self._history.replace([])

    @override
    async def aclear(self) -> None:
        """The async twin of :meth:`clear`."""
        await asyncio.to_thread(self.clear)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until no summary and no prefill is under way; whether that is so in time."""
        return self._history.settle(timeout)

    async def asettle(self, timeout: float | None = None) -> bool:
        """The async twin of :meth:`settle`."""
        return await asyncio.to_thread(self.settle, timeout)

    def stats(self) -> HistoryStats:
        """What became of the conversation."""
        return self._history.stats()

    # Saving and restoring

    @property
    def missing(self) -> tuple[str, ...]:
        """What it was saved without and has not been given again, such as ``llm``."""
        return self._missing

    def to_dict(self) -> dict[str, Any]:
        """Write it as JSON has it, with its conversation.

        Raises:
            ConfigurationError: A message holds what JSON cannot; it can be pickled.
        """
        settings = asdict(self._settings)
        return {**settings, "system": self._system, "saved": self._save().to_dict(_dump)}

    async def ato_dict(self) -> dict[str, Any]:
        """Async version of :meth:`to_dict`, which may have to read the store."""
        return await asyncio.to_thread(self.to_dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **parts: Any) -> Self:
        """Restore what :meth:`to_dict` wrote.

        Args:
            data: That.
            **parts: What could not be saved, such as ``llm``. A ``store`` that has the conversation
                is right about it; one that has none is given it.

        Raises:
            ConfigurationError: It is damaged.
        """
        return cls(**check_saved(data, parts))

    def __copy__(self) -> Self:
        again = type(self).__new__(type(self))
        again.__dict__.update(self.__dict__)
        return again

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        saved = copy.deepcopy(self._save(), memo)
        again = type(self)(**self._arguments(), **copied(self._parts(), memo), saved=saved)
        memo[id(self)] = again
        return again

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        travel = travelling({**self._parts(), "store": self._store})
        return _restore, (type(self), {**self._arguments(), **travel}, self._save(travel))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PARTS:
            self._connect(name, value)
        elif name.startswith("_") or name == "messages" or self._is_of_subclass(name):
            super().__setattr__(name, value)
        else:
            msg = (
                f"{name!r} of a finished {type(self).__name__} cannot be set, only messages, "
                f"{', '.join(PARTS)}: make another one over the same store"
            )
            raise ConfigurationError(msg)

    def _is_of_subclass(self, name: str) -> bool:
        fixed = {"store", *self._arguments()}
        return type(self) is not HalfTruncationHistory and name not in fixed

    def _connect(self, name: str, part: Any) -> None:
        check_parts({name: part}, BaseChatModel)
        self._history.connect(*self._connection({**self._parts(), name: part}))
        self.__dict__[name] = part
        self._missing = tuple(other for other in self._missing if other != name)

    def _connection(self, parts: Mapping[str, Any]) -> tuple[_Messages, _Model | None]:
        llm, engine = parts["llm"], parts["engine"]
        if engine is None:
            engine = getattr(llm, "engine", None)
        count = parts["count_tokens"] or getattr(engine, "count_tokens", None)
        if count is None and self._missing:  # rather than by a tokenizer of another model
            count = estimate_tokens
        count = count or getattr(llm, "get_num_tokens", None)
        if not callable(count):
            msg = "nothing counts tokens: give llm=, engine= or count_tokens="
            raise ConfigurationError(msg)
        messages = _Messages(MessageCounter(count, engine), parts["pin"])
        return messages, None if llm is None else _Model(llm, engine)

    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in PARTS}

    def _arguments(self) -> dict[str, Any]:
        return {**asdict(self._settings), "system": self._system}

    def _save(self, travel: Collection[str] = ()) -> SavedConversation[BaseMessage]:
        parts = {**self._parts(), "store": self._store}
        lost = {name for name, part in parts.items() if part is not None and name not in travel}
        return replace(self._history.save(), missing=tuple(sorted({*self._missing, *lost})))


def _restore(
    kind: type[HalfTruncationHistory],
    arguments: dict[str, Any],
    saved: SavedConversation[BaseMessage],
) -> HalfTruncationHistory:
    return kind(**arguments, saved=saved)


def _dump(message: BaseMessage) -> dict[str, Any]:
    return {"type": message.type, "data": message.model_dump(mode="json")}


def _load(written: dict[str, Any]) -> BaseMessage:
    return messages_from_dict([written])[0]


class _Messages:
    """LangChain's messages."""

    def __init__(self, count: MessageCounter, pin: Pin | None) -> None:
        self._count = count
        self._pin = pin

    def entry(self, message: BaseMessage) -> Entry:
        if not isinstance(message, BaseMessage):
            msg = f"messages must be LangChain messages, got {type(message).__name__}"
            raise ConfigurationError(msg)
        calls = message.tool_calls if isinstance(message, AIMessage) else []
        written = "".join(json.dumps([call["name"], call["args"]], default=str) for call in calls)
        role = _role(message)
        pinned = role == "system" or bool(message.additional_kwargs.get(PINNED_KEY))
        return Entry(
            self._count(role, self.text(message) + written),
            role,
            pinned or (self._pin is not None and bool(self._pin(message))),
            tuple(call["id"] or "" for call in calls),
            (message.tool_call_id,) if isinstance(message, ToolMessage) else (),
        )

    def text(self, message: BaseMessage) -> str:
        return str(message.text)

    def question(self, text: str) -> BaseMessage:
        return HumanMessage(text)

    def summary(self, summary: Summary) -> BaseMessage:
        return SystemMessage(HEADING + summary.text, additional_kwargs={SUMMARY_KEY: summary.start})

    def read_summary(self, message: BaseMessage) -> Summary | None:
        if not isinstance(message, SystemMessage):
            return None
        start, text = message.additional_kwargs.get(SUMMARY_KEY), self.text(message)
        if not is_whole(start) or start < 0 or not text.startswith(HEADING):
            return None
        return Summary(text.removeprefix(HEADING), start)

    def unmarked(self, message: BaseMessage) -> BaseMessage:
        more = {k: v for k, v in message.additional_kwargs.items() if k != SUMMARY_KEY}
        return message.model_copy(update={"additional_kwargs": more})


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return message.role
    return {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant"}.get(
        message.type, message.type
    )


class _Model:
    """Any chat model."""

    def __init__(self, llm: BaseChatModel, engine: Any) -> None:
        self._llm = llm
        self._load = getattr(engine, "load", None)

    def ask(self, messages: Sequence[BaseMessage], max_tokens: int, timeout: float | None) -> str:
        known: dict[str, Any] = {"timeout": timeout} if hasattr(self._llm, "timeout") else {}
        return str(self._llm.invoke(list(messages), max_tokens=max_tokens, **known).text)

    def is_idle(self) -> bool:
        if self._load is None:
            return True
        load = self._load()
        return not load.running_requests and not load.waiting_requests


class _Store:
    """Any chat-message store."""

    def __init__(self, store: BaseChatMessageHistory) -> None:
        self._store = store

    def read(self) -> list[BaseMessage]:
        return list(self._store.messages)

    def append(self, messages: Sequence[BaseMessage]) -> None:
        self._store.add_messages(messages)

    def replace(self, messages: Sequence[BaseMessage]) -> None:
        self._store.clear()
        if messages:
            self._store.add_messages(messages)


class _Memory:
    """Messages in memory."""

    def __init__(self) -> None:
        self._messages: list[BaseMessage] = []

    def read(self) -> list[BaseMessage]:
        return list(self._messages)

    def append(self, messages: Sequence[BaseMessage]) -> None:
        self._messages += messages

    def replace(self, messages: Sequence[BaseMessage]) -> None:
        self._messages = list(messages)
