"""Chat memory for LlamaIndex: an adapter, see :mod:`.history`."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, Self, Unpack

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.llms.llm import LLM
from llama_index.core.memory.types import DEFAULT_CHAT_STORE_KEY, BaseMemory
from llama_index.core.storage.chat_store import BaseChatStore, SimpleChatStore
from llama_index.core.utils import get_tokenizer
from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    SkipValidation,
    model_serializer,
)
from typing_extensions import override

from ragcache_integrations.core.checks import is_whole
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.fixed_settings import fixed
from ragcache_integrations.prompts.history.history import ChatHistory, Summary
from ragcache_integrations.prompts.history.policy import Entry
from ragcache_integrations.prompts.history.saved import (
    SavedConversation,
    check_parts,
    check_saved,
    copied,
    dumped,
    missing_parts,
    parse_saved,
    travelling,
)
from ragcache_integrations.prompts.history.settings import (
    HistoryArguments,
    HistoryStats,
    read_settings,
)
from ragcache_integrations.prompts.history.tokens import CountTokens, MessageCounter

__all__ = ["HalfTruncationMemory"]

SUMMARY_KEY = "half_truncation_start"
PINNED_KEY = "pinned"
HEADING = "Summary of the conversation so far:\n"

PARTS = ("llm", "engine", "count_tokens", "pin")
"""What belongs to the process: it may be set at any time, and is saved in pickles alone."""

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

    Saved with a workflow's context, by ``to_dict``, ``to_string``, ``model_dump`` or pickle, it is
    restored as it was, with its whole conversation; a summary that was being written is written
    again. ``llm``, ``engine``, ``count_tokens``, ``pin`` and a ``chat_store`` that is not in memory
    cannot be written as JSON: :attr:`missing` names them until they are set again or given to
    ``from_dict``. A pickle has those of them that can be pickled. A deep copy is another
    conversation, in memory.

    Attributes:
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
        policy, threshold, summary_tokens, summary_instruction, prefill, idle_wait, timeout: See
            :class:`~ragcache_integrations.prompts.history.settings.HistorySettings`.

    Raises:
        ConfigurationError: An argument is unknown or out of its range, or what is restored is
            damaged. On a finished object: anything but ``llm``, ``engine``, ``count_tokens`` or
            ``pin`` is set, for which ``model_copy(update=...)`` makes another one.
    """

    model_config = ConfigDict(
        arbitrary_types_allowed=True, extra="forbid", hide_input_in_errors=True
    )

    budget: int
    policy: Literal["half", "oldest"]
    threshold: float
    summary_tokens: int
    summary_instruction: str
    prefill: bool
    idle_wait: float
    timeout: float | None
    chat_store_key: str
    system: str
    chat_store: Annotated[BaseChatStore, SkipValidation] = Field(exclude=True, repr=False)
    llm: Annotated[LLM | None, SkipValidation] = Field(exclude=True, repr=False)
    engine: Any = Field(exclude=True, repr=False)
    count_tokens: Annotated[CountTokens | None, SkipValidation] = Field(exclude=True, repr=False)
    pin: Annotated[Pin | None, SkipValidation] = Field(exclude=True, repr=False)

    _history: ChatHistory[ChatMessage] = PrivateAttr()
    _missing: tuple[str, ...] = PrivateAttr()

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
        saved: Mapping[str, Any] | SavedConversation[ChatMessage] | None = None,
        class_name: str | None = None,  # noqa: ARG002 - stands in what is restored
        **knobs: Unpack[HistoryArguments],
    ) -> None:
        settings = read_settings(budget, knobs)
        if saved is not None and not isinstance(saved, SavedConversation):
            saved = SavedConversation.from_dict(saved, ChatMessage.model_validate)
        parts = {"llm": llm, "engine": engine, "count_tokens": count_tokens, "pin": pin}
        check_parts(parts, LLM)
        super().__init__(
            **asdict(settings),
            **parts,
            chat_store=SimpleChatStore() if chat_store is None else chat_store,
            chat_store_key=chat_store_key,
            system=system,
        )
        dialect, model = self._connection(parts)
        self._history = ChatHistory(
            settings,
            dialect,
            _Store(self.chat_store, chat_store_key),
            model,
            [ChatMessage(role=MessageRole.SYSTEM, content=system)] if system else [],
            saved,
        )
        if saved is not None and chat_store is None:
            self._history.messages()  # fills the store, which can be looked at
        parts["chat_store"] = chat_store
        self._missing = missing_parts(self.class_name(), saved, parts)

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

    # Saving and restoring

    @property
    def missing(self) -> tuple[str, ...]:
        """What it was saved without and has not been given again, such as ``llm``."""
        return self._missing

    @override
    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Write it as JSON has it, with its conversation.

        Args:
            **kwargs: Not used.

        Raises:
            ConfigurationError: A message holds what JSON cannot; it can be pickled.
        """
        del kwargs
        names = (*HistoryArguments.__annotations__, "budget", "chat_store_key", "system")
        settings = {name: getattr(self, name) for name in names}
        return {**settings, "class_name": self.class_name(), "saved": self._save().to_dict(_dump)}

    def to_string(self) -> str:
        """Write it as a string of JSON, with its conversation.

        Raises:
            ConfigurationError: A message holds what JSON cannot, or it is too long.
        """
        return dumped(self.to_dict())

    async def ato_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Async version of :meth:`to_dict`, which may have to read the store."""
        return await asyncio.to_thread(self.to_dict, **kwargs)

    async def ato_string(self) -> str:
        """Async version of :meth:`to_string`."""
        return await asyncio.to_thread(self.to_string)

    @classmethod
    def from_string(cls, json_str: str, **kwargs: Any) -> Self:
        """Restore what :meth:`to_string` wrote.

        Args:
            json_str: That.
            **kwargs: What could not be saved, such as ``llm``.

        Raises:
            ConfigurationError: It is damaged, or too long.
        """
        return cls.from_dict(parse_saved(json_str), **kwargs)

    @classmethod
    @override
    def from_json(cls, data_str: str, **kwargs: Any) -> Self:
        """Do what :meth:`from_string` does."""
        return cls.from_string(data_str, **kwargs)

    @classmethod
    @override
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Restore what :meth:`to_dict` wrote.

        Args:
            data: That.
            **kwargs: What could not be saved, such as ``llm``. A ``chat_store`` that has the
                conversation is right about it; one that has none is given it.

        Raises:
            ConfigurationError: It is damaged.
        """
        return cls(**check_saved(data, kwargs))

    @model_serializer(mode="wrap")
    @override
    def custom_model_dump(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        return {**super().custom_model_dump(handler, info), "saved": self._save().to_dict(_dump)}

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy it.

        Args:
            update: What shall be different. The copy goes on with the conversation as it is now, in
                the same store: go on with one of the two.
            deep: Whether the copy is another conversation, in memory.

        Raises:
            ConfigurationError: What shall be different is unknown or out of its range.
        """
        if deep:
            again = copy.deepcopy(self)
            return again.model_copy(update=update) if update else again
        if not update:
            return copy.copy(self)
        return type(self)(**{**self._arguments(), "saved": self._save(), **update})

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        memo = {} if memo is None else memo
        arguments = {**self._arguments(), **copied(self._parts(), memo), "chat_store": None}
        again = type(self)(**arguments, saved=copy.deepcopy(self._save(), memo))
        memo[id(self)] = again
        return again

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        parts = {**self._parts(), "chat_store": self._outer_store()}
        travel = travelling(parts)
        arguments = {**self._arguments(), **dict.fromkeys(parts), **travel}
        saved = self._save(set(travel))
        return _restore, (type(self), arguments, saved)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PARTS:
            self._connect(name, value)
        elif name.startswith("_"):
            super().__setattr__(name, value)
        else:
            raise fixed(self, name)

    def _connect(self, name: str, part: Any) -> None:
        check_parts({name: part}, LLM)
        self._history.connect(*self._connection({**self._parts(), name: part}))
        self.__dict__[name] = part
        self._missing = tuple(other for other in self._missing if other != name)

    def _connection(self, parts: Mapping[str, Any]) -> tuple[_Messages, _Model | None]:
        llm, engine = parts["llm"], parts["engine"]
        if engine is None:
            engine = getattr(llm, "engine", None)
        count = parts["count_tokens"] or getattr(engine, "count_tokens", None) or _count_globally
        messages = _Messages(MessageCounter(count, engine), parts["pin"])
        return messages, None if llm is None else _Model(llm, engine)

    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in PARTS}

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}

    def _outer_store(self) -> BaseChatStore | None:
        """The store, where it is not in memory: then what is saved has the conversation."""
        return None if type(self.chat_store) is SimpleChatStore else self.chat_store

    def _save(self, travel: Collection[str] = ()) -> SavedConversation[ChatMessage]:
        parts = {**self._parts(), "chat_store": self._outer_store()}
        lost = {name for name, part in parts.items() if part is not None and name not in travel}
        missing = tuple(sorted({*self._missing, *lost}))
        return replace(self._history.save(), missing=missing)

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until no summary and no prefill is under way; whether that is so in time."""
        return self._history.settle(timeout)

    async def asettle(self, timeout: float | None = None) -> bool:
        """The async twin of :meth:`settle`."""
        return await asyncio.to_thread(self.settle, timeout)

    def stats(self) -> HistoryStats:
        """What became of the conversation."""
        return self._history.stats()


def _restore(
    kind: type[HalfTruncationMemory],
    arguments: dict[str, Any],
    saved: SavedConversation[ChatMessage],
) -> HalfTruncationMemory:
    return kind(**arguments, saved=saved)


def _dump(message: ChatMessage) -> dict[str, Any]:
    written = message.model_dump(mode="json")
    written["additional_kwargs"].pop("images", None)  # they are blocks by now, and read as such
    return written


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
        if not isinstance(message, ChatMessage) or message.role != MessageRole.SYSTEM:
            return None
        start, text = message.additional_kwargs.get(SUMMARY_KEY), self.text(message)
        if not is_whole(start) or start < 0 or not text.startswith(HEADING):
            return None
        return Summary(text.removeprefix(HEADING), start)

    def unmarked(self, message: ChatMessage) -> ChatMessage:
        more = {k: v for k, v in message.additional_kwargs.items() if k != SUMMARY_KEY}
        return message.model_copy(update={"additional_kwargs": more})


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
