"""Chat history for LangChain: an adapter, see :mod:`ragcache_integrations.prompts.history`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from typing_extensions import override

from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.history import ChatHistory, Summary
from ragcache_integrations.prompts.history_policy import Entry
from ragcache_integrations.prompts.history_settings import (
    HistoryArguments,
    HistoryStats,
    read_settings,
)
from ragcache_integrations.prompts.history_tokens import CountTokens, MessageCounter

__all__ = ["HalfTruncationHistory"]

SUMMARY_KEY = "half_truncation_start"
PINNED_KEY = "pinned"
HEADING = "Summary of the conversation so far:\n"

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
        **knobs: See :class:`~ragcache_integrations.prompts.history_settings.HistorySettings`.

    Raises:
        ConfigurationError: An argument is unknown or out of its range, or nothing counts tokens.
    """

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
        **knobs: Unpack[HistoryArguments],
    ) -> None:
        super().__init__()
        settings = read_settings(budget, knobs)
        if engine is None:
            engine = getattr(llm, "engine", None)
        count = count_tokens or getattr(engine, "count_tokens", None)
        count = count or getattr(llm, "get_num_tokens", None)
        if not callable(count):
            msg = "nothing counts tokens: give llm=, engine= or count_tokens="
            raise ConfigurationError(msg)
        self._history: ChatHistory[BaseMessage] = ChatHistory(
            settings,
            _Messages(MessageCounter(count, engine), pin),
            _Memory() if store is None else _Store(store),
            None if llm is None else _Model(llm, engine),
            [SystemMessage(system)] if system else [],
        )

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override] # as LangChain's own do
        """What goes into the prompt."""
        return self.get_messages()

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
        start = message.additional_kwargs.get(SUMMARY_KEY)
        return None if start is None else Summary(self.text(message), int(start))


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
