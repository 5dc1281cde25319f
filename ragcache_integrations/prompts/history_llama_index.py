"""Chat memory for LlamaIndex: an adapter, see :mod:`ragcache_integrations.prompts.history`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Self, Unpack

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.types import DEFAULT_CHAT_STORE_KEY, BaseMemory
from llama_index.core.storage.chat_store import BaseChatStore, SimpleChatStore
from llama_index.core.utils import get_tokenizer
from pydantic import ConfigDict, PrivateAttr
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

__all__ = ["HalfTruncationMemory"]

SUMMARY_KEY = "half_truncation_start"
PINNED_KEY = "pinned"
HEADING = "Summary of the conversation so far:\n"

Pin = Callable[[ChatMessage], bool]


class HalfTruncationMemory(BaseMemory):
    """A chat memory that drops its oldest half at once, before its budget is full.

    Takes the place of any other memory of a chat engine or an agent::

        memory = HalfTruncationMemory(8000, llm=llm)
        chat_engine = index.as_chat_engine(llm=llm, memory=memory)

    ``get`` gives what goes into the prompt: pinned messages, a summary of what was dropped, and
    what was said since. The chat store has all messages, and the summaries as messages among them,
    marked in their ``additional_kwargs``. One object for each conversation; a new one over the same
    store goes on where the old one stopped.

    Args:
        budget: The most tokens that the history may have in the prompt.
        llm: Asked for the summaries, at the end of the conversation, and for one token of the
            shortened history, both in the background. Give the model that answers the
            conversation, because it has the KV cache. Without one there are no summaries.
        chat_store: Where the messages are kept; in memory where ``None``.
        chat_store_key: Names the conversation in the store.
        engine: Tells when it is idle, and what its chat template adds to a message; the ``llm``'s
            own where it was given one.
        count_tokens: Counts the tokens of a text; where ``None`` the engine's, or LlamaIndex's
            global tokenizer.
        system: The text that your prompt has as system message in front of the history, without
            which nothing of the KV cache could be shared.
        pin: Says which messages stay for ever, besides system messages and those that have
            ``additional_kwargs={"pinned": True}``.
        **knobs: See :class:`~ragcache_integrations.prompts.history_settings.HistorySettings`.

    Raises:
        ConfigurationError: An argument is unknown or out of its range.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    _history: ChatHistory[ChatMessage] = PrivateAttr()

    def __init__(
        self,
        budget: int,
        *,
        llm: LLM | None = None,
        chat_store: BaseChatStore | None = None,
        chat_store_key: str = DEFAULT_CHAT_STORE_KEY,
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
        store = SimpleChatStore() if chat_store is None else chat_store
        self._history = ChatHistory(
            settings,
            _Messages(MessageCounter(count or _count_globally, engine), pin),
            _Store(store, chat_store_key),
            None if llm is None else _Model(llm, engine),
            [ChatMessage(role=MessageRole.SYSTEM, content=system)] if system else [],
        )

    @classmethod
    @override
    def class_name(cls) -> str:
        return "HalfTruncationMemory"

    @classmethod
    @override
    def from_defaults(
        cls, budget: int = 3000, chat_history: Sequence[ChatMessage] | None = None, **kwargs: Any
    ) -> Self:
        """Make one, as LlamaIndex's own memories are made.

        Args:
            budget: The most tokens; LlamaIndex's own default.
            chat_history: What was said before.
            **kwargs: Arguments of the class.
        """
        memory = cls(budget, **kwargs)
        if chat_history is not None:
            memory.set(list(chat_history))
        return memory

    @override
    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        """Give what goes into the prompt."""
        return self._history.view()

    @override
    async def aget(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        """The async twin of :meth:`get`."""
        return await asyncio.to_thread(self._history.view)

    @override
    def get_all(self) -> list[ChatMessage]:
        """All messages, dropped ones included, summaries not."""
        return self._history.messages()

    @override
    async def aget_all(self) -> list[ChatMessage]:
        """The async twin of :meth:`get_all`."""
        return await asyncio.to_thread(self.get_all)

    @override
    def put(self, message: ChatMessage) -> None:
        """Add a message.

        Raises:
            ConfigurationError: It cannot be kept within the budget.
        """
        self._history.add([message])

    @override
    async def aput(self, message: ChatMessage) -> None:
        """The async twin of :meth:`put`."""
        await asyncio.to_thread(self.put, message)

    @override
    def put_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages: all of them, or none.

        Raises:
            ConfigurationError: They cannot be kept within the budget.
        """
        self._history.add(messages)

    @override
    async def aput_messages(self, messages: list[ChatMessage]) -> None:
        """The async twin of :meth:`put_messages`."""
        await asyncio.to_thread(self.put_messages, messages)

    @override
    def set(self, messages: list[ChatMessage]) -> None:
        """Put these in the place of all messages.

        Raises:
            ConfigurationError: They cannot be kept within the budget; nothing is replaced.
        """
        self._history.replace(messages)

    @override
    async def aset(self, messages: list[ChatMessage]) -> None:
        """The async twin of :meth:`set`."""
        await asyncio.to_thread(self.set, messages)

    @override
    def reset(self) -> None:
        """Remove all messages, from the store as well."""
        self._history.replace([])

    @override
    async def areset(self) -> None:
        """The async twin of :meth:`reset`."""
        await asyncio.to_thread(self.reset)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until no summary and no prefill is under way; whether that is so in time."""
        return self._history.settle(timeout)

    async def asettle(self, timeout: float | None = None) -> bool:
        """The async twin of :meth:`settle`."""
        return await asyncio.to_thread(self.settle, timeout)

    def stats(self) -> HistoryStats:
        """What became of the conversation."""
        return self._history.stats()


def _count_globally(text: str) -> int:
    return len(get_tokenizer()(text))


class _Messages:
    """LlamaIndex's messages."""

    def __init__(self, count: MessageCounter, pin: Pin | None) -> None:
        self._count = count
        self._pin = pin

    def entry(self, message: ChatMessage) -> Entry:
        if not isinstance(message, ChatMessage):
            msg = f"messages must be ChatMessage objects, got {type(message).__name__}"
            raise ConfigurationError(msg)
        more = message.additional_kwargs
        calls = _calls(message)
        written = "".join(json.dumps(call, default=str) for _, call in calls)
        role = {"chatbot": "assistant", "model": "assistant", "developer": "system"}.get(
            message.role.value, message.role.value
        )
        answer = more.get("tool_call_id")
        pinned = role == "system" or bool(more.get(PINNED_KEY))
        return Entry(
            self._count(role, self.text(message) + written),
            role,
            pinned or (self._pin is not None and bool(self._pin(message))),
            tuple(name for name, _ in calls),
            (str(answer),) if role == "tool" and answer is not None else (),
        )

    def text(self, message: ChatMessage) -> str:
        return message.content or ""

    def question(self, text: str) -> ChatMessage:
        return ChatMessage(role=MessageRole.USER, content=text)

    def summary(self, summary: Summary) -> ChatMessage:
        return ChatMessage(
            role=MessageRole.SYSTEM,
            content=HEADING + summary.text,
            additional_kwargs={SUMMARY_KEY: summary.start},
        )

    def read_summary(self, message: ChatMessage) -> Summary | None:
        start = message.additional_kwargs.get(SUMMARY_KEY)
        return None if start is None else Summary(self.text(message), int(start))


def _calls(message: ChatMessage) -> list[tuple[str, Any]]:
    """Ids and contents of the tool calls, as blocks or in the form that OpenAI's have."""
    found = [
        (str(block.tool_call_id or ""), [block.tool_name, block.tool_kwargs])
        for block in message.blocks
        if block.block_type == "tool_call"
    ]
    seen = {name for name, _ in found}
    for call in message.additional_kwargs.get("tool_calls") or ():
        given = call if isinstance(call, dict) else getattr(call, "__dict__", {})
        name = str(given.get("id") or "")
        if name not in seen:
            found.append((name, given.get("function", given)))
    return found


class _Model:
    """Any LLM."""

    def __init__(self, llm: LLM, engine: Any) -> None:
        self._llm = llm
        self._load = getattr(engine, "load", None)

    def ask(self, messages: Sequence[ChatMessage], max_tokens: int, timeout: float | None) -> str:
        known: dict[str, Any] = {"timeout": timeout} if hasattr(self._llm, "timeout") else {}
        answer = self._llm.chat(list(messages), max_tokens=max_tokens, **known)
        return answer.message.content or ""

    def is_idle(self) -> bool:
        if self._load is None:
            return True
        load = self._load()
        return not load.running_requests and not load.waiting_requests


class _Store:
    """One conversation in a chat store."""

    def __init__(self, store: BaseChatStore, key: str) -> None:
        self._store = store
        self._key = key

    def read(self) -> list[ChatMessage]:
        return list(self._store.get_messages(self._key))

    def append(self, messages: Sequence[ChatMessage]) -> None:
        for message in messages:
            self._store.add_message(self._key, message)

    def replace(self, messages: Sequence[ChatMessage]) -> None:
        self._store.set_messages(self._key, list(messages))
