"""Chat history for LangChain: an adapter, see :mod:`.history`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_from_dict,
)
from typing_extensions import override

from ragcache_integrations.core.checks import check_type
from ragcache_integrations.core.texts import estimate_tokens
from ragcache_integrations.errors import ConfigurationError
from ragcache_integrations.prompts.langchain import documents_once, message_role, shown_text

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
from .policy import Entry, read_settings
from .saved import (
    SavedConversation,
    check_parts,
    check_saved,
    missing_parts,
)

if TYPE_CHECKING:
    from ragcache_integrations._arguments import HistoryArguments

__all__ = ["HalfTruncationHistory"]

Pin = Callable[[BaseMessage], bool]


class _Messages(DialectBase):
    """LangChain's messages."""

    def entry(self, message: BaseMessage) -> Entry:
        check_type("messages", message, BaseMessage, "LangChain messages")
        made = message.tool_calls if isinstance(message, AIMessage) else []
        calls = [(call["id"] or "", [call["name"], call["args"]]) for call in made]
        answers = (message.tool_call_id,) if isinstance(message, ToolMessage) else ()
        return self._entry(message, message_role(message), calls, answers)

    @override
    def text(self, message: BaseMessage) -> str:
        return str(message.text)

    @override
    def shown_text(self, message: BaseMessage) -> str:
        return shown_text(message)

    def question(self, text: str) -> BaseMessage:
        return HumanMessage(text)

    def summary(self, summary: Summary) -> BaseMessage:
        return SystemMessage(HEADING + summary.text, additional_kwargs={SUMMARY_KEY: summary.start})

    def read_summary(self, message: BaseMessage) -> Summary | None:
        if not isinstance(message, SystemMessage):
            return None
        return parse_summary(self.text(message), message.additional_kwargs)

    def documents_once(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        return documents_once(messages)


class _Model(ModelBase):
    """Any chat model."""

    def ask(self, messages: Sequence[BaseMessage], max_tokens: int, timeout: float | None) -> str:
        answer = self._llm.invoke(list(messages), **self._options(max_tokens, timeout))
        return str(answer.text)


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


class _Memory(BaseChatMessageHistory):
    """Messages in memory; LangChain's own class for that is deprecated."""

    def __init__(self) -> None:
        self.messages = []

    @override
    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        self.messages += messages

    @override
    def clear(self) -> None:
        self.messages = []


class HalfTruncationHistory(HistoryBase, BaseChatMessageHistory):
    """A chat history that drops its oldest half at once, before its budget is full.

    Drop-in replacement for other chat-message histories; it keeps its messages in one of them::

        history = HalfTruncationHistory(8000, llm=model, store=RedisChatMessageHistory("alice"))

    ``messages`` goes into the prompt: pinned messages, a summary of what was dropped, and the
    messages since. The store has all messages. Summaries are stored among them, marked in their
    ``additional_kwargs``. Use one object per conversation; a new one over the same store continues
    where the old one stopped. The async methods call the store's sync ones in a thread.

    With ``documents_once=True`` it holds what was retrieved: add the last message of the prompt, as
    a ``RAGPromptTemplate`` with the same knob made it, in place of the bare question.

    Setting ``messages`` replaces the conversation. A history that was saved by :meth:`to_dict` or
    pickle is restored with its whole conversation; a summary that was being written is written
    again. ``llm``, ``store``, ``engine``, ``count_tokens`` and ``pin`` cannot be written as JSON:
    :attr:`missing` names them until they are set again or passed to :meth:`from_dict`. A pickle has
    those of them that can be pickled. A deep copy is another conversation, in memory.

    Args:
        budget: The most tokens that the history may have in the prompt.
        llm: Writes the summaries, at the end of the conversation, and prefills the shortened
            history, both in the background. Pass the model that answers the conversation, because
            it has the KV cache. Without one there are no summaries.
        store: Keeps the messages; ``None`` keeps them in memory.
        engine: Reports when it is idle, and what its chat template adds to a message; ``None``
            takes the ``llm``'s, if it has one.
        count_tokens: Counts the tokens of a text; ``None`` takes the engine's or the ``llm``'s.
        system: The text of the system message that your prompt has before the history. Without it
            the KV cache of the conversation cannot be shared.
        pin: Decides which messages always stay, besides system messages and those that have
            ``additional_kwargs={"pinned": True}``.
        saved: The result of :meth:`to_dict`, of a conversation to continue.
        **knobs: See :class:`~ragcache_integrations.prompts.history.policy.HistorySettings`.

    Raises:
        ConfigurationError: An argument is unknown or out of range, nothing counts tokens, or
            ``saved`` is damaged. On a finished object: anything but ``messages``, ``llm``,
            ``engine``, ``count_tokens`` or ``pin`` is assigned.
    """

    llm: BaseChatModel | None
    engine: Any
    count_tokens: CountTokens | None
    pin: Pin | None

    _llm_class: ClassVar[type] = BaseChatModel
    _dialect_class: ClassVar[type[_Messages]] = _Messages
    _model_class: ClassVar[type[_Model]] = _Model

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
        self._settings = read_settings(budget, knobs, (*PARTS, "store", "system"))
        self._system = system
        self._store = store
        self._missing = missing_parts(type(self).__name__, saved, {**parts, "store": store})
        self.__dict__.update(parts)
        dialect, model = self._connection(parts)
        self._history: ChatHistory[BaseMessage] = ChatHistory(
            self._settings,
            dialect,
            _Store(_Memory() if store is None else store),
            model,
            [SystemMessage(system)] if system else [],
            saved,
        )

    @property
    def messages(self) -> list[BaseMessage]:
        """The messages for the prompt. Setting it replaces the conversation."""
        return self.get_messages()

    @messages.setter
    def messages(self, messages: Sequence[BaseMessage]) -> None:
        self._history.replace(list(messages))

    def get_messages(self) -> list[BaseMessage]:
        """The messages for the prompt: pinned ones, the summary, and the messages since."""
        return self._history.view()

    @override
    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages: all of them, or none.

        Raises:
            ConfigurationError: They cannot be kept within the budget.
        """
        self._history.add(list(messages))

    @override
    def clear(self) -> None:
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
        settings = self._settings.model_dump()
        return {**settings, "system": self._system, "saved": self._save().to_dict(_dump)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], **parts: Any) -> Self:
        """Restore what :meth:`to_dict` wrote.

        Args:
            data: Its result.
            **parts: Parts that could not be saved, such as ``llm``. An empty ``store`` is filled
                with the conversation; otherwise the store's conversation is used.

        Raises:
            ConfigurationError: ``data`` is damaged.
        """
        return cls(**check_saved(data, parts))

    def __copy__(self) -> Self:
        duplicate = type(self).__new__(type(self))
        duplicate.__dict__.update(self.__dict__)
        return duplicate

    def __setattr__(self, name: str, value: Any) -> None:
        if name in PARTS:
            self._connect(name, value)
        elif name.startswith("_") or name == "messages" or self._is_of_subclass(name):
            super().__setattr__(name, value)
        else:
            raise ConfigurationError(
                f"{name!r} of a finished {type(self).__name__} cannot be assigned, only messages, "
                f"{', '.join(PARTS)}: make another object over the same store"
            )

    def _is_of_subclass(self, name: str) -> bool:
        fixed = {"store", *self._arguments()}
        return type(self) is not HalfTruncationHistory and name not in fixed

    @override
    def _default_counter(self, llm: BaseChatModel | None) -> CountTokens | None:
        # Without its model a restored history is estimated, not counted by another tokenizer.
        return estimate_tokens if self._missing else getattr(llm, "get_num_tokens", None)

    @override
    def _store_part(self) -> dict[str, Any]:
        return {"store": self._store}

    @override
    def _arguments(self) -> dict[str, Any]:
        return {**self._settings.model_dump(), "system": self._system}


def _dump(message: BaseMessage) -> dict[str, Any]:
    return {"type": message.type, "data": message.model_dump(mode="json")}


def _load(content: dict[str, Any]) -> BaseMessage:
    return messages_from_dict([content])[0]
