"""Chat memory for LlamaIndex: an adapter, see :mod:`.history`."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, Unpack

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

from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.knobs import assignment_error
from ragcache_integrations.prompts.llama_index import documents_once, shown_text

from .base import (
    HEADING,
    PARTS,
    SUMMARY_KEY,
    CountTokens,
    DialectBase,
    HistoryBase,
    ModelBase,
    parse_summary,
)
from .history import ChatHistory, Summary
from .policy import Entry, HistoryKnobs, read_settings
from .saved import (
    SavedConversation,
    check_parts,
    check_saved,
    dump_saved,
    missing_parts,
    parse_saved,
)

if TYPE_CHECKING:
    from ragcache_integrations._arguments import HistoryArguments

__all__ = ["HalfTruncationMemory"]

Pin = Callable[[ChatMessage], bool]


class _Messages(DialectBase):
    """LlamaIndex's messages."""

    def entry(self, message: ChatMessage) -> Entry:
        check_type("messages", message, ChatMessage, "ChatMessage objects")
        role = {"chatbot": "assistant", "model": "assistant", "developer": "system"}.get(
            message.role.value, message.role.value
        )
        answer = message.additional_kwargs.get("tool_call_id")
        answers = (str(answer),) if role == "tool" and answer is not None else ()
        return self._entry(message, role, _calls(message), answers)

    @override
    def text(self, message: ChatMessage) -> str:
        return message.content or ""

    @override
    def shown_text(self, message: ChatMessage) -> str:
        return shown_text(message)

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
        return parse_summary(self.text(message), message.additional_kwargs)

    def documents_once(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        return documents_once(messages)


def _calls(message: ChatMessage) -> list[tuple[str, Any]]:
    """Ids and contents of the tool calls, from blocks and from OpenAI's form."""
    calls = [
        (str(block.tool_call_id or ""), [block.tool_name, block.tool_kwargs])
        for block in message.blocks
        if block.block_type == "tool_call"
    ]
    seen = {call_id for call_id, _ in calls}
    for call in message.additional_kwargs.get("tool_calls") or ():
        fields = call if isinstance(call, dict) else getattr(call, "__dict__", {})
        call_id = str(fields.get("id") or "")
        if call_id not in seen:
            calls.append((call_id, fields.get("function", fields)))
    return calls


class _Model(ModelBase):
    """Any LLM."""

    def ask(self, messages: Sequence[ChatMessage], max_tokens: int, timeout: float | None) -> str:
        answer = self._llm.chat(list(messages), **self._options(max_tokens, timeout))
        return answer.message.content or ""


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


class HalfTruncationMemory(HistoryBase, HistoryKnobs, BaseMemory):
    """A chat memory that drops its oldest half at once, before its budget is full.

    Drop-in replacement for the other memories of a chat engine or an agent::

        memory = HalfTruncationMemory(8000, llm=llm)
        chat_engine = index.as_chat_engine(llm=llm, memory=memory)

    ``get`` returns the messages for the prompt: pinned ones, a summary of what was dropped, and the
    messages since. The chat store has all messages. Summaries are stored among them, marked in
    their ``additional_kwargs``. Use one object per conversation; a new one over the same store
    continues where the old one stopped.

    A memory that was saved with a workflow's context, by ``to_dict``, ``to_string``, ``model_dump``
    or pickle is restored with its whole conversation; a summary that was being written is written
    again. ``llm``, ``engine``, ``count_tokens``, ``pin`` and a ``chat_store`` that is not in memory
    cannot be written as JSON: :attr:`missing` names them until they are set again or passed to
    ``from_dict``. A pickle has those of them that can be pickled. A deep copy is another
    conversation, in memory.

    Attributes:
        budget: The most tokens that the history may have in the prompt.
        llm: Writes the summaries, at the end of the conversation, and prefills the shortened
            history, both in the background. Pass the model that answers the conversation, because
            it has the KV cache. Without one there are no summaries.
        chat_store: Keeps the messages; ``None`` keeps them in memory.
        chat_store_key: Key of the conversation in the store.
        engine: Reports when it is idle, and what its chat template adds to a message; ``None``
            takes the ``llm``'s, if it has one.
        count_tokens: Counts the tokens of a text; ``None`` takes the engine's, or LlamaIndex's
            global tokenizer.
        system: The text of the system message that your prompt has before the history. Without it
            the KV cache of the conversation cannot be shared.
        pin: Decides which messages always stay, besides system messages and those that have
            ``additional_kwargs={"pinned": True}``.
        policy, threshold, summary_tokens, summary_instruction, prefill, idle_wait, timeout,
            documents_once: See
            :class:`~ragcache_integrations.prompts.history.policy.HistorySettings`.

    Raises:
        ConfigurationError: An argument is unknown or out of range, or ``saved`` is damaged. On a
            finished object: anything but ``llm``, ``engine``, ``count_tokens`` or ``pin`` is
            assigned; ``model_copy(update=...)`` makes an object with other settings.
    """

    model_config = ConfigDict(
        arbitrary_types_allowed=True, extra="forbid", hide_input_in_errors=True
    )

    chat_store_key: str
    system: str
    chat_store: Annotated[BaseChatStore, SkipValidation] = Field(exclude=True, repr=False)
    llm: Annotated[LLM | None, SkipValidation] = Field(exclude=True, repr=False)
    engine: Any = Field(exclude=True, repr=False)
    count_tokens: Annotated[CountTokens | None, SkipValidation] = Field(exclude=True, repr=False)
    pin: Annotated[Pin | None, SkipValidation] = Field(exclude=True, repr=False)

    _history: ChatHistory[ChatMessage] = PrivateAttr()
    _missing: tuple[str, ...] = PrivateAttr()

    _llm_class: ClassVar[type] = LLM
    _dialect_class: ClassVar[type[_Messages]] = _Messages
    _model_class: ClassVar[type[_Model]] = _Model

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
        class_name: str | None = None,  # noqa: ARG002 - to_dict writes it
        **knobs: Unpack[HistoryArguments],
    ) -> None:
        others = ("chat_store", "chat_store_key", "system")
        settings = read_settings(budget, knobs, (*PARTS, *others))
        if saved is not None and not isinstance(saved, SavedConversation):
            saved = SavedConversation.from_dict(saved, ChatMessage.model_validate)
        parts = {"llm": llm, "engine": engine, "count_tokens": count_tokens, "pin": pin}
        check_parts(parts, LLM)
        super().__init__(
            **settings.model_dump(),
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
            self._history.messages()  # fills the store, which is public
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
        """Make a memory the way LlamaIndex's own memories are made.

        Args:
            budget: The most tokens; the default is LlamaIndex's.
            chat_history: Messages that the conversation begins with.
            **kwargs: Arguments of the class.
        """
        memory = cls(budget, **kwargs)
        if chat_history is not None:
            memory.set(list(chat_history))
        return memory

    @override
    def get(self, input: str | None = None, **kwargs: Any) -> list[ChatMessage]:
        """The messages for the prompt."""
        return self._history.view()

    @override
    def put(self, message: ChatMessage) -> None:
        """Add a message.

        Raises:
            ConfigurationError: It cannot be kept within the budget.
        """
        self._history.add([message])

    @override
    def put_messages(self, messages: list[ChatMessage]) -> None:
        """Add messages: all of them, or none.

        Raises:
            ConfigurationError: They cannot be kept within the budget.
        """
        self._history.add(messages)

    @override
    def set(self, messages: list[ChatMessage]) -> None:
        """Replace all messages by these.

        Raises:
            ConfigurationError: They cannot be kept within the budget; nothing is replaced.
        """
        self._history.replace(messages)

    @override
    def reset(self) -> None:
        """Remove all messages, from the store as well."""
        self._history.replace([])

    # Saving and restoring

    @override
    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Write it in a form that JSON can hold, with its conversation.

        Args:
            **kwargs: Not used.

        Raises:
            ConfigurationError: A message holds an object that JSON has no form for; pickle it.
        """
        del kwargs
        names = (*HistoryKnobs.model_fields, "chat_store_key", "system")
        settings = {name: getattr(self, name) for name in names}
        return {**settings, "class_name": self.class_name(), "saved": self._save().to_dict(_dump)}

    def to_string(self) -> str:
        """Write it as a JSON string, with its conversation.

        Raises:
            ConfigurationError: A message holds an object that JSON has no form for, or the string
                is too long to be read again.
        """
        return dump_saved(self.to_dict())

    async def ato_string(self) -> str:
        """Async version of :meth:`to_string`."""
        return await asyncio.to_thread(self.to_string)

    @classmethod
    def from_string(cls, json_str: str, **kwargs: Any) -> Self:
        """Restore what :meth:`to_string` wrote.

        Args:
            json_str: Its result.
            **kwargs: Parts that could not be saved, such as ``llm``.

        Raises:
            ConfigurationError: The string is damaged, or too long.
        """
        return cls.from_dict(parse_saved(json_str), **kwargs)

    @classmethod
    @override
    def from_json(cls, data_str: str, **kwargs: Any) -> Self:
        """Restore what :meth:`to_string` wrote, like :meth:`from_string`."""
        return cls.from_string(data_str, **kwargs)

    @classmethod
    @override
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Restore what :meth:`to_dict` wrote.

        Args:
            data: Its result.
            **kwargs: Parts that could not be saved, such as ``llm``. An empty ``chat_store`` is
                filled with the conversation; otherwise the store's conversation is used.

        Raises:
            ConfigurationError: ``data`` is damaged.
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
            update: Values of fields that differ in the copy. Both continue the conversation as it
                is now, in the same store: use only one of them.
            deep: Whether the copy is another conversation, in memory.

        Raises:
            ConfigurationError: A field is unknown, or its value out of range.
        """
        if deep:
            duplicate = copy.deepcopy(self)
            return duplicate.model_copy(update=update) if update else duplicate
        if not update:
            return copy.copy(self)
        return type(self)(**{**self._arguments(), "saved": self._save(), **update})

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PARTS:
            self._connect(name, value)
        elif name.startswith("_"):
            super().__setattr__(name, value)
        else:
            raise assignment_error(self, name)

    @override
    def _default_counter(self, llm: LLM | None) -> CountTokens:
        return _count_globally

    @override
    def _store_part(self) -> dict[str, Any]:
        in_memory = type(self.chat_store) is SimpleChatStore  # then what is saved has its messages
        return {"chat_store": None if in_memory else self.chat_store}

    @override
    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}


def _dump(message: ChatMessage) -> dict[str, Any]:
    content = message.model_dump(mode="json")
    content["additional_kwargs"].pop("images", None)  # ChatMessage has made blocks of them
    return content


def _count_globally(text: str) -> int:
    return len(get_tokenizer()(text))
